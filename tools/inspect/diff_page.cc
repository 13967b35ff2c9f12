// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/diff_page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/natural_order.h"
#include "fsdp/checkpoint/diff_summary.h"
#include "fsdp/tools/inspect/checkpoint_layers.h"
#include "fsdp/tools/inspect/model_order.h"
#include "fsdp/tools/inspect/page_charts.h"
#include "fsdp/tools/inspect/run_facts.h"
#include "fsdp/tools/page/bar_chart.h"
#include "fsdp/tools/page/html.h"
#include "fsdp/tools/page/table_script.h"

namespace fsdp {
namespace {

constexpr int kDotsHeight = 16;

// What TensorDiff::name is the text of.
StateKey KeyOf(const std::string& name) {
  constexpr char kModel[] = "model/";
  constexpr char kOptim[] = "optim/state/";
  if (absl::StartsWith(name, kModel)) return StateKey::Model(name.substr(sizeof(kModel) - 1));
  if (!absl::StartsWith(name, kOptim)) return StateKey::Extra(name);
  const std::string rest = name.substr(sizeof(kOptim) - 1);
  const size_t slash = rest.rfind('/');
  return slash == std::string::npos ? StateKey::Extra(name)
                                    : StateKey::OptimState(rest.substr(0, slash), rest.substr(slash + 1));
}

// A tensor of the report, and its place in the model.
struct Compared {
  const TensorDiff* tensor = nullptr;
  StateKey key;
  size_t place = 0;  // of its layer; after all layers without one

  bool is_model() const { return key.section == StateKey::Section::kModel; }
  bool has_layer() const { return key.section != StateKey::Section::kExtra; }

