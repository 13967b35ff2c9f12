// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_value.h"

#include <string>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

class ValueTaker {
 public:
  ValueTaker(const TorchTensors& tensors, const DcpSlice& slice, DcpMetadata& metadata, InnerTensors& inner)
      : tensors_(tensors), slice_(slice), metadata_(metadata), inner_(inner) {}

  // Numbers the tensors in `node`. Recursion is bounded by kMaxTorchDepth.
  void Number(TorchNode& node) {
    if (node.kind() == TorchNode::Kind::kTensor) {
      TorchNode numbered = TorchNode::Tensor(static_cast<int>(NumberOf(node.tensor())));
      numbered.TakeForm(node);
      node = std::move(numbered);
    }
    for (const auto& [name, member] : node.members()) Number(*node.Find(name));
  }

 private:
  uint32_t NumberOf(int tensor) {
    const auto [at, is_new] = numbers_.try_emplace(tensor, static_cast<uint32_t>(metadata_.tensors.size()));
    if (!is_new) return at->second;
    const Shape shape = tensors_.shape(tensor);
    const auto chunk = static_cast<uint32_t>(metadata_.chunks.size());
    metadata_.chunks.Add(
        {.box = {std::vector<int64_t>(shape.rank(), 0), {shape.dims().begin(), shape.dims().end()}}, .slice = slice_});
    metadata_.tensors.push_back({tensors_.dtype(tensor), shape, chunk, chunk + 1});
    inner_[chunk] = static_cast<uint32_t>(tensor);
    return at->second;
  }

  const TorchTensors& tensors_;
  const DcpSlice& slice_;
  DcpMetadata& metadata_;
  InnerTensors& inner_;
  absl::flat_hash_map<int, uint32_t> numbers_;  // in metadata_, by number in tensors_
};

}  // namespace

TorchNode TakeValue(TorchTree tree, const DcpSlice& slice, DcpMetadata& metadata, InnerTensors& inner) {
  ValueTaker(tree.tensors, slice, metadata, inner).Number(tree.root);
  return std::move(tree.root);
}

}  // namespace fsdp
