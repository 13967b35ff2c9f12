// SPDX-License-Identifier: Apache-2.0
//
// Two folds keep the charts readable. Tensors fold into layers by their names (LayerOf); then, if there are more layers
// than rows, each row takes as many neighbouring layers as needed. Files fold into rows in the same way. Everything is
// a sum over tensors, so one pass over the manifest fills all rows.
#include "fsdp/tools/inspect/checkpoint_layers.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/tools/inspect/model_order.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

// The number of neighbours per row, if `count` of them must fit in `most` rows.
size_t RowsPerRow(size_t count, size_t most) { return (count + most - 1) / most; }

bool IsWordByte(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// "transformer.h.0–3" of "transformer.h.0" and "transformer.h.3": the common beginning and end appear once. Both are
// cut at word borders, so that "h.10" and "h.19" become "h.10–19" and not "h.10–9".
std::string Range(const std::string& first, const std::string& last) {
  if (first == last) return first;
  const size_t shorter = std::min(first.size(), last.size());
  size_t prefix = 0;
  while (prefix < shorter && first[prefix] == last[prefix]) ++prefix;
  while (prefix > 0 && IsWordByte(first[prefix - 1])) --prefix;
  size_t suffix = 0;
  while (suffix < shorter - prefix && first[first.size() - 1 - suffix] == last[last.size() - 1 - suffix]) ++suffix;
  while (suffix > 0 && IsWordByte(first[first.size() - suffix])) --suffix;
  return absl::StrCat(first.substr(0, first.size() - suffix), "–", last.substr(prefix));
}

LayerIndex IndexOf(const Manifest& manifest) {
  std::vector<std::string> layers;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (tensor.key.section != Section::kExtra) layers.push_back(LayerOf(tensor.key.fqn));
  }
  return LayerIndex(layers);
}

void AddToLayer(const StoredTensor& tensor, const TensorStatistics& statistics, LayerRow& row) {
  const int64_t nbytes = tensor.shape.numel() * SizeOf(tensor.dtype);
  (tensor.key.section == Section::kModel ? row.model_bytes : row.optim_bytes) += nbytes;
  const auto found = statistics.find(tensor.key);
  // `statistics` may lack a tensor, and integers have no distribution worth drawing.
  if (found == statistics.end() || !IsFloatingPoint(PartOf(tensor.dtype))) return;
  if (tensor.key.section == Section::kModel) {
    row.weights.Add(found->second);
    // A step count is a scalar state: it is not of the scale of the moments.
  } else if (tensor.shape.rank() > 0) {
    row.states[tensor.key.state].Add(found->second);
  }
}

// An interval is in one file, so the bytes of a tensor are divided among files exactly as its intervals are.
void AddToFiles(const StoredTensor& tensor, size_t layer, size_t files_per_row, std::vector<FileRow>& rows) {
  for (const StoredInterval& part : tensor.intervals) {
    FileRow& row = rows[static_cast<size_t>(part.file) / files_per_row];
    const int64_t nbytes = part.interval.size() * SizeOf(tensor.dtype);
    if (tensor.key.section == Section::kExtra) {
      row.extra_bytes += nbytes;
    } else {
      (tensor.key.section == Section::kModel ? row.model_bytes : row.optim_bytes)[layer] += nbytes;
    }
  }
}

}  // namespace

LayerIndex::LayerIndex(const std::vector<std::string>& layers) {
  const std::set<std::string> distinct(layers.begin(), layers.end());
  names_ = InModelOrder({distinct.begin(), distinct.end()});
  for (size_t i = 0; i < names_.size(); ++i) index_.emplace(names_[i], i);
  per_row_ = std::max<size_t>(1, RowsPerRow(names_.size(), kMaxLayerRows));
}

std::vector<std::string> LayerIndex::Rows() const {
  std::vector<std::string> rows;
  for (size_t i = 0; i < names_.size(); i += per_row_) {
    rows.push_back(Range(names_[i], names_[std::min(i + per_row_, names_.size()) - 1]));
  }
  return rows;
}

int64_t FileRow::payload_bytes() const {
  const int64_t model = std::accumulate(model_bytes.begin(), model_bytes.end(), int64_t{0});
  return std::accumulate(optim_bytes.begin(), optim_bytes.end(), model) + extra_bytes;
}

std::string LayerOf(const std::string& fqn) {
  const std::vector<std::string> parts = absl::StrSplit(fqn, '.');
  std::string layer;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool is_number = !parts[i].empty() && std::all_of(parts[i].begin(), parts[i].end(), absl::ascii_isdigit);
    if (!is_number && i + 1 == parts.size()) break;
    absl::StrAppend(&layer, i == 0 ? "" : ".", parts[i]);
    if (is_number) return layer;
  }
  return layer.empty() ? fqn : layer;
}

// Extra values have no layer: AddToFiles counts them separately, and ignores the layer passed for them.
CheckpointLayers LayersOf(const Manifest& manifest, const TensorStatistics& statistics) {
  CheckpointLayers result;
  const LayerIndex index = IndexOf(manifest);
  for (std::string& name : index.Rows()) result.layers.emplace_back().name = std::move(name);
  // At least 1: a checkpoint may have no files, and a division by 0 follows otherwise.
  const size_t files_per_row = std::max<size_t>(1, RowsPerRow(manifest.files.size(), kMaxFileRows));
  for (size_t i = 0; i < manifest.files.size(); i += files_per_row) {
    FileRow& row = result.files.emplace_back();
    const size_t last = std::min(i + files_per_row, manifest.files.size()) - 1;
    row.name = Range(manifest.files[i].name, manifest.files[last].name);
    for (size_t file = i; file <= last; ++file) row.nbytes += manifest.files[file].nbytes;
    row.model_bytes.resize(result.layers.size());
    row.optim_bytes.resize(result.layers.size());
  }
  for (const StoredTensor& tensor : manifest.tensors) {
    const bool is_extra = tensor.key.section == Section::kExtra;
    const size_t layer = is_extra ? 0 : index.RowOf(tensor.key.fqn);
    AddToFiles(tensor, layer, files_per_row, result.files);
    if (!is_extra) AddToLayer(tensor, statistics, result.layers[layer]);
  }
  for (const LayerRow& row : result.layers) result.weights.Add(row.weights);
  const auto empty = std::stable_partition(result.files.begin(), result.files.end(),
                                           [](const FileRow& row) { return row.payload_bytes() > 0; });
  result.empty_files.assign(empty, result.files.end());
  result.files.erase(empty, result.files.end());
  return result;
}

}  // namespace fsdp
