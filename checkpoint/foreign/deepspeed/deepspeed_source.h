// SPDX-License-Identifier: Apache-2.0
//
// OpenDeepSpeedSource: a checkpoint of DeepSpeed, of ZeRO 0 to 3 or universal, as a TensorSource. ZeRO keeps the
// parameters that are trained in float32, cut into parts of ranks; these are the model, and the copies in low precision
// that the forward pass uses are left out. If there are no such parts (ZeRO 0, buffers, frozen parameters of ZeRO 1)
// the module's own values are the model. The state of the optimizer is joined in the same way.
//
//   file names    deepspeed_files.h      which files there are, of which rank
//   model files   model_states.h         names, shapes, buffers, aliases
//   the others    trained_states.h       parameters and optimizer state by name
//   bytes         stored_tensors.h       where the elements are; flat_space.h: in the parts of ranks
//
// Together they become one tree, in which torch_state.h finds the state dict.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// Opens a TAG, or the TAG that a ROOT names. Errors of ListDeepSpeedFiles, ReadModelStates, ReadZeroStates and
// StateOfTree.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenDeepSpeedSource(const std::string& path,
                                                                  const TensorSourceOptions& options = {});

// The traits of every source that this opens, and of its driver.
const FormatTraits& DeepSpeedTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_SOURCE_H_
