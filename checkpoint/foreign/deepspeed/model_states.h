// SPDX-License-Identifier: Apache-2.0
//
// ModelStates: the model files of a checkpoint (*_model_states.pt), read and compared: what is a parameter, a buffer, a
// frozen parameter or another name of one, and the shapes in the order in which ZeRO lays parameters out.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_MODEL_STATES_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_MODEL_STATES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_values.h"
#include "fsdp/checkpoint/foreign/deepspeed/flat_space.h"
#include "fsdp/checkpoint/foreign/deepspeed/stored_tensors.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

struct ModelStates {
  // From the file of rank 0.
  TorchNode module;                 // the low-precision model and the buffers, by name; ZeRO 3: empty parameters
  TorchNode optimizer;              // ZeRO 0: the whole optimizer; else no members
  TorchNode others;                 // the program's own entries, and what the engine counts
  std::vector<NamedShapes> groups;  // param_shapes: of each group, or sub-group of ZeRO 3; empty for ZeRO 0
  NamedShapes frozen;               // frozen_param_shapes
  std::map<std::string, std::string> shared;  // the name without data -> the name with data
  int world_size = 1;
  std::optional<int64_t> step;  // global_steps
  std::vector<std::string> left_out;
  int64_t widened = 0;  // buffers of `module` that became float32

  // frozen_param_fragments: the whole parameter's view, by name; of ZeRO 3 each rank's runs, in the order of `frozen`.
  std::map<std::string, int> frozen_views;
  std::vector<std::vector<FlatRun>> frozen_runs;
};

// Reads `files.model`, of which there is at least one. kInvalidArgument names a kind of parallelism that is not read;
// kNotFound a rank's file that is missing; kDataLoss the file that contradicts another.
absl::StatusOr<ModelStates> ReadModelStates(const DeepSpeedFiles& files, const TensorSourceOptions& options,
                                            StoredTensors& tensors);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_MODEL_STATES_H_
