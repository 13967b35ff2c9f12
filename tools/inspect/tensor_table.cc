// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/tensor_table.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/natural_order.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/inspect/model_order.h"
#include "fsdp/tools/inspect/page_charts.h"
#include "fsdp/tools/page/bar_chart.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

// Tensors with at most this many intervals show each of them in their bar.
constexpr size_t kMaxDrawnShards = 16;

std::string Size(int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

int64_t BytesOf(const StoredTensor& tensor) { return tensor.shape.numel() * SizeOf(tensor.dtype); }

// With values in one file only, a column of shards would say nothing.
bool HasShards(const Manifest& manifest) {
  std::set<int> files;
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const StoredInterval& part : tensor.intervals) files.insert(part.file);
    if (files.size() > 1) return true;
  }
  return false;
}

const char* KindOf(Section section) {
  return section == Section::kModel ? "model" : section == Section::kOptimState ? "optim" : "extra";
}

// The places of a tensor's elements: a part for each interval, in two alternating shades.
std::string ShardsOf(const StoredTensor& tensor, const Manifest& manifest) {
  if (tensor.intervals.size() > kMaxDrawnShards) return absl::StrCat(tensor.intervals.size(), " shards");
  const char* kind = KindOf(tensor.key.section);
  std::vector<BarPart> parts;
  for (size_t i = 0; i < tensor.intervals.size(); ++i) {
    const StoredInterval& part = tensor.intervals[i];
    parts.push_back({static_cast<double>(part.interval.size()), absl::StrCat(kind, i % 2 == 0 ? "" : " odd"),
                     absl::StrCat(manifest.files[part.file].name, " ", part.interval.ToString())});
  }
  return BarSvg(parts, static_cast<double>(tensor.shape.numel()), 10);
}

// The name without its section, which its colour shows; the state of a parameter after it.
std::string NameCell(const StoredTensor& tensor) {
  const StateKey& key = tensor.key;
  return absl::StrCat("<td class=\"name\" title=\"", Html(key.ToString()),
                      "\"><svg viewBox=\"0 0 10 10\"><rect class=\"", KindOf(key.section),
                      "\" width=\"10\" height=\"10\"/></svg>", Name(key.fqn),
                      key.state.empty() ? "" : absl::StrCat(" <small>", Name(key.state), "</small>"), "</td>");
}

std::string TensorRow(const StoredTensor& tensor, const Manifest& manifest, const ValueStatistics& statistics,
                      bool has_shards) {
  OctaveRange range;
  range.Include(statistics);
  const NonFinite& nonfinite = statistics.nonfinite;
  const auto number = [](std::optional<double> value) { return NumberCell(Short(value), value); };
  const auto extreme = [&](double value) {
    return number(statistics.finite() > 0 ? std::optional<double>(value) : std::nullopt);
  };
  return absl::StrCat(
      "<tr class=\"", KindOf(tensor.key.section), nonfinite.any() ? " bad" : "", "\">", NameCell(tensor), "<td>",
      std::string(DTypeName(tensor.dtype)), "</td><td>", tensor.shape.ToString(), "</td>",
      NumberCell(Size(BytesOf(tensor)), static_cast<double>(BytesOf(tensor))), extreme(statistics.min),
      extreme(statistics.max), number(statistics.mean()), number(statistics.deviation()),
      nonfinite.any() ? NumberCell(absl::StrCat(Count(nonfinite.nan), " / ", Count(nonfinite.inf)),
                                   static_cast<double>(nonfinite.nan) + static_cast<double>(nonfinite.inf), "bad")
                      : NumberCell("–", 0),
      range.last >= range.first ? absl::StrCat("<td class=\"chart\">", HistogramSvg(statistics, range, 20), "</td>")
                                : "<td class=\"empty\"></td>",
      has_shards ? absl::StrCat("<td class=\"shards\">", ShardsOf(tensor, manifest), "</td>") : "", "</tr>\n");
}

// Indices of the tensors with rows, in the order of the checkpoint.
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

struct Group {
  std::string layer;
  std::vector<size_t> tensors;  // in the order of their rows
};

// Extra values, which belong to no layer, are the last group.
std::vector<Group> GroupsOf(const Manifest& manifest, const std::vector<size_t>& shown) {
  std::map<std::string, std::vector<size_t>> by_layer;
  Group extra = {"extra values", {}};
  for (const size_t i : shown) {
    const StateKey& key = manifest.tensors[i].key;
    (key.section == Section::kExtra ? extra.tensors : by_layer[LayerOf(key.fqn)]).push_back(i);
  }
  std::vector<std::string> layers;
  for (const auto& [layer, tensors] : by_layer) layers.push_back(layer);
  std::vector<Group> groups;
  for (const std::string& layer : InModelOrder(layers)) groups.push_back({layer, std::move(by_layer[layer])});
  if (!extra.tensors.empty()) groups.push_back(std::move(extra));
  for (Group& group : groups) {
    std::stable_sort(group.tensors.begin(), group.tensors.end(), [&](size_t a, size_t b) {
      const StateKey& x = manifest.tensors[a].key;
      const StateKey& y = manifest.tensors[b].key;
      return x.fqn != y.fqn ? IsNaturallyBefore(x.fqn, y.fqn)
                            : std::tie(x.section, x.state) < std::tie(y.section, y.state);
    });
  }
  return groups;
}

// The heading of a group.
std::string GroupRow(const Group& group, const Manifest& manifest, size_t columns) {
  int64_t nbytes = 0;
  for (const size_t i : group.tensors) nbytes += BytesOf(manifest.tensors[i]);
  return absl::StrCat("<tr class=\"group\"><th scope=\"rowgroup\" colspan=\"", columns, "\">", Name(group.layer),
                      "<span>", Counted(std::ssize(group.tensors), "tensor"), ", ", Size(nbytes),
                      "</span></th></tr>\n");
}

}  // namespace

std::vector<TableColumn> TensorColumns(const Manifest& manifest) {
  std::vector<TableColumn> columns = {{"name"}, {"dtype"}, {"shape", false, false}};
  for (const char* number : {"bytes", "min", "max", "mean", "deviation", "NaN / inf"})
    columns.push_back({number, true});
  columns.push_back({"values", false, false});
  if (HasShards(manifest)) columns.push_back({"shards", false, false});
  return columns;
}

std::string TensorsSection(const Manifest& manifest, const TensorStatistics& statistics) {
  const std::vector<size_t> shown = ShownTensors(manifest);
  std::string note = "All of them, by layer.";
  if (shown.size() < manifest.tensors.size()) {
    note = absl::StrCat("The ", shown.size(), " largest of ", Count(static_cast<int64_t>(manifest.tensors.size())),
                        ", by layer; ckpt inspect --tensors lists all.");
  }
  const std::vector<TableColumn> columns = TensorColumns(manifest);
  const bool has_shards = HasShards(manifest);
  std::string html = absl::StrCat(Opening("Tensors", note), DataTable("tensors", columns));
  for (const Group& group : GroupsOf(manifest, shown)) {
    absl::StrAppend(&html, "<tbody>", GroupRow(group, manifest, columns.size()));
    for (const size_t i : group.tensors) {
      const auto found = statistics.find(manifest.tensors[i].key);
      absl::StrAppend(&html, TensorRow(manifest.tensors[i], manifest,
                                       found == statistics.end() ? ValueStatistics() : found->second, has_shards));
    }
    html += "</tbody>\n";
  }
  return html + "</table></div></section>\n";
}

}  // namespace fsdp
