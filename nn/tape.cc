// SPDX-License-Identifier: Apache-2.0
#include "nn/tape.h"

#include <utility>

#include "absl/status/status.h"

namespace fsdp {

Tape::Tape(Stream& stream, const LayerOps& ops, bool keep_for_backward)
    : stream_(stream), ops_(ops), keep_for_backward_(keep_for_backward) {}

absl::StatusOr<Tensor> Tape::Empty(DType dtype, Shape shape) const {
  return Tensor::Empty(device(), dtype, std::move(shape));
}

void Tape::Save(Tensor t) {
  if (keep_for_backward_) saved_.push_back(std::move(t));
}

absl::StatusOr<Tensor> Tape::Restore() {
  if (saved_.empty()) {
    return absl::FailedPreconditionError(
        "nothing is saved on this tape: backward without its forward, twice, or on a tape that does not keep for "
        "backward");
  }
  Tensor last = std::move(saved_.back());
  saved_.pop_back();
  return last;
}

}  // namespace fsdp
