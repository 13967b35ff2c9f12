// SPDX-License-Identifier: Apache-2.0
//
// StateBuffers: an optimizer's states that have a value for each element, in the dtype of their parameter, as
// PyTorch's. Each state is one buffer for each dtype, cut into the parameters' slices. The first step or the first load
// allocates the memory for all parameters; parameters that are added later have buffers of their own. A parameter may
// have some of the states only, and a factor (FactorShape) is whole.
#ifndef FSDP_OPTIM_STATE_BUFFERS_H_
#define FSDP_OPTIM_STATE_BUFFERS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/optim/parameter_state.h"
#include "fsdp/optim/sharded_parameter.h"

namespace fsdp {

class StateBuffers {
 public:
  // `names` are PyTorch's ("exp_avg"). The parameters must outlive it. Allocates nothing.
  StateBuffers(std::vector<std::string> names, absl::Span<ShardedParameter* const> parameters);

  const std::vector<std::string>& names() const { return names_; }

  // Leaves out states of parameter `index`. Precondition: no state exists yet.
  void Limit(size_t index, const StateRule& rule);

  // Whether parameter `index` has state number `state`, and the names of all that it has, in the order of names().
  bool has(size_t state, size_t index) const { return has_[index][state]; }
  std::vector<std::string> NamesOf(size_t index) const;

  // Adds parameters, with the states that `rule` gives them, none of which exists, after the others. Blocks if there is
  // memory, since it allocates theirs; an error of a device's allocator adds none.
  absl::Status Add(absl::Span<ShardedParameter* const> parameters, const StateRule& rule);

  // Makes the states of parameter `index` exist, as zeros if they did not. Blocks on the first call, which allocates
  // for all parameters; returns the errors of the devices' allocators, and a later call tries again.
  absl::Status Create(size_t index);

  // TakeBackStep undoes the Creates since BeginStep: those states, which are zero, do not exist any more. Their memory
  // is kept. Precondition: nothing was written to them.
  void BeginStep() { created_.clear(); }
  void TakeBackStep();

  // True once Create was called for `index`.
  bool exists(size_t index) const { return exists_[index]; }

  // State number `state` of parameter `index`; undefined if has(state, index) is false. Precondition: exists(index).
  const Tensor& slice(size_t state, size_t index) const { return slices_[state][index]; }

  // A state by name; undefined while it does not exist, unless `create`, which creates it. kInvalidArgument for an
  // unknown index, and for a name that the parameter does not have.
  absl::StatusOr<Tensor> Find(size_t index, std::string_view name, bool create);

 private:
  absl::Status AllocateFirst();

  // Allocates for the parameters from index `first` on.
  absl::Status Allocate(size_t first);
  absl::Status AllocateOn(Device& device, DType dtype, size_t first);

  std::vector<std::string> names_;
  std::vector<ShardedParameter*> parameters_;
  std::vector<std::vector<bool>> has_;       // [parameter][state]
  std::vector<bool> exists_;                 // by parameter
  std::vector<size_t> created_;              // parameters whose state came into being since BeginStep
  std::vector<std::vector<Tensor>> slices_;  // [state][parameter]; empty before the first Create
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_STATE_BUFFERS_H_
