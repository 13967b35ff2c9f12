// SPDX-License-Identifier: Apache-2.0
//
// TrainedStates: the parameters that were trained and the state of their optimizer, by name, from the optimizer files
// of ZeRO 1, 2 and 3 (*_optim_states.pt) or from the folders of a universal checkpoint (zero/NAME/).
//
//   ZeRO 1, 2   of each group its parameters, in the order of param_shapes, each followed by its alignment padding; the
//               whole is padded and cut into equal parts for the ranks. The state is as long as a part; the fp32 part
//               of the last ranks may be without its padding
//   ZeRO 3      see flat_space.h
//
// param_slice_mappings, which also says where a parameter is, is in another order than the data with
// round_robin_gradients: it is not used.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_TRAINED_STATES_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_TRAINED_STATES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"
#include "fsdp/checkpoint/foreign/deepspeed/model_states.h"
#include "fsdp/checkpoint/foreign/deepspeed/stored_tensors.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

struct TrainedStates {
  // Numbers of StoredTensors by name: trained parameters, of a universal checkpoint all, and frozen ones that are in
  // parts of ranks.
  absl::flat_hash_map<std::string, int> parameters;
  std::vector<std::string> order;  // the names in `parameters`

  // {"state": {NAME: {"exp_avg": ..., "step": ...}}, "param_groups": [{..., "params": [NAME, ...]}]}; no members if
  // there is no state, or it is not wanted.
  TorchNode optimizer;
  TorchNode others;  // entries of the optimizer's file besides, such as the loss scale
  std::vector<std::string> left_out;
};

// Reads `files.optim` and calls StoredTensors::SetParameters. Of each rank only the places of its flat tensors are
// kept. kDataLoss names the file that contradicts the shapes or another file; kInvalidArgument state that has no parts.
absl::StatusOr<TrainedStates> ReadZeroStates(const DeepSpeedFiles& files, const ModelStates& model,
                                             const TensorSourceOptions& options, StoredTensors& tensors);

// Reads the folders of a universal checkpoint. `model` without groups: there is no model file, and the folders say what
// there is. kNotFound names a parameter's file that is missing.
absl::StatusOr<TrainedStates> ReadUniversalStates(const DeepSpeedFiles& files, const ModelStates& model,
                                                  const TensorSourceOptions& options, StoredTensors& tensors);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_TRAINED_STATES_H_
