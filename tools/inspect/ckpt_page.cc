// SPDX-License-Identifier: Apache-2.0
//
// The page is built from strings, section by section, without a template engine: half of it is SVG (page_charts.h),
// whose numbers must be computed in any case. Two rules keep it safe and small: every name from the checkpoint goes
// through Html(), which replaces control characters and escapes markup, and every list is bounded (kMaxLayerRows,
// kMaxFileRows, kMaxTensorRows, kMaxDrawnShards).
//
//   Headline, Tiles   the kind of checkpoint; totals, NaN and infinity
//   ShardMap          each file as a bar of its layers
//   Sizes             each layer as a bar: parameters, optimizer state
//   Values            each layer as a histogram of its weights
//   Moments           the optimizer's states: histograms, then the scale of each in each layer
//   Tensors           a table of the largest tensors
#include "fsdp/tools/inspect/ckpt_page.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/quote.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/inspect/page_charts.h"
#include "fsdp/tools/page/html.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

// Tensors with at most this many intervals show each of them in their bar.
constexpr size_t kMaxDrawnShards = 16;

constexpr int kBarHeight = 16;
constexpr int kHistogramHeight = 30;

std::string Size(int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

int64_t BytesOf(const StoredTensor& tensor) { return tensor.shape.numel() * SizeOf(tensor.dtype); }

std::string Row(const std::string& label, const std::string& chart, const std::string& number, const char* css = "") {
  return absl::StrCat("<div class=\"row ", css, "\"><span class=\"label\" title=\"", Html(label), "\"><bdi>",
                      Html(label), "</bdi></span>", chart, "<span class=\"number\">", number, "</span></div>\n");
}

// A row without a label or a number.
std::string AxisRow(const std::string& axis) {
  return absl::StrCat("<div class=\"row\"><span></span>", axis, "</div>\n");
}

std::string Headline(const CheckpointSummary& summary) {
  const Manifest& manifest = summary.manifest;
  std::string what = EscapeHtml(summary.format->name());
  if (summary.traits().is_ours) {
    what = absl::StrCat(std::string(StateDictTypeName(manifest.save.type)), " checkpoint of ", manifest.save.StepText(),
                        ", world size ", manifest.save.world_size, ", written by ", Html(manifest.save.producer));
  }
  return absl::StrCat("<h1>", Html(summary.path), "</h1><p>", what, "</p>\n");
}

// The totals at the top of the page.
std::string Tiles(const Manifest& manifest, const TensorStatistics& statistics) {
  int64_t parameters = 0;
  int64_t bytes[2] = {};  // of the model, and of the rest
  std::set<std::string> dtypes;
  NonFinite nonfinite;
  int64_t unread = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    const bool is_model = tensor.key.section == Section::kModel;
    bytes[is_model ? 0 : 1] += BytesOf(tensor);
    if (is_model) {
      parameters += tensor.shape.numel();
      dtypes.insert(std::string(DTypeName(tensor.dtype)));
    }
    const auto found = statistics.find(tensor.key);
    if (found == statistics.end()) continue;
    nonfinite.Add(found->second.nonfinite);
    unread += found->second.unread;
  }
  const std::string dtype = dtypes.size() == 1 ? *dtypes.begin() : absl::StrCat(dtypes.size(), " dtypes");
  const bool any = nonfinite.any();
  return absl::StrCat(
      "<div class=\"tiles\">", Tile(Count(parameters), "elements of the model, " + dtype),
      Tile(Size(bytes[0]), "model"), Tile(Size(bytes[1]), "optimizer and extra values"),
      Tile(Count(static_cast<int64_t>(manifest.tensors.size())), "tensors"),
      Tile(Count(static_cast<int64_t>(manifest.files.size())), manifest.files.size() == 1 ? "file" : "files"),
      Tile(any ? absl::StrCat(Count(nonfinite.nan), " / ", Count(nonfinite.inf)) : "none",
           unread == 0 ? "NaN / infinite values" : "NaN / infinite values, of those that were read",
           any          ? "bad"
           : unread > 0 ? ""
                        : "good"),
      "</div>\n");
}

// Layers of one section next to each other, in two alternating shades.
void AddParts(const std::vector<int64_t>& bytes, const std::vector<LayerRow>& layers, const char* section,
              std::vector<BarPart>& parts) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    parts.push_back({static_cast<double>(bytes[i]), absl::StrCat(section, i % 2 == 0 ? "" : " odd"),
                     absl::StrCat(section, " of ", Printable(layers[i].name), ": ", Size(bytes[i]))});
  }
}

