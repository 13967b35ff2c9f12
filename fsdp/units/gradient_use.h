// SPDX-License-Identifier: Apache-2.0
//
// GradientUse: which parameters have a gradient after a backward. Under FSDP2's rules each parameter has its own, as in
// PyTorch's fully_shard: it has one if backward of some rank requested it (Parameter::Grad), so an optimizer skips the
// others. Under FSDP1's rules the parameters of a unit have one together, like their flat parameter.
#ifndef FSDP_FSDP_UNITS_GRADIENT_USE_H_
#define FSDP_FSDP_UNITS_GRADIENT_USE_H_

#include <vector>

#include "absl/status/status.h"
#include "fsdp/fsdp/units/unit.h"

namespace fsdp {

// Units are named by their index in the UnitStore. One thread.
class GradientUse {
 public:
  // `units` must outlive it.
  explicit GradientUse(const UnitStore& units) : units_(units) {}

  // A backward of the unit is over: marks the parameters that it requested, in addition to earlier backwards' ones.
  void MarkUsed(int index);

  // The unit's gradient was stored: sets ShardedParameter::has_grad of all that are trainable, until Agree.
  void MarkStored(int index);

  // Under FSDP2's rules: takes has_grad back for the gradients stored since the last call, unless backward of some rank
  // requested them or they existed before. Ranks send each other the requested ones in one exchange of the control
  // plane, which does not wait for a GPU. kFailedPrecondition if ranks stored gradients of different units. Collective.
  absl::Status Agree();

  // Forgets these marks, and every gradient: has_grad is false afterwards. True if a parameter had one.
  bool Discard();

 private:
  const UnitStore& units_;
  std::vector<int> stored_;  // units under FSDP2's rules, each once, stored since Agree
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_GRADIENT_USE_H_
