// SPDX-License-Identifier: Apache-2.0
//
// The memory of gradient_reduction.cc: slots, and what its collectives read in place of a gradient.
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/comm_memory.h"
#include "fsdp/fsdp/units/gradient_reduction.h"

namespace fsdp {

// In the order in which Allocate asks for them.
std::vector<SlotMemory::Pieces> GradientReduction::Pieces() const {
  std::vector<SlotMemory::Pieces> pieces = {{1, plan_.root_gradients},
                                            {plan_.slots.gradients, plan_.gradient_slot},
                                            {plan_.reduce_inputs, plan_.reduce_staging},
                                            {1, plan_.download_staging}};
  for (int index = 0; index < units_.size(); ++index) pieces.push_back({1, GroupBytes(index)});
  return pieces;
}

// All of it is made anew together, in one arena (slot_memory.h).
absl::Status GradientReduction::Allocate() {
  memory_.Forget();
  absl::Status allocated = memory_.Reserve(Pieces());
  if (allocated.ok()) allocated = AllocateSlots();
  if (allocated.ok()) allocated = AllocateForGroups();
  return memory_.Register(allocated);
}

absl::Status GradientReduction::AllocateSlots() {
  if (plan_.root_gradients > 0) {
    FSDP_ASSIGN_OR_RETURN(root_gradients_, SlotPool::Create(memory_, 1, plan_.root_gradients, "the root's gradients"));
  }
  FSDP_ASSIGN_OR_RETURN(gradients_,
                        SlotPool::Create(memory_, plan_.slots.gradients, plan_.gradient_slot, "unsharded gradients"));
  inputs_.clear();
  input_ = 0;
  for (int i = 0; i < plan_.reduce_inputs; ++i) {
    FSDP_ASSIGN_OR_RETURN(Buffer input, memory_.Allocate(plan_.reduce_staging));
    inputs_.push_back({std::move(input), Event()});
  }
  FSDP_ASSIGN_OR_RETURN(Buffer download_staging, memory_.Allocate(plan_.download_staging));
  store_ = GradientStore(ops_, std::move(download_staging));
  return absl::OkStatus();
}

bool GradientReduction::has_custom_input(const Unit& unit) const {
  return unit.controls.reduce_scatter != nullptr && unit.sharded();
}

// Earlier reductions, which may be on another stream, read staging, or memory that a ReduceScatterComm may hand out
// again. `writer` waits for them.
absl::StatusOr<Tensor> GradientReduction::StagingOf(int index, Stream& writer) {
  const Unit& unit = units_.unit(index);
  const Shape padded{unit.grad_layout.padded_numel()};
  if (!has_custom_input(unit)) {
    input_ = (input_ + 1) % inputs_.size();
    writer.Wait(inputs_[input_].free);
    return Tensor(inputs_[input_].memory, unit.reduce_dtype, padded);
  }
  writer.Wait(reduced_);
  FSDP_ASSIGN_OR_RETURN(const Tensor memory, unit.controls.reduce_scatter->Allocate(padded.numel(), unit.reduce_dtype,
                                                                                    *unit.reduce_scatter_group()));
  FSDP_RETURN_IF_ERROR(CheckCommMemory(memory, unit.reduce_dtype, unit, padded.numel(), "ReduceScatterComm"));
  return memory.View(padded);
}

// The memory that the last reduction read is free once the work on `stream` is done.
void GradientReduction::MarkReduced(Stream& stream) {
  reduced_ = stream.Record();
  inputs_[input_].free = reduced_;
}

}  // namespace fsdp
