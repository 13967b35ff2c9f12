// SPDX-License-Identifier: Apache-2.0
//
// CheckpointLayers: the data of the charts on a page about a checkpoint: bytes and statistics of values by layer, and
// bytes by file and layer. The size is bounded: if there are many layers or files, neighbours share a row.
#ifndef FSDP_TOOLS_INSPECT_CHECKPOINT_LAYERS_H_
#define FSDP_TOOLS_INSPECT_CHECKPOINT_LAYERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/source/value_statistics.h"

namespace fsdp {

// Rows of a chart, at most; more layers or files share rows. The product of the two bounds the size of FileRow's
// vectors.
inline constexpr size_t kMaxLayerRows = 64;
inline constexpr size_t kMaxFileRows = 48;

// The layer of a parameter: "transformer.h.11" for "transformer.h.11.attn.weight". That is the name up to its first
// component that is a number or, if it has no number, without its last component.
std::string LayerOf(const std::string& fqn);

// A row of a chart: a layer, or several neighbouring ones.
struct LayerRow {
  // "transformer.h.0", or "transformer.h.0–3".
  std::string name;

  // Payload, in bytes, of the model's tensors and of the optimizer's states for them.
  int64_t model_bytes = 0;
  int64_t optim_bytes = 0;

  // Statistics of the model's floating-point tensors.
  ValueStatistics weights;

  // Statistics of the optimizer's states, by the name of the state ("exp_avg"); scalars are left out.
  std::map<std::string, ValueStatistics> states;
};

// A row of the chart of files: a file, or several neighbouring ones.
struct FileRow {
  // "rank-00000-of-00064.h5", or "rank-00000–00001-of-00064.h5".
  std::string name;

  // The sizes of the files themselves.
  int64_t nbytes = 0;

  // Payload in these files, in bytes. The vectors have an element for each LayerRow, in the order of the rows.
  std::vector<int64_t> model_bytes;
  std::vector<int64_t> optim_bytes;

  // Values that belong to no layer, such as a step count.
  int64_t extra_bytes = 0;

  // The sum of all bytes above.
  int64_t payload_bytes() const;
};

// All rows. The sizes of the vectors are at most kMaxLayerRows and kMaxFileRows.
struct CheckpointLayers {
  // Layers in the order of a model (model_order.h), files in the order of the manifest.
  std::vector<LayerRow> layers;
  std::vector<FileRow> files;

  // Files without a value: parity, and files that only describe others.
  std::vector<FileRow> empty_files;

  // The sum of LayerRow::weights over all layers.
  ValueStatistics weights;
};

// Maps the names of parameters to rows: LayerOf, and neighbours in the order of a model share a row if there are more
// than kMaxLayerRows.
class LayerIndex {
 public:
  // `layers` may repeat.
  explicit LayerIndex(const std::vector<std::string>& layers);

  // The names of the rows.
  std::vector<std::string> Rows() const;

  bool Has(const std::string& fqn) const { return index_.count(LayerOf(fqn)) != 0; }

  // Precondition: Has(fqn).
  size_t RowOf(const std::string& fqn) const { return index_.at(LayerOf(fqn)) / per_row_; }

 private:
  std::map<std::string, size_t> index_;
  std::vector<std::string> names_;
  size_t per_row_ = 1;
};

// The statistics of tensors by their keys, as ReadStatistics returns them.
using TensorStatistics = std::map<StateKey, ValueStatistics>;

// `statistics` may lack tensors, which then add nothing to the statistics of their layer. O(tensors + intervals). Pure.
CheckpointLayers LayersOf(const Manifest& manifest, const TensorStatistics& statistics);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_CHECKPOINT_LAYERS_H_
