// SPDX-License-Identifier: Apache-2.0
//
// The memory that the collectives of gradient_reduction.cc read in place of a gradient.
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/comm_memory.h"
#include "fsdp/fsdp/units/gradient_reduction.h"

namespace fsdp {

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
                                                                                    unit.reduce_scatter_group()));
  FSDP_RETURN_IF_ERROR(CheckCommMemory(memory, unit.reduce_dtype, unit, padded.numel(), "ReduceScatterComm"));
  return memory.View(padded);
}

// The memory that the last reduction read is free once the work on `stream` is done.
void GradientReduction::MarkReduced(Stream& stream) {
  reduced_ = stream.Record();
  inputs_[input_].free = reduced_;
}

}  // namespace fsdp
