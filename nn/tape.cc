// SPDX-License-Identifier: Apache-2.0
//
// The stack of saved tensors, and the bound on how far the host runs ahead. Putting work on a stream takes microseconds
// and running it takes milliseconds, and a temporary is freed only when the work that uses it has run. A host that
// issued a whole backward pass at once would thus hold the temporaries of all layers at one time. So Empty puts an
// event on the stream after every 32 MiB that it hands out, and waits for the event before:
//
//   handed out   |--- 32 MiB ---|--- 32 MiB ---|--- 32 MiB ---|
//   events                     e1             e2             e3      at e2 wait for e1, at e3 for e2, ...
//
// At most two such distances are in flight. The wait is short where the device keeps up, and never idles it, since the
// last 32 MiB of work are still queued.
#include "fsdp/nn/tape.h"

#include <utility>

#include "absl/status/status.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {
namespace {

// Small against the memory of a step, large against one layer's temporaries of a small model.
constexpr int64_t kBytesBetweenMarks = int64_t{32} << 20;

}  // namespace

Tape::Tape(Stream& stream, const LayerOps& ops, bool keep_for_backward)
    : stream_(stream), ops_(ops), keep_for_backward_(keep_for_backward) {}

absl::StatusOr<Tensor> Tape::Empty(DType dtype, Shape shape) {
  bytes_since_mark_ += shape.numel() * SizeOf(dtype);
  // While the stream's work is captured nothing runs, so an event would never be reached; and memory that is freed
  // during a capture serves the capture again at once (cuda/capture_arena.h), so there is nothing to bound.
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
