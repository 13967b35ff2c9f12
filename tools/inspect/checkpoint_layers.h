// SPDX-License-Identifier: Apache-2.0
//
// CheckpointLayers: tensors put together by layer, and files by what they hold of each layer: what the charts of a page
// about a checkpoint show. Of bounded size however many tensors and files there are: neighbours share a row then.
#ifndef FSDP_TOOLS_INSPECT_CHECKPOINT_LAYERS_H_
#define FSDP_TOOLS_INSPECT_CHECKPOINT_LAYERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/source/value_statistics.h"

namespace fsdp {

inline constexpr size_t kMaxLayerRows = 64;
inline constexpr size_t kMaxFileRows = 48;

// "transformer.h.11" of transformer.h.11.attn.weight: all up to the first number; where there is none, all but the last
// component.
std::string LayerOf(const std::string& fqn);

struct LayerRow {
  std::string name;  // "transformer.h.0", or "transformer.h.0–3"
  int64_t model_bytes = 0;
  int64_t optim_bytes = 0;
  ValueStatistics weights;                        // floating-point tensors of the model
  std::map<std::string, ValueStatistics> states;  // of the optimizer, by state name; scalars left out
};

struct FileRow {
  std::string name;                  // "rank-00000-of-00064.h5", or "rank-00000–00001-of-00064.h5"
  std::vector<int64_t> model_bytes;  // by layer
  std::vector<int64_t> optim_bytes;
  int64_t extra_bytes = 0;

  int64_t payload_bytes() const;  // all of the above
};

struct CheckpointLayers {
  std::vector<LayerRow> layers;  // in the order of the checkpoint
  std::vector<FileRow> files;
  ValueStatistics weights;  // of all layers
};

using TensorStatistics = std::map<StateKey, ValueStatistics>;

CheckpointLayers LayersOf(const Manifest& manifest, const TensorStatistics& statistics);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_CHECKPOINT_LAYERS_H_