  // Step counts change by more than anything else, and mean nothing.
  bool is_scalar() const { return tensor->shape_a.rank() == 0; }
};

// In the order of a model, values without a layer last.
std::vector<Compared> AllCompared(const DiffReport& report) {
  std::vector<Compared> all;
  for (const auto* tensors : {&report.tensors, &report.renamed.tensors}) {
    for (const TensorDiff& tensor : *tensors) all.push_back({&tensor, KeyOf(tensor.name), 0});
  }
  std::vector<std::string> layers;
  std::map<std::string, size_t> place;
  for (const Compared& compared : all) {
    if (compared.has_layer() && place.try_emplace(LayerOf(compared.key.fqn)).second) {
      layers.push_back(LayerOf(compared.key.fqn));
    }
  }
  const std::vector<std::string> ordered = InModelOrder(layers);
  for (size_t i = 0; i < ordered.size(); ++i) place[ordered[i]] = i;
  for (Compared& compared : all) {
    compared.place = compared.has_layer() ? place.at(LayerOf(compared.key.fqn)) : ordered.size();
  }
  std::stable_sort(all.begin(), all.end(), [](const Compared& a, const Compared& b) {
    if (a.place != b.place) return a.place < b.place;
    if (a.key.fqn != b.key.fqn) return IsNaturallyBefore(a.key.fqn, b.key.fqn);
    return a.key < b.key;
  });
  return all;
}

std::string Headline(const DiffSide& a, const DiffSide& b) {
  return absl::StrCat("<h1>", Name(ShortPath(a.absolute_path)), " and ", Name(ShortPath(b.absolute_path)),
                      "</h1><p>A: ", Name(a.absolute_path), ", ", Html(a.what), "<br>B: ", Name(b.absolute_path), ", ",
                      Html(b.what), "</p>\n");
}

ValueDifference TotalOf(const DiffReport& report) {
  ValueDifference total = report.total;
  total.Add(report.renamed.total);
  return total;
}

std::string Tiles(const DiffReport& report, const OneSidedNames& names, const std::vector<Compared>& all) {
  const ValueDifference total = TotalOf(report);
  ValueDifference weights;
  for (const Compared& compared : all) {
    if (compared.is_model()) weights.Add(compared.tensor->values);
  }
  const auto different =
      std::count_if(all.begin(), all.end(), [](const Compared& compared) { return !compared.tensor->equal(); });
  return absl::StrCat(
      "<div class=\"tiles\">", Tile(Count(std::ssize(all)), "tensors that both have"),
      Tile(different == 0 ? "none" : Count(different), "of them differ", different == 0 ? "good" : ""),
      Tile(absl::StrCat(Count(std::ssize(names.a)), " / ", Count(std::ssize(names.b))), "names only in A / only in B"),
      Tile(Short(weights.relative_change()), "change of the weights, over their norm in A"),
      Tile(absl::StrFormat("%.3g %%", 100 * total.share_changed()), "of the elements changed"),
      Tile(total.nan_mismatches == 0 ? "none" : Count(total.nan_mismatches), "NaN on one side only",
           total.nan_mismatches == 0 ? "good" : "bad"),
      "</div>\n");
}

std::string ListSection(const std::string& title, const std::string& note, const std::vector<std::string>& items,
                        const std::function<std::string(const std::string&)>& html_of) {
  if (items.empty()) return "";
  std::string html = absl::StrCat(Opening(title, note), "<ul class=\"found\">");
  for (size_t i = 0; i < std::min(items.size(), kMaxDiffNames); ++i) {
    absl::StrAppend(&html, "<li>", html_of(items[i]), "</li>\n");
  }
  html += "</ul>\n";
  if (items.size() > kMaxDiffNames) {
    absl::StrAppend(&html, "<p>", Count(std::ssize(items) - static_cast<int64_t>(kMaxDiffNames)),
                    " more; ckpt diff --json has all.</p>\n");
  }
  return html + "</section>\n";
}

std::string KindsSection(const DiffReport& report) {
  if (report.equal()) {
    return absl::StrCat(Opening("What differs", ""), "<p class=\"good\">Nothing: ",
                        TotalOf(report).changed == 0 ? "every value is equal." : "every value is within the tolerance.",
                        "</p></section>\n");
  }
  return ListSection("What differs", "", SummariseDiff(report).sentences,
                     [](const std::string& sentence) { return EscapeHtml(sentence); });
}

// The changes of a layer: of its weights, and of the optimizer's states together.
struct LayerChange {
  ValueDifference weights;
  ValueDifference states;
  bool has_states = false;
};

// By row of `index`, which has the layers of `all`.
std::vector<LayerChange> ChangesOf(const std::vector<Compared>& all, const LayerIndex& index, size_t rows) {
  std::vector<LayerChange> changes(rows);
  for (const Compared& compared : all) {
    if (!compared.has_layer() || (!compared.is_model() && compared.is_scalar())) continue;
    LayerChange& change = changes[index.RowOf(compared.key.fqn)];
    (compared.is_model() ? change.weights : change.states).Add(compared.tensor->values);
    change.has_states = change.has_states || !compared.is_model();
  }
  return changes;
}

// The powers of ten around all changes; nullopt if nothing changed.
std::optional<std::pair<int, int>> AxisOf(const std::vector<LayerChange>& changes) {
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  for (const LayerChange& change : changes) {
    for (const ValueDifference* values : {&change.weights, &change.states}) {
      const double relative = values->relative_change().value_or(0);
      if (!(relative > 0) || !std::isfinite(relative)) continue;
      low = std::min(low, relative);
      high = std::max(high, relative);
    }
  }
  if (!(high > 0)) return std::nullopt;
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  // Narrow enough for labels.
  return std::pair(std::clamp(static_cast<int>(std::floor(std::log10(low))), last - 12, last - 1), last);
}

// Change on a logarithmic axis: two fine-tunes differ by powers of ten from layer to layer.
std::string LayersSection(const std::vector<Compared>& all) {
  std::vector<std::string> names;
  for (const Compared& compared : all) {
    if (compared.has_layer()) names.push_back(LayerOf(compared.key.fqn));
  }
  const LayerIndex index(names);
  const std::vector<std::string> rows = index.Rows();
  const std::vector<LayerChange> changes = ChangesOf(all, index, rows.size());
  const auto axis = AxisOf(changes);
  if (!axis) return "";
  std::string html = absl::StrCat(
      Opening("Change of each layer", "The norm of the difference, over the norm in A; the number is of the weights."),
      "<div class=\"legend\">", LegendEntry("model", "weights"), LegendEntry("optim", "optimizer's states"), "</div>");
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::optional<double> weights = changes[i].weights.relative_change();
    std::vector<Dot> dots = {{weights.value_or(0), "model", absl::StrCat("weights: ", Short(weights))}};
    if (changes[i].has_states) {
      const std::optional<double> states = changes[i].states.relative_change();
      dots.push_back({states.value_or(0), "optim", absl::StrCat("optimizer's states: ", Short(states))});
    }
    const bool is_equal = changes[i].weights.changed == 0;
    absl::StrAppend(&html, ChartRow(rows[i], DotsSvg(dots, axis->first, axis->second, kDotsHeight),
                                    is_equal ? "equal" : Short(weights)));
  }
  return absl::StrCat(html, ChartAxisRow(DotsAxisSvg(axis->first, axis->second)), "</section>\n");
}

std::vector<TableColumn> DiffColumns() {
  return {{"tensor"},         {"dtype"},         {"change", true}, {"largest |a - b|", true},
          {"relative", true}, {"changed", true}, {"cosine", true}, {"NaN on one side", true}};
}

std::string DTypes(const TensorDiff& tensor) {
  const std::string a(DTypeName(tensor.dtype_a));
  return tensor.dtype_a == tensor.dtype_b ? a : absl::StrCat(a, " → ", std::string(DTypeName(tensor.dtype_b)));
}

// "optim/state/h.0.w/exp_avg" as the colour of the optimizer, "h.0.w" and "exp_avg".
std::string NameCell(const Compared& compared) {
  const char* kind = compared.is_model() ? "model" : compared.has_layer() ? "optim" : "extra";
  const StateKey& key = compared.key;
  return absl::StrCat("<td class=\"name\"><svg viewBox=\"0 0 10 10\"><rect class=\"", kind,
                      "\" width=\"10\" height=\"10\"/></svg>", Name(key.fqn),
                      key.state.empty() ? "" : absl::StrCat(" <small>", Name(key.state), "</small>"), "</td>");
}

std::string DiffRow(const Compared& compared) {
  const TensorDiff& tensor = *compared.tensor;
  const ValueDifference& values = tensor.values;
  const std::string name = absl::StrCat(NameCell(compared), "<td>", DTypes(tensor), "</td>");
  if (tensor.shape_a != tensor.shape_b) {
    return absl::StrCat("<tr class=\"bad\">", name, "<td colspan=\"6\" class=\"name problem\">shape ",
                        tensor.shape_a.ToString(), " in A, ", tensor.shape_b.ToString(), " in B</td></tr>\n");
  }
  const auto number = [](std::optional<double> value) { return NumberCell(value == 0 ? "0" : Short(value), value); };
  return absl::StrCat("<tr", values.nan_mismatches > 0 ? " class=\"bad\"" : "", ">", name,
                      number(values.relative_change()), number(values.max_abs), number(values.max_rel),
                      NumberCell(absl::StrFormat("%.3g %%", 100 * values.share_changed()), values.share_changed()),
                      NumberCell(values.cosine() ? absl::StrFormat("%.6f", *values.cosine()) : "–", values.cosine()),
                      NumberCell(Count(values.nan_mismatches), static_cast<double>(values.nan_mismatches),
                                 values.nan_mismatches > 0 ? "bad" : ""),
                      "</tr>\n");
}

std::string DiffTable(const std::vector<Compared>& rows) {
  std::string html = absl::StrCat(DataTable("compared", DiffColumns()), "<tbody>");
  for (const Compared& row : rows) html += DiffRow(row);
  return html + "</tbody></table></div></section>\n";
}

// NaN on one side is more than any number.
double SizeOfChange(const Compared& compared) {
  if (compared.tensor->values.nan_mismatches > 0) return std::numeric_limits<double>::infinity();
  return compared.tensor->values.relative_change().value_or(std::numeric_limits<double>::max());
}

std::string LargestSection(const std::vector<Compared>& all) {
  constexpr size_t kLargest = 10;
  std::vector<Compared> largest;
  std::copy_if(all.begin(), all.end(), std::back_inserter(largest),
               [](const Compared& compared) { return compared.tensor->values.changed > 0 && !compared.is_scalar(); });
  if (largest.empty()) return "";
  // Moments change more than weights, and mean less.
  std::stable_sort(largest.begin(), largest.end(), [](const Compared& a, const Compared& b) {
    const bool nan_a = a.tensor->values.nan_mismatches > 0, nan_b = b.tensor->values.nan_mismatches > 0;
    if (nan_a != nan_b) return nan_a;
    if (a.is_model() != b.is_model()) return a.is_model();
    return SizeOfChange(a) > SizeOfChange(b);
  });
  largest.resize(std::min(largest.size(), kLargest));
  return absl::StrCat(Opening("Largest differences",
                              "By their change, weights first; without scalars. NaN on one side comes before all."),
                      DiffTable(largest));
}

std::string DTypesSection(const std::vector<Compared>& all) {
  std::map<std::pair<DType, DType>, std::vector<std::string>> pairs;
  for (const Compared& compared : all) {
    const TensorDiff& tensor = *compared.tensor;
    if (tensor.dtype_a != tensor.dtype_b) pairs[{tensor.dtype_a, tensor.dtype_b}].push_back(tensor.name);
  }
  std::string html;
  for (const auto& [dtypes, names] : pairs) {
    html += ListSection(
        absl::StrCat(std::string(DTypeName(dtypes.first)), " in A, ", std::string(DTypeName(dtypes.second)), " in B"),
        absl::StrCat(Count(std::ssize(names)), names.size() == 1 ? " tensor" : " tensors"), names, Name);
  }
  return html;
}

std::string TensorsSection(const std::vector<Compared>& all) {
  std::vector<Compared> shown = all;
  std::string note = "All that both have, by layer.";
  if (shown.size() > kMaxDiffRows) {
    const auto size = [](const Compared& compared) {
      const bool is_reshaped = compared.tensor->shape_a != compared.tensor->shape_b;
      return is_reshaped ? std::numeric_limits<double>::infinity() : SizeOfChange(compared);
    };
    std::vector<double> sizes;
    for (const Compared& compared : all) sizes.push_back(size(compared));
    const auto least = sizes.begin() + (kMaxDiffRows - 1);
    std::nth_element(sizes.begin(), least, sizes.end(), std::greater<>());
    shown.clear();
    // Larger ones first, then equal ones until the table is full, all in the order of the model.
    size_t room = kMaxDiffRows - static_cast<size_t>(std::count_if(
                                     all.begin(), all.end(), [&](const Compared& c) { return size(c) > *least; }));
    for (const Compared& compared : all) {
      const bool is_larger = size(compared) > *least;
      if (!is_larger && (size(compared) < *least || room == 0)) continue;
      room -= is_larger ? 0 : 1;
      shown.push_back(compared);
    }
    note = absl::StrCat("The ", kMaxDiffRows, " that changed most of ", Count(std::ssize(all)),
                        ", by layer; ckpt diff --json has all.");
  }
  return absl::StrCat(Opening("Tensors", note), DiffTable(shown));
}

}  // namespace

std::string DiffPage(const DiffSide& a, const DiffSide& b, const DiffReport& report) {
  const std::vector<PageScript> scripts = {kTableScript};
  const std::vector<Compared> all = AllCompared(report);
  const OneSidedNames names = NamesOfOneSide(report);
  const auto count = [](const std::vector<std::string>& of) { return absl::StrCat(Count(std::ssize(of)), " names"); };
  std::string html = PageHead(absl::StrCat(ShortPath(a.absolute_path), " and ", ShortPath(b.absolute_path)),
                              ColumnLabels("compared", DiffColumns()), scripts);
  absl::StrAppend(&html, Headline(a, b), Tiles(report, names, all), KindsSection(report), LayersSection(all),
                  LargestSection(all));
  absl::StrAppend(&html, DTypesSection(all), ListSection("Only in A", count(names.a), names.a, Name),
                  ListSection("Only in B", count(names.b), names.b, Name),
                  ListSection("Texts and aliases", "", report.structure, EscapeHtml), TensorsSection(all));
  return absl::StrCat(html,
                      PageFoot("Made by ckpt diff --html. Every value that both have was read and compared; digests "
                               "were verified if the formats have them.",
                               scripts));
}

}  // namespace fsdp
