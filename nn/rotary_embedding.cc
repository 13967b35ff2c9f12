// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding (Su et al., arXiv 2104.09864): pair i of a head at position t is rotated by t *
// inv_freq[i]. The table of cosines and sines depends only on the frequencies, the dtype and the longest sequence, so
// it is made on the host, copied once, and kept; LayerOps::RotateQkv applies it.
#include "fsdp/nn/rotary_embedding.h"

#include <cmath>
#include <cstddef>

#include "absl/status/status.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// A tensor that owns a copy of `values` in memory of the host: a module is built before any device is known.
Tensor HostTensor(const std::vector<float>& values) {
  const auto memory = std::make_shared<std::vector<float>>(values);
  const auto numel = static_cast<int64_t>(values.size());
  const Buffer buffer(reinterpret_cast<std::byte*>(memory->data()), numel * SizeOf(DType::kFloat32), [memory] {});
  return Tensor(buffer, DType::kFloat32, {numel});
}

}  // namespace

RotaryEmbedding::RotaryEmbedding(const std::vector<float>& inverse_frequencies)
    : inv_freq_(AddBuffer("inv_freq", HostTensor(inverse_frequencies), BufferPersistence::kNonPersistent)) {
  // Hugging Face keeps a copy for kinds of scaling that change inv_freq while they run.
  AddBuffer("original_inv_freq", HostTensor(inverse_frequencies), BufferPersistence::kNonPersistent);
}

// The buffer may have been cast and moved to a device since the module was built (mixed precision for buffers), so the
// table is made from the buffer's current frequencies.
absl::StatusOr<std::vector<float>> RotaryEmbedding::Frequencies(Stream& stream) const {
  const Tensor& data = inv_freq_->data;
  std::vector<std::byte> bytes(data.nbytes());
  stream.CopyAsync(bytes.data(), data.data(), data.nbytes());
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  std::vector<float> frequencies(data.numel());
  FSDP_RETURN_IF_ERROR(Convert(data.dtype(), bytes.data(), DType::kFloat32, frequencies.data(), data.numel()));
  return frequencies;
}

absl::StatusOr<Tensor> RotaryEmbedding::Rotation(int64_t seq_len, DType dtype, Tape& tape) {
  // The address identifies the frequencies: a cast of the buffer gives it other memory. rotation_inv_freq_ holds a
  // reference, so that this memory cannot be freed and handed out again in between.
  const bool fits = rotation_.defined() && rotation_.dtype() == dtype && rotation_.shape().dim(0) >= seq_len;
  if (fits && rotation_inv_freq_.data() == inv_freq_->data.data()) return rotation_;
  FSDP_ASSIGN_OR_RETURN(const std::vector<float> frequencies, Frequencies(tape.stream()));
  const auto half = static_cast<int64_t>(frequencies.size());
  std::vector<float> values(seq_len * 2 * half);
  for (int64_t t = 0; t < seq_len; ++t) {
    float* row = values.data() + t * 2 * half;
    for (int64_t i = 0; i < half; ++i) {
      // The angle is a float32; its cosine and sine are taken in float64 and rounded once.
      const double angle = static_cast<float>(t) * frequencies[i];
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
  FSDP_ASSIGN_OR_RETURN(Tensor rotation, Tensor::Empty(tape.device(), dtype, {seq_len, 2 * half}));
  std::vector<std::byte> bytes(rotation.nbytes());
  FSDP_RETURN_IF_ERROR(Convert(DType::kFloat32, values.data(), dtype, bytes.data(), rotation.numel()));
  tape.stream().CopyAsync(rotation.data(), bytes.data(), rotation.nbytes());
  FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());  // `bytes` must outlive the copy; other streams may read now
  rotation_ = rotation;
  rotation_inv_freq_ = inv_freq_->data;
  return rotation_;
}

absl::StatusOr<Tensor> RotaryEmbedding::DoForward(const Tensor&, Tape&) {
  return absl::UnimplementedError("a rotary embedding has no forward: layers ask it for their rotation");
}

absl::StatusOr<Tensor> RotaryEmbedding::DoBackward(const Tensor&, Tape&) {
  return absl::UnimplementedError("a rotary embedding has no backward");
}

}  // namespace fsdp
