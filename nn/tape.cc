// SPDX-License-Identifier: Apache-2.0
//
// The stack of saved tensors, and the bound on how far the host runs ahead. Putting work on a stream takes microseconds
// and running it takes milliseconds. If memory is in the order of the stream, a temporary that the host drops serves
// the next one, and there is nothing to bound. Otherwise (on the host) a temporary is freed only when the work that
// uses it has run, and issuing a whole backward pass would hold the temporaries of all layers at the same time. So
// Empty puts an event on the stream after every 32 MiB that it hands out, and waits for the event before:
//
//   handed out   |--- 32 MiB ---|--- 32 MiB ---|--- 32 MiB ---|
//   events                     e1             e2             e3      at e2 wait for e1, at e3 for e2, ...
//
// At most two such distances are in flight. The wait is short if the device keeps up, and never idles it, because the
// last 32 MiB of work are still queued.
#include "fsdp/nn/tape.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/nn/last_dim.h"
#include "fsdp/tensor/ordered_memory.h"

namespace fsdp {
namespace {

// Small against the memory of a step, large against one layer's temporaries of a small model.
constexpr int64_t kBytesBetweenMarks = int64_t{32} << 20;

constexpr int kStepBits = 40;
constexpr int kDrawBits = 24;

absl::Status NothingSaved() {
  return absl::FailedPreconditionError(
      "nothing is saved on this tape: backward without its forward, twice, or on a tape that does not keep for "
      "backward");
}

}  // namespace

Tape::Tape(Stream& stream, const LayerOps& ops, bool keep_for_backward)
    : stream_(stream), ops_(ops), keep_for_backward_(keep_for_backward), training_(keep_for_backward) {}

absl::StatusOr<Tensor> Tape::Empty(DType dtype, Shape shape) {
  const int64_t nbytes = shape.numel() * SizeOf(dtype);
  if (OrderedMemory* const memory = OrderedMemoryOf(stream_); memory != nullptr) {
    FSDP_ASSIGN_OR_RETURN(Buffer buffer, memory->AllocateInOrder(nbytes));
    return Tensor(std::move(buffer), dtype, std::move(shape));
  }
  // Counted before the allocation: one request above the distance waits for the mark before it, not for itself.
  bytes_since_mark_ += nbytes;
  if (bytes_since_mark_ >= kBytesBetweenMarks) {
    bytes_since_mark_ = 0;
    // Waits for the previous mark; the new one is left for the next time. An empty event is reached.
    FSDP_RETURN_IF_ERROR(std::exchange(mark_, stream_.Record()).Synchronize());
  }
  return Tensor::Empty(device(), dtype, std::move(shape));
}

absl::StatusOr<Tensor> Tape::EmptyRows(DType dtype, Shape shape) {
  const int64_t columns = shape.dim(shape.rank() - 1);
  return EmptyWithStride(dtype, std::move(shape), ops_.RowStride(dtype, columns));
}

absl::StatusOr<Tensor> Tape::EmptyLike(const Tensor& t, DType dtype) {
  if (t.is_contiguous()) return Empty(dtype, t.shape());
  return EmptyWithStride(dtype, t.shape(), t.row_stride());
}

absl::StatusOr<Tensor> Tape::EmptyWithStride(DType dtype, Shape shape, int64_t row_stride) {
  const int64_t columns = shape.dim(shape.rank() - 1);
  if (row_stride == columns) return Empty(dtype, std::move(shape));
  FSDP_ASSIGN_OR_RETURN(const Tensor memory, Empty(dtype, {shape.numel() / columns, row_stride}));
  return Tensor::WithPaddedRows(memory.buffer(), dtype, std::move(shape), row_stride);
}

absl::StatusOr<Tensor> Tape::Contiguous(const Tensor& t) {
  if (!t.defined() || t.is_contiguous()) return t;
  FSDP_ASSIGN_OR_RETURN(Tensor copy, Empty(t.dtype(), t.shape()));
  ops_.CopyRows(AsRows(t), AsRows(copy), stream_);
  return copy;
}

void Tape::Save(Tensor t) {
  if (keep_for_backward_) saved_.push_back(std::move(t));
}

absl::StatusOr<Tensor> Tape::Restore() {
  if (saved_.empty()) return NothingSaved();
  Tensor last = std::move(saved_.back());
  saved_.pop_back();
  return last;
}

absl::Status Tape::set_random_state(const RandomState& state) {
  if (state.step >> kStepBits != 0 || state.first_sample < 0 || state.samples < 1) {
    return absl::InvalidArgumentError(absl::StrCat("random state of step ", state.step, ", first sample ",
                                                   state.first_sample, ", ", state.samples,
                                                   " samples: expected a step below 2^40, a first sample of at least "
                                                   "0 and at least 1 sample"));
  }
  draws_->state = state;
  draws_->count = 0;
  return absl::OkStatus();
}

absl::StatusOr<RandomDraw> Tape::NextDraw() {
  if (!draws_->state.has_value()) {
    return absl::FailedPreconditionError(
        "a layer draws random numbers and the tape has nothing to draw them from: call set_random_state with the run's "
        "seed, the step and the place of the samples in the global batch");
  }
  if (draws_->count >> kDrawBits != 0) return absl::ResourceExhaustedError("a pass with more than 2^24 random draws");
  if (keep_for_backward_) saved_draws_.push_back(draws_->count);
  return RandomDraw{*draws_->state, draws_->count++};
}

absl::StatusOr<RandomDraw> Tape::RestoreDraw() {
  if (saved_draws_.empty() || !draws_->state.has_value()) return NothingSaved();
  const uint32_t number = saved_draws_.back();
  saved_draws_.pop_back();
  return RandomDraw{*draws_->state, number};
}

void Tape::SaveForReplay(TensorList inputs) {
  if (!keep_for_backward_) return;
  saved_lists_.push_back({inputs.size(), draws_->count});
  for (Tensor& t : inputs) saved_.push_back(std::move(t));
}

Tape Tape::Inner() {
  Tape inner(stream_, ops_, /*keep_for_backward=*/false);
  // Keeps nothing, but layers still behave as in training.
  inner.training_ = training_;
  // Shared, so that draws inside the part count in the pass.
  inner.draws_ = draws_;
  inner.loss_scale_ = loss_scale_;
  return inner;
}

absl::StatusOr<Tape::Replay> Tape::RestoreForReplay() {
  const SavedList list = saved_lists_.empty() ? SavedList{1} : saved_lists_.back();  // of none, Restore says so
  if (!saved_lists_.empty()) saved_lists_.pop_back();
  Replay replay = {TensorList(list.size), Tape(stream_, ops_)};
  // Backwards, because the tensors were pushed in order.
  for (size_t i = list.size; i-- > 0;) {
    FSDP_ASSIGN_OR_RETURN(replay.inputs[i], Restore());
  }
  replay.tape.draws_->state = draws_->state;
  replay.tape.draws_->count = list.draws;
  replay.tape.loss_scale_ = loss_scale_;
  return replay;
}

}  // namespace fsdp
