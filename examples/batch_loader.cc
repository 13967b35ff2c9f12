// SPDX-License-Identifier: Apache-2.0
#include "examples/batch_loader.h"

#include "base/status_macros.h"
#include "tensor/device.h"

namespace fsdp {

absl::StatusOr<Batch> BatchLoader::Load(int64_t step, int micro_step, Stream& stream) const {
  const int64_t seq_len = shape_.seq_len;
  const int64_t numel = shape_.batch_size * seq_len;
  const int64_t nbytes = numel * SizeOf(DType::kInt32);
  ASSIGN_OR_RETURN(const Buffer staging, stream.device().AllocatePinned(2 * nbytes));
  const absl::Span<int32_t> staged(reinterpret_cast<int32_t*>(staging.data()),
                                   2 * numel);  // all tokens, then all targets
  for (int64_t row = 0; row < shape_.batch_size; ++row) {
    data_.CopySample(shape_.SampleIndex(step, micro_step, row), staged.subspan(row * seq_len, seq_len),
                     staged.subspan(numel + row * seq_len, seq_len));
  }
  ASSIGN_OR_RETURN(const Tensor both, Tensor::Empty(stream.device(), DType::kInt32, {2 * numel}));
  stream.CopyAsync(both.data(), staging.data(), both.nbytes());
  stream.Run([staging] { return absl::OkStatus(); });  // keeps the staging memory until the copy ran
  return Batch{.tokens = both.Slice({0, numel}).View({shape_.batch_size, seq_len}),
               .targets = both.Slice({numel, 2 * numel})};
}

}  // namespace fsdp
