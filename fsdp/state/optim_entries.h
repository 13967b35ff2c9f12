// SPDX-License-Identifier: Apache-2.0
//
// OptimEntries: what an optimizer's state dict contains, without its tensors' elements, as all ranks agree on it before
// any of them moves one: the order of a load's collectives.
#ifndef FSDP_FSDP_STATE_OPTIM_ENTRIES_H_
#define FSDP_FSDP_STATE_OPTIM_ENTRIES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// PyTorch's scalar state of every parameter.
inline constexpr char kOptimStep[] = "step";

// One state of one parameter.
struct OptimEntry {
  std::string fqn;
  std::string state;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::string scalar;  // the bytes of a value without dimensions; empty for others, and on a rank that does not have it

  bool is_scalar() const { return shape.rank() == 0; }
  StateKey key() const { return StateKey::OptimState(fqn, state); }

  // A scalar's value; kInvalidArgument, naming it, unless it is a number.
  absl::StatusOr<double> Value() const;
};

struct OptimEntries {
  std::vector<OptimEntry> entries;
  std::optional<std::string> param_groups;  // absent in the state dict, absent in what is made of it
};

// One element in host memory of its own: of these bytes, or a float32.
Tensor HostScalar(DType dtype, const std::string& bytes);
Tensor HostScalar(float value);

// Those of this rank.
OptimEntries EntriesOf(const StateDict& state);

// Those to load from `state`: rank 0's where it alone has them, or where ranks have a chunk each; then it is an error,
// naming the entry and the rank, when a rank lacks one. Collective for kFullFirst and kSharded.
absl::StatusOr<OptimEntries> AgreeOnEntries(const AllRanks& ranks, const StateDict& state, StateSource from);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_ENTRIES_H_
