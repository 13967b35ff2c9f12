// SPDX-License-Identifier: Apache-2.0
#include "nn/rotary_embedding.h"

#include <cmath>
#include <cstddef>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "tensor/convert.h"

namespace fsdp {

absl::StatusOr<Tensor> RotaryEmbedding::Rotation(int64_t seq_len, DType dtype, Tape& tape) {
  const bool fits = rotation_.defined() && rotation_.dtype() == dtype && rotation_.shape().dim(0) >= seq_len;
  if (fits && device_ == &tape.device()) return rotation_;
  const auto half = static_cast<int64_t>(inverse_frequencies_.size());
  std::vector<float> values(seq_len * 2 * half);
  for (int64_t t = 0; t < seq_len; ++t) {
    float* row = values.data() + t * 2 * half;
    for (int64_t i = 0; i < half; ++i) {
      // The angle is a float32; its cosine and sine are taken in float64 and rounded once.
      const double angle = static_cast<float>(t) * inverse_frequencies_[i];
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
  ASSIGN_OR_RETURN(Tensor rotation, Tensor::Empty(tape.device(), dtype, {seq_len, 2 * half}));
  std::vector<std::byte> bytes(rotation.nbytes());
  RETURN_IF_ERROR(Convert(DType::kFloat32, values.data(), dtype, bytes.data(), rotation.numel()));
  tape.stream().CopyAsync(rotation.data(), bytes.data(), rotation.nbytes());
  RETURN_IF_ERROR(tape.stream().Synchronize());  // `bytes` must outlive the copy, and other streams may read at once
  rotation_ = rotation;
  device_ = &tape.device();
  return rotation_;
}

absl::StatusOr<Tensor> RotaryEmbedding::DoForward(const Tensor&, Tape&) {
  return absl::UnimplementedError("a rotary embedding has no forward: layers ask it for their rotation");
}

absl::StatusOr<Tensor> RotaryEmbedding::DoBackward(const Tensor&, Tape&) {
  return absl::UnimplementedError("a rotary embedding has no backward");
}

}  // namespace fsdp
