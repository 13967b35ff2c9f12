// SPDX-License-Identifier: Apache-2.0
//
// OptimEntries: the contents of an optimizer's state dict without the elements of its tensors. All ranks agree on the
// entries before any of them moves elements: they are the order of a load's collectives.
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
  std::string scalar;  // the bytes of a scalar; empty for tensors, and on a rank that does not hold the scalar

  bool is_scalar() const { return shape.rank() == 0; }
  StateKey key() const { return StateKey::OptimState(fqn, state); }

  // A scalar's value; kInvalidArgument, naming it, unless it is a number.
  absl::StatusOr<double> Value() const;
};

struct OptimEntries {
  std::vector<OptimEntry> entries;
  std::optional<std::string> param_groups;  // nullopt if the state dict has no param_groups
};

// A tensor of one element in newly allocated host memory: of these bytes, or a float32.
Tensor HostScalar(DType dtype, const std::string& bytes);
Tensor HostScalar(float value);

// The entries of this rank's state dict.
OptimEntries EntriesOf(const StateDict& state);

// The entries to load from `state`: this rank's own for kFull and kLocal, else rank 0's. For kSharded,
// kFailedPrecondition names an entry of rank 0 that another rank lacks, and the rank. Collective for kFullFirst and
// kSharded.
absl::StatusOr<OptimEntries> AgreeOnEntries(const AllRanks& ranks, const StateDict& state, StateSource from);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_ENTRIES_H_
