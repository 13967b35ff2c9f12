// SPDX-License-Identifier: Apache-2.0
//
// RotaryEmbedding: the angles by which heads are rotated, by position: cosines and sines of position * inverse
// frequency, computed in float32 and rounded to the compute dtype, as Hugging Face's LlamaRotaryEmbedding does. One is
// shared by all layers of a model; it has no parameters and no forward of its own.
#ifndef FSDP_NN_ROTARY_EMBEDDING_H_
#define FSDP_NN_ROTARY_EMBEDDING_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "nn/module.h"

namespace fsdp {

class RotaryEmbedding final : public Module {
 public:
  // One frequency for each pair of elements of a head: head_dim / 2 of them.
  explicit RotaryEmbedding(std::vector<float> inverse_frequencies)
      : inverse_frequencies_(std::move(inverse_frequencies)) {}

  std::string_view type_name() const override { return "LlamaRotaryEmbedding"; }

  // [at least seq_len, head_dim]: of each position the cosines, then the sines; what LayerOps::RotateQkv reads. Kept,
  // and made anew only for a longer sequence, another dtype or another device; then this blocks until it is there.
  absl::StatusOr<Tensor> Rotation(int64_t seq_len, DType dtype, Tape& tape);

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor&, Tape&) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor&, Tape&) override;

  const std::vector<float> inverse_frequencies_;
  Tensor rotation_;
  const Device* device_ = nullptr;  // of rotation_
};

}  // namespace fsdp

#endif  // FSDP_NN_ROTARY_EMBEDDING_H_
