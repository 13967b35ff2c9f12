// SPDX-License-Identifier: Apache-2.0
//
// Moves the inputs of a model to the device that it computes on, as PyTorch's FSDP does for the root's.
#ifndef FSDP_FSDP_UNITS_PLACE_INPUTS_H_
#define FSDP_FSDP_UNITS_PLACE_INPUTS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/nn/tape.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Replaces each defined tensor of host memory by a copy on the tape's device, if that is another one; the copy runs in
// stream order, and the stream holds the original until then. kInvalidArgument, naming the input and both devices, for
// memory of another GPU; kFailedPrecondition where the tape's work is captured, since a replay would read the same host
// memory again, whatever it holds by then. Does not wait for the device.
absl::Status PlaceInputs(absl::Span<Tensor> inputs, Tape& tape);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_PLACE_INPUTS_H_
