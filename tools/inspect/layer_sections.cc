// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/layer_sections.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/quote.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/inspect/page_charts.h"
#include "fsdp/tools/page/bar_chart.h"
#include "fsdp/tools/page/html.h"

namespace fsdp {
namespace {

constexpr int kBarHeight = 16;
constexpr int kHistogramHeight = 30;

std::string Size(int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

// Layers of one section next to each other, in two alternating shades.
void AddParts(const std::vector<int64_t>& bytes, const std::vector<LayerRow>& layers, const char* section,
              std::vector<BarPart>& parts) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    parts.push_back({static_cast<double>(bytes[i]), absl::StrCat(section, i % 2 == 0 ? "" : " odd"),
                     absl::StrCat(section, " of ", Printable(layers[i].name), ": ", Size(bytes[i]))});
  }
}

// The typical size of a state's values: the root mean square. A second moment is itself a mean of squared gradients, so
// for it the root of the mean, which has the scale of the first moment.
double ScaleOf(const std::string& state, const ValueStatistics& statistics) {
  const bool is_square = state == "exp_avg_sq" || state == "max_exp_avg_sq" || state == "square_avg";
  return is_square ? std::sqrt(std::max(0.0, statistics.mean().value_or(0))) : statistics.rms().value_or(0);
}

std::vector<Dot> DotsOf(const LayerRow& row) {
  const double weights = row.weights.rms().value_or(0);
  std::vector<Dot> dots = {{weights, "model", absl::StrFormat("weights: %.3g", weights)}};
  int index = 0;
  for (const auto& [state, statistics] : row.states) {
    const double scale = ScaleOf(state, statistics);
    dots.push_back({scale, index++ == 0 ? "optim" : "second", absl::StrFormat("%s: %.3g", Printable(state), scale)});
  }
  return dots;
}

}  // namespace

// All bars have the scale of the largest file, so that an unbalanced checkpoint is visible immediately.
std::string FilesSection(const CheckpointLayers& layers) {
  std::string html =
      Opening("Who holds what",
              "The values in each file; shades alternate from layer to layer. Point at a part to see which it is.");
  absl::StrAppend(&html, "<div class=\"legend\">", LegendEntry("model", "model"), LegendEntry("optim", "optimizer"),
                  LegendEntry("extra", "extra values"), "</div>");
  // At least 1: all files may be empty.
  int64_t largest = 1;
  for (const FileRow& file : layers.files) largest = std::max(largest, file.payload_bytes());
  for (const FileRow& file : layers.files) {
    std::vector<BarPart> parts;
    AddParts(file.model_bytes, layers.layers, "model", parts);
    AddParts(file.optim_bytes, layers.layers, "optim", parts);
    parts.push_back(
        {static_cast<double>(file.extra_bytes), "extra", absl::StrCat("extra values: ", Size(file.extra_bytes))});
    absl::StrAppend(&html, ChartRow(file.name, BarSvg(parts, static_cast<double>(largest), kBarHeight),
                                    Size(file.payload_bytes())));
  }
  std::string empty;
  for (const FileRow& file : layers.empty_files) {
    absl::StrAppend(&empty, empty.empty() ? "" : ", ", Name(file.name), " (", Size(file.nbytes), ")");
  }
  if (!empty.empty()) absl::StrAppend(&html, "<p>Without values of their own: ", empty, "</p>\n");
  return html + "</section>\n";
}

std::string SizesSection(const CheckpointLayers& layers) {
  std::string html = Opening("Size of each layer", "Parameters, and the optimizer's state of them.");
  int64_t largest = 1;
  for (const LayerRow& row : layers.layers) largest = std::max(largest, row.model_bytes + row.optim_bytes);
  for (const LayerRow& row : layers.layers) {
    const std::vector<BarPart> parts = {
        {static_cast<double>(row.model_bytes), "model", absl::StrCat("model: ", Size(row.model_bytes))},
        {static_cast<double>(row.optim_bytes), "optim", absl::StrCat("optimizer: ", Size(row.optim_bytes))}};
    absl::StrAppend(&html, ChartRow(row.name, BarSvg(parts, static_cast<double>(largest), kBarHeight),
                                    Size(row.model_bytes + row.optim_bytes)));
  }
  return html + "</section>\n";
}

// All layers share one range of magnitudes, so that their histograms can be compared.
std::string ValuesSection(const CheckpointLayers& layers) {
  OctaveRange range;
  range.Include(layers.weights);
  if (range.last < range.first) return "";
  std::string html =
      Opening("Values of the weights",
              "How often each magnitude occurs, by sign, one column an octave, zeros in the middle; heights "
              "are square roots, so that tails show. The number is the root mean square.");
  for (const LayerRow& row : layers.layers) {
    if (row.weights.numel == 0) continue;
    absl::StrAppend(&html, ChartRow(row.name, HistogramSvg(row.weights, range, kHistogramHeight),
                                    Short(row.weights.rms()), "high"));
  }
  return absl::StrCat(html, ChartAxisRow(HistogramAxisSvg(range)), "</section>\n");
}

// The axis of the dots spans whole powers of ten around the scales of all layers, so that layers can be compared by
// eye.
std::string MomentsSection(const CheckpointLayers& layers) {
  std::map<std::string, ValueStatistics> states;
  double low = INFINITY;
  double high = 0;
  for (const LayerRow& row : layers.layers) {
    for (const auto& [state, statistics] : row.states) states[state].Add(statistics);
    for (const Dot& dot : DotsOf(row)) {
      if (dot.value > 0 && !std::isinf(dot.value)) low = std::min(low, dot.value);
      if (!std::isinf(dot.value)) high = std::max(high, dot.value);
    }
  }
  if (states.empty()) return "";
  std::string html =
      Opening("Optimizer moments",
              "Above, the distribution of each state over all layers; below, its scale in each layer: root "
              "mean squares, of second moments the root of their mean.",
              "optimizer");
  OctaveRange range;
  for (const auto& [state, statistics] : states) range.Include(statistics);
  if (range.last >= range.first) {
    for (const auto& [state, statistics] : states) {
      absl::StrAppend(&html, ChartRow(state, HistogramSvg(statistics, range, 2 * kHistogramHeight),
                                      Short(ScaleOf(state, statistics)), "high"));
    }
    absl::StrAppend(&html, ChartAxisRow(HistogramAxisSvg(range)));
  }
  if (high > 0) {
    absl::StrAppend(&html, "<div class=\"legend\">", LegendEntry("model", "weights"));
    int index = 0;
    for (const auto& [state, statistics] : states) {
      absl::StrAppend(&html, LegendEntry(index++ == 0 ? "optim" : "second", Html(state)));
    }
    absl::StrAppend(&html, "</div>");
    const int first = static_cast<int>(std::floor(std::log10(low)));
    const int last = std::max(first + 1, static_cast<int>(std::ceil(std::log10(high))));
    for (const LayerRow& row : layers.layers) {
      if (!row.states.empty())
        absl::StrAppend(&html, ChartRow(row.name, DotsSvg(DotsOf(row), first, last, kBarHeight), ""));
    }
    absl::StrAppend(&html, ChartAxisRow(DotsAxisSvg(first, last)));
  }
  return html + "</section>\n";
}

}  // namespace fsdp
