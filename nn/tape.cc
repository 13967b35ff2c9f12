// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/tape.h"

#include <utility>

#include "absl/status/status.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {
namespace {

// Work is put on a stream far faster than it runs: without a limit, a whole backward pass would have its memory at
// once, twice what its tensors need one after another. The limit is two such distances.
constexpr int64_t kBytesBetweenMarks = int64_t{32} << 20;

}  // namespace

Tape::Tape(Stream& stream, const LayerOps& ops, bool keep_for_backward)
    : stream_(stream), ops_(ops), keep_for_backward_(keep_for_backward) {}

absl::StatusOr<Tensor> Tape::Empty(DType dtype, Shape shape) {
  bytes_since_mark_ += shape.numel() * SizeOf(dtype);
  // What is captured does not run, and what it frees serves it again at once.
  if (bytes_since_mark_ >= kBytesBetweenMarks && !IsCapturing(stream_)) {
    bytes_since_mark_ = 0;
    FSDP_RETURN_IF_ERROR(std::exchange(mark_, stream_.Record()).Synchronize());
  }
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
