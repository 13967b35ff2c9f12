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

#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/source/value_statistics.h"

namespace fsdp {

// Rows of a chart, at most; more layers or files share rows.
inline constexpr size_t kMaxLayerRows = 64;
inline constexpr size_t kMaxFileRows = 48;

// The layer of a parameter: "transformer.h.11" for "transformer.h.11.attn.weight". That is the name up to its first
// component that is a number or, if there is none, without its last component.
std::string LayerOf(const std::string& fqn);

// One row of a chart: a layer, or several neighbouring ones.
struct LayerRow {
  std::string name;  // "transformer.h.0", or "transformer.h.0–3"
  int64_t model_bytes = 0;
  int64_t optim_bytes = 0;
  ValueStatistics weights;                        // floating-point tensors of the model
  std::map<std::string, ValueStatistics> states;  // of the optimizer, by state name; scalars left out
};

// One row of the chart of files: a file, or several neighbouring ones. The vectors have one element for each LayerRow.
struct FileRow {
  std::string name;                  // "rank-00000-of-00064.h5", or "rank-00000–00001-of-00064.h5"
  std::vector<int64_t> model_bytes;  // by layer
  std::vector<int64_t> optim_bytes;
  int64_t extra_bytes = 0;

  int64_t payload_bytes() const;  // all of the above
};

// All rows. The sizes of the vectors are at most kMaxLayerRows and kMaxFileRows.
struct CheckpointLayers {
  std::vector<LayerRow> layers;  // in the order of the checkpoint
  std::vector<FileRow> files;
  ValueStatistics weights;  // of all layers
};

// The statistics of tensors by their keys, as ReadStatistics returns them.
using TensorStatistics = std::map<StateKey, ValueStatistics>;

// `statistics` may lack tensors, which then add nothing to the statistics of their layer. O(tensors + intervals). Pure.
CheckpointLayers LayersOf(const Manifest& manifest, const TensorStatistics& statistics);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_CHECKPOINT_LAYERS_H_
