// SPDX-License-Identifier: Apache-2.0
//
// BatchLoader: the rows that one rank trains on in one micro-step, on its device. The samples depend only on step,
// micro-step and rank, so a resumed run needs no data position, and with another world size but the same global batch a
// step has the same samples. Used by one thread.
#ifndef FSDP_TRAIN_BATCH_LOADER_H_
#define FSDP_TRAIN_BATCH_LOADER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"
#include "fsdp/train/token_data.h"

namespace fsdp {

// The sizes of a batch, and the place of this rank in the order of samples.
struct BatchShape {
  // Rows per rank and micro-step, and tokens per row.
  int64_t batch_size = 1;
  int64_t seq_len = 1;

  // Micro-steps per step.
  int grad_accum = 1;

  int rank = 0;
  int world_size = 1;

  // Row `row` of micro-step `micro_step` of step `step`, both from 0, is this sample.
  int64_t SampleIndex(int64_t step, int micro_step, int64_t row) const {
    return ((step * grad_accum + micro_step) * world_size + rank) * batch_size + row;
  }

  // Tokens of one step, over all ranks and micro-steps.
  int64_t tokens_per_step() const { return batch_size * seq_len * grad_accum * world_size; }
};

// The micro-steps in which `world_size` ranks train `global_batch` rows a step, `batch_size` rows each at a time.
// kInvalidArgument, naming --global_batch and the nearest possible sizes, if there is no whole number of micro-steps.
absl::StatusOr<int> MicroStepsOf(int64_t global_batch, int64_t batch_size, int world_size);

// Rows of tokens and the tokens that follow them. Targets are flat, as CrossEntropyLoss takes them.
struct Batch {
  Tensor tokens;   // int32 [batch_size, seq_len]
  Tensor targets;  // int32 [batch_size * seq_len]
};

// A batch whose addresses never change, so that a graph may refer to them.
struct BatchSlot {
  Batch batch;
  Buffer staging;  // pinned host memory, the source of the copy
  Event copied;    // the last copy from `staging` ran
};

class BatchLoader {
 public:
  // Precondition: data.CheckLength(shape.seq_len) is OK.
  BatchLoader(TokenData data, const BatchShape& shape) : data_(std::move(data)), shape_(shape) {}

  const BatchShape& shape() const { return shape_; }

  // NewSlot makes a slot on the stream's device, its contents unspecified. Fill puts the rows of a micro-step into it,
  // in stream order; the host first waits until the previous copy out of slot.staging has run.
  absl::StatusOr<BatchSlot> NewSlot(Stream& stream) const;
  absl::Status Fill(int64_t step, int micro_step, BatchSlot& slot, Stream& stream) const;

 private:
  int64_t numel() const { return shape_.batch_size * shape_.seq_len; }

  // Writes all tokens, then all targets, to `staging`, int32 [2, batch_size * seq_len].
  void Stage(int64_t step, int micro_step, const Buffer& staging) const;
  absl::StatusOr<Batch> NewBatch(Stream& stream) const;

  const TokenData data_;
  const BatchShape shape_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_BATCH_LOADER_H_
