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
  // In the order in which layers and files first appear in the manifest.
  std::vector<LayerRow> layers;
  std::vector<FileRow> files;

  // The sum of LayerRow::weights over all layers.
  ValueStatistics weights;
};

// The statistics of tensors by their keys, as ReadStatistics returns them.
using TensorStatistics = std::map<StateKey, ValueStatistics>;

// `statistics` may lack tensors, which then add nothing to the statistics of their layer. O(tensors + intervals). Pure.
CheckpointLayers LayersOf(const Manifest& manifest, const TensorStatistics& statistics);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_CHECKPOINT_LAYERS_H_
