// SPDX-License-Identifier: Apache-2.0
//
// RotaryEmbedding: the angles by which heads are rotated, by position: cosines and sines of position * inverse
// frequency, computed in float32 and rounded to the compute dtype, as Hugging Face's LlamaRotaryEmbedding does. One is
// shared by all layers of a model; it has no parameters and no forward. The frequencies are buffers by Hugging Face's
// names, so mixed precision for buffers changes them as in PyTorch.
#ifndef FSDP_NN_ROTARY_EMBEDDING_H_
#define FSDP_NN_ROTARY_EMBEDDING_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "fsdp/nn/module.h"

namespace fsdp {

class RotaryEmbedding final : public Module {
 public:
  // `inverse_frequencies` has head_dim / 2 entries, one for each pair of elements of a head.
  explicit RotaryEmbedding(const std::vector<float>& inverse_frequencies);

  std::string_view type_name() const override { return "LlamaRotaryEmbedding"; }
  bool has_forward() const override { return false; }

  // [at least seq_len, head_dim]: of each position the head_dim / 2 cosines, then the sines; what LayerOps::RotateQkv
  // reads. The table is kept, and made anew only for a longer sequence, another dtype or other frequencies; this then
  // blocks until the table is on the device.
  absl::StatusOr<Tensor> Rotation(int64_t seq_len, DType dtype, Tape& tape);

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor&, Tape&) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor&, Tape&) override;

  // The frequencies as they are now, on the host.
  absl::StatusOr<std::vector<float>> Frequencies(Stream& stream) const;

  // [head_dim / 2]; theta^(-2 i / head_dim) for pair i, unless the model scales it.
  std::shared_ptr<ModuleBuffer> inv_freq_;
  Tensor rotation_;
  Tensor rotation_inv_freq_;  // what rotation_ was made from
};

}  // namespace fsdp

#endif  // FSDP_NN_ROTARY_EMBEDDING_H_