// All bars have the scale of the largest file, so that an unbalanced checkpoint is visible immediately.
std::string ShardMap(const CheckpointLayers& layers) {
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
    absl::StrAppend(
        &html, Row(file.name, BarSvg(parts, static_cast<double>(largest), kBarHeight), Size(file.payload_bytes())));
  }
  return html + "</section>\n";
}

std::string Sizes(const CheckpointLayers& layers) {
  std::string html = Opening("Size of each layer", "Parameters, and the optimizer's state of them.");
  int64_t largest = 1;
  for (const LayerRow& row : layers.layers) largest = std::max(largest, row.model_bytes + row.optim_bytes);
  for (const LayerRow& row : layers.layers) {
    const std::vector<BarPart> parts = {
        {static_cast<double>(row.model_bytes), "model", absl::StrCat("model: ", Size(row.model_bytes))},
        {static_cast<double>(row.optim_bytes), "optim", absl::StrCat("optimizer: ", Size(row.optim_bytes))}};
    absl::StrAppend(&html, Row(row.name, BarSvg(parts, static_cast<double>(largest), kBarHeight),
                               Size(row.model_bytes + row.optim_bytes)));
  }
  return html + "</section>\n";
}

// All layers share one range of magnitudes, so that their histograms can be compared. Empty for a checkpoint without
// floating-point weights.
std::string Values(const CheckpointLayers& layers) {
  OctaveRange range;
  range.Include(layers.weights);
  if (range.last < range.first) return "";
  std::string html =
      Opening("Values of the weights",
              "How often each magnitude occurs, by sign, one column an octave, zeros in the middle; heights "
              "are square roots, so that tails show. The number is the root mean square.");
  for (const LayerRow& row : layers.layers) {
    if (row.weights.numel == 0) continue;
    absl::StrAppend(
        &html, Row(row.name, HistogramSvg(row.weights, range, kHistogramHeight), Short(row.weights.rms()), "high"));
  }
  return absl::StrCat(html, AxisRow(HistogramAxisSvg(range)), "</section>\n");
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

// The axis of the dots spans whole powers of ten around the scales of all layers, so that layers can be compared by
// eye.
std::string Moments(const CheckpointLayers& layers) {
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
      absl::StrAppend(&html, Row(state, HistogramSvg(statistics, range, 2 * kHistogramHeight),
                                 Short(ScaleOf(state, statistics)), "high"));
    }
    absl::StrAppend(&html, AxisRow(HistogramAxisSvg(range)));
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
      if (!row.states.empty()) absl::StrAppend(&html, Row(row.name, DotsSvg(DotsOf(row), first, last, kBarHeight), ""));
    }
    absl::StrAppend(&html, AxisRow(DotsAxisSvg(first, last)));
  }
  return html + "</section>\n";
}

// The places of a tensor's elements: a part for each interval, in two alternating shades.
std::string ShardsOf(const StoredTensor& tensor, const Manifest& manifest) {
  if (tensor.intervals.size() > kMaxDrawnShards) return absl::StrCat(tensor.intervals.size(), " shards");
  std::vector<BarPart> parts;
  for (size_t i = 0; i < tensor.intervals.size(); ++i) {
    const StoredInterval& part = tensor.intervals[i];
    parts.push_back({static_cast<double>(part.interval.size()), i % 2 == 0 ? "model" : "model odd",
                     absl::StrCat(manifest.files[part.file].name, " ", part.interval.ToString())});
  }
  return BarSvg(parts, static_cast<double>(tensor.shape.numel()), 10);
}

std::string TensorRow(const StoredTensor& tensor, const Manifest& manifest, const ValueStatistics& statistics) {
  OctaveRange range;
  range.Include(statistics);
  const bool has_values = statistics.finite() > 0;
  const auto extreme = [&](double value) { return has_values ? Short(value) : "–"; };
  const auto cell = [](const std::string& text) { return absl::StrCat("<td class=\"number\">", text, "</td>"); };
  const std::string name = Html(tensor.key.ToString());
  return absl::StrCat("<tr><td class=\"name\" title=\"", name, "\"><bdi>", name, "</bdi></td><td>",
                      std::string(DTypeName(tensor.dtype)), "</td><td>", tensor.shape.ToString(), "</td>",
                      cell(Size(BytesOf(tensor))), cell(extreme(statistics.min)), cell(extreme(statistics.max)),
                      cell(Short(statistics.mean())), cell(Short(statistics.deviation())),
                      statistics.nonfinite.any()
                          ? absl::StrCat("<td class=\"number bad\">", Count(statistics.nonfinite.nan), " / ",
                                         Count(statistics.nonfinite.inf), "</td>")
                          : cell("–"),
                      "<td class=\"chart\">", range.last >= range.first ? HistogramSvg(statistics, range, 20) : "",
                      "</td><td class=\"shards\">", ShardsOf(tensor, manifest), "</td></tr>\n");
}

