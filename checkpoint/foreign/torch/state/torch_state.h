// SPDX-License-Identifier: Apache-2.0
//
// StateOfTree: finds the model, the optimizer and the rest in a saved dict. torch_layout.h decides which branch is
// which; training_step.h finds the step. Pure, except for options.read and TakeTrainerState.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_STATE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct TorchState {
  std::string path = {};              // the file or directory, for messages; set by the source that owns the state
  StateDict contents;                 // dtypes and whole shapes; tensors have no shards
  std::vector<TorchLeaf> leaves;      // by entry of `contents`; unused for texts
  std::optional<int64_t> step;        // nullopt: unknown
  std::vector<std::string> left_out;  // TensorSource::left_out(): objects of Python classes
  SourceLayout layout;

  // Adds a tensor, or replaces the one with that key.
  void Set(StateKey key, DType dtype, const Shape& shape, TorchLeaf leaf);

  // Sets a step that is unknown from the trainer_state.json next to `path`, and adds its note (step_counter.h).
  void TakeTrainerState();

  // The source of the elements of tensor `key`. kNotFound names `path` and the key.
  absl::StatusOr<const TorchLeaf*> FindLeaf(const StateKey& key) const;

  // TensorSource::Read for every source of a TorchState: `read` reads the tensors of the tree, and the bytes of numbers
  // are copied. `out` has room for interval.size() elements. kInvalidArgument for an interval outside the tensor;
  // errors of `read` unchanged.
  absl::Status Read(const StateKey& key, const Interval& interval, const TorchTensorReader& read, std::byte* out) const;
};

// Finds the state dict in `root`, which is consumed on the way, and whose tensors have `types`, indexed by
// TorchNode::tensor(). Objects of Python classes are left out with options.skip_objects, and are otherwise a
// kInvalidArgument that names them. Tensors in param_groups become a part of that text; flat parameters of FSDP1 are
// divided into parameters if their layout is known. Optimizer state whose parameters cannot be identified (ids without
// an order) becomes extra values, named by their paths, and a note of the layout has the reason. kInvalidArgument, with
// the reason, for a tree that is not a state dict, for flat parameters without a layout, and for errors of LayoutOf;
// kDataLoss for a name that occurs twice.
absl::StatusOr<TorchState> StateOfTree(TorchNode root, const TorchLeafTypes& tensors,
                                       const TorchStateOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_STATE_H_
