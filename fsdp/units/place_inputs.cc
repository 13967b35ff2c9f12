// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/place_inputs.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {
namespace {

absl::Status PlaceInput(size_t index, const DeviceId& device, Tensor& input, Tape& tape) {
  const std::string is = absl::StrCat("input ", index, " of the model lies on ", DeviceName(input.device()),
                                      ", and the model computes on ", DeviceName(device));
  if (input.device().type != DeviceType::kCpu) return absl::InvalidArgumentError(absl::StrCat(is, ": copy it there"));
  if (IsCapturing(tape.stream())) {
    return absl::FailedPreconditionError(
        absl::StrCat(is, ": a captured step reads tensors of its device, which each replay finds filled anew"));
  }
  FSDP_ASSIGN_OR_RETURN(Tensor placed, tape.Empty(input.dtype(), input.shape()));
  tape.stream().CopyAsync(placed.data(), input.data(), input.nbytes());
  tape.stream().RunAlways([host = std::exchange(input, placed)](const absl::Status& so_far) { return so_far; });
  return absl::OkStatus();
}

}  // namespace

absl::Status PlaceInputs(absl::Span<Tensor> inputs, Tape& tape) {
  const DeviceId device = tape.device().id();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i].device() == device) continue;
    FSDP_RETURN_IF_ERROR(PlaceInput(i, device, inputs[i], tape));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