// Links of an HDF5 file; empty if it has no links.
std::string LeftOut(const CheckpointSummary& summary) {
  if (summary.left_out.empty()) return "";
  std::string html = Opening("Left out", "Links are not followed, so their targets are not on this page.");
  for (const std::string& left_out : summary.left_out) absl::StrAppend(&html, "<p>", Html(left_out), "</p>\n");
  return html + "</section>\n";
}

// Tensors that were not wholly read; may be empty.
std::string NotWhollyReadSection(const TensorStatistics& statistics) {
  std::string rows;
  size_t count = 0;
  for (const auto& [key, values] : statistics) {
    if (values.unread == 0 || ++count > kMaxTensorRows) continue;
    absl::StrAppend(&rows, "<p>", Html(key.ToString()), ": ", Count(values.numel), " elements of ",
                    Count(values.numel + values.unread), "</p>\n");
  }
  if (count == 0) return "";
  if (count > kMaxTensorRows) absl::StrAppend(&rows, "<p>", Count(count - kMaxTensorRows), " more tensors</p>\n");
  return absl::StrCat(Opening("Not wholly read",
                              "These tensors are views of storages that other tensors share, and in sum much larger "
                              "than the files: of each only the first elements were read."),
                      rows, "</section>\n");
}

// Indices of the tensors with rows: all, or the largest, in the order of the checkpoint.
std::vector<size_t> ShownTensors(const Manifest& manifest) {
  std::vector<size_t> shown(manifest.tensors.size());
  for (size_t i = 0; i < shown.size(); ++i) shown[i] = i;
  if (shown.size() <= kMaxTensorRows) return shown;
  std::stable_sort(shown.begin(), shown.end(),
                   [&](size_t a, size_t b) { return BytesOf(manifest.tensors[a]) > BytesOf(manifest.tensors[b]); });
  shown.resize(kMaxTensorRows);
  std::sort(shown.begin(), shown.end());
  return shown;
}

std::string Tensors(const Manifest& manifest, const TensorStatistics& statistics) {
  const std::vector<size_t> shown = ShownTensors(manifest);
  const std::string note =
      shown.size() == manifest.tensors.size()
          ? "All of them, in the order of the checkpoint."
          : absl::StrCat("The ", shown.size(), " largest of ", Count(static_cast<int64_t>(manifest.tensors.size())),
                         "; ckpt inspect --tensors lists all.");
  std::string html = Opening("Tensors", note);
  absl::StrAppend(&html, "<div class=\"scroll\"><table><tr><th>name</th><th>dtype</th><th>shape</th>");
  for (const char* column : {"bytes", "min", "max", "mean", "deviation", "NaN / inf"}) {
    absl::StrAppend(&html, "<th class=\"number\">", column, "</th>");
  }
  absl::StrAppend(&html, "<th>values</th><th>shards</th></tr>\n");
  for (const size_t i : shown) {
    const auto found = statistics.find(manifest.tensors[i].key);
    absl::StrAppend(
        &html, TensorRow(manifest.tensors[i], manifest, found == statistics.end() ? ValueStatistics() : found->second));
  }
  return html + "</table></div></section>\n";
}

}  // namespace

std::string CheckpointPage(const CheckpointSummary& summary, const TensorStatistics& statistics) {
  const CheckpointLayers layers = LayersOf(summary.manifest, statistics);
  std::string html = PageHead(summary.path);
  absl::StrAppend(&html, Headline(summary), Tiles(summary.manifest, statistics), LeftOut(summary),
                  NotWhollyReadSection(statistics));
  absl::StrAppend(&html, ShardMap(layers), Sizes(layers), Values(layers), Moments(layers),
                  Tensors(summary.manifest, statistics));
  const bool is_all =
      std::all_of(statistics.begin(), statistics.end(), [](const auto& of) { return of.second.unread == 0; });
  return absl::StrCat(html, PageFoot(absl::StrCat(
                                "Made by ckpt inspect --html. ",
                                is_all ? "Every stored value was read" : "Not every stored value was read (see above)",
                                ", and digests were verified if the format has them.")));
}

}  // namespace fsdp
