// SPDX-License-Identifier: Apache-2.0
//
// A batch is staged as one pinned buffer, int32 [2, batch_size * seq_len]: all tokens, then all targets, row by row.
// One copy brings it to the device; `tokens` and `targets` are two views of one tensor of the same layout.
#include "fsdp/train/batch_loader.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

absl::StatusOr<int> MicroStepsOf(int64_t global_batch, int64_t batch_size, int world_size) {
  const int64_t rows = batch_size * world_size;  // rows per micro-step
  const int64_t micro_steps = global_batch / rows;
  if (micro_steps * rows == global_batch && micro_steps <= INT32_MAX) return static_cast<int>(micro_steps);
  const std::string nearest = micro_steps > 0 ? absl::StrCat(micro_steps * rows, " or ") : "";
  return absl::InvalidArgumentError(absl::StrCat("--global_batch=", global_batch, ": expected a multiple of ", rows,
                                                 ", since ", world_size, " ranks take --batch_size=", batch_size,
                                                 " rows each at a time: ", nearest, (micro_steps + 1) * rows,
                                                 ", or another --batch_size"));
}

void BatchLoader::Stage(int64_t step, int micro_step, const Buffer& staging) const {
  const int64_t seq_len = shape_.seq_len;
  const absl::Span<int32_t> staged(reinterpret_cast<int32_t*>(staging.data()), 2 * numel());
  for (int64_t row = 0; row < shape_.batch_size; ++row) {
    data_.CopySample(shape_.SampleIndex(step, micro_step, row), staged.subspan(row * seq_len, seq_len),
                     staged.subspan(numel() + row * seq_len, seq_len));
  }
}

// Tokens and targets are two slices of one tensor, so that one copy fills both.
absl::StatusOr<Batch> BatchLoader::NewBatch(Stream& stream) const {
  FSDP_ASSIGN_OR_RETURN(const Tensor both, Tensor::Empty(stream.device(), DType::kInt32, {2 * numel()}));
  return Batch{.tokens = both.Slice({0, numel()}).View({shape_.batch_size, shape_.seq_len}),
               .targets = both.Slice({numel(), 2 * numel()})};
}

absl::StatusOr<BatchSlot> BatchLoader::NewSlot(Stream& stream) const {
  BatchSlot slot;
  FSDP_ASSIGN_OR_RETURN(slot.staging, stream.device().AllocatePinned(2 * numel() * SizeOf(DType::kInt32)));
  FSDP_ASSIGN_OR_RETURN(slot.batch, NewBatch(stream));
  return slot;
}

absl::Status BatchLoader::Fill(int64_t step, int micro_step, BatchSlot& slot, Stream& stream) const {
  // The copy of the last batch may still be reading the staging memory.
  FSDP_RETURN_IF_ERROR(slot.copied.Synchronize());
  Stage(step, micro_step, slot.staging);
  // tokens comes first, so this address is also the whole tensor's; targets are copied too.
  stream.CopyAsync(slot.batch.tokens.data(), slot.staging.data(), slot.staging.nbytes());
  slot.copied = stream.Record();
  return absl::OkStatus();
}

}  // namespace fsdp
