// SPDX-License-Identifier: Apache-2.0
//
// StackedName: the key of a tensor in a torch_dist checkpoint. Megatron-Core stacks the layers of a block, and the
// experts of a layer, along new first axes, which the key does not have a number for:
//
//   decoder.layers.mlp.linear_fc1.weight [layers, out, in]          decoder.layers.3.mlp.linear_fc1.weight
//   decoder.layers.mlp.experts.experts.linear_fc1.weight decoder.layers.3.mlp.experts.experts.1.linear_fc1.weight
//   [layers, experts, out, in]
//   decoder.layers.3.mlp.linear_fc1.weight [out, in]                itself: of layers that differ
//
// The names with numbers are those that Megatron-Core itself gives to layers and experts which it does not stack. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_STACKED_NAME_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_STACKED_NAME_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace fsdp {

class StackedName {
 public:
  // The parts of `key`: "layers." and "experts.experts." without a number after them end a part.
  static StackedName Of(std::string_view key);

  // The number of stacked axes: 0, 1 or 2.
  int axes() const { return static_cast<int>(parts_.size()) - 1; }

  // The name of the tensor with the indices `at` along the stacked axes.
  std::string At(absl::Span<const int64_t> at) const;

  // "decoder.layers": the stack that axis `axis` is of; all tensors of a stack are equally long along it.
  std::string Stack(int axis) const;

 private:
  std::vector<std::string> parts_;
};

// The inverse for one name: its key, without the numbers of experts and, with `layers`, of layers, which are added to
// `at`.
std::string StackedKey(std::string_view name, bool layers, std::vector<int64_t>& at);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_STACKED_NAME_H_
