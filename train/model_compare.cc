// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/model_compare.h"

#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {
namespace {

std::vector<StateKey> ModelKeys(const StateDict& contents) {
  std::vector<StateKey> keys;
  for (const auto& [key, value] : contents.entries()) {
    if (key.section == StateKey::Section::kModel) keys.push_back(key);
  }
  return keys;
}

absl::StatusOr<std::vector<std::byte>> ReadWhole(const TensorSource& source, const StateKey& key,
                                                 const ShardedTensor& tensor) {
  std::vector<std::byte> bytes(tensor.shape.numel() * SizeOf(tensor.dtype));
  FSDP_RETURN_IF_ERROR(source.Read(key, {0, tensor.shape.numel()}, bytes.data()));
  return bytes;
}

absl::Status CompareTensor(const TensorSource& source, const TensorSource& other, const StateKey& key) {
  const ShardedTensor* a = source.contents().FindTensor(key);
  const ShardedTensor* b = other.contents().FindTensor(key);
  if (a == nullptr || b == nullptr) {
    return absl::DataLossError(absl::StrFormat("tensor \"%s\" is in one of the two only", key.fqn));
  }
  if (a->dtype != b->dtype || a->shape != b->shape) {
    return absl::DataLossError(absl::StrFormat("tensor \"%s\": %s%s in one, %s%s in the other", key.fqn,
                                               std::string(DTypeName(a->dtype)), a->shape.ToString(),
                                               std::string(DTypeName(b->dtype)), b->shape.ToString()));
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, ReadWhole(source, key, *a));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::byte> other_bytes, ReadWhole(other, key, *b));
  if (bytes == other_bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("tensor \"%s\": the values differ", key.fqn));
}

}  // namespace

absl::StatusOr<int64_t> CompareModels(const std::string& path, const std::string& other_path) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> source, OpenTensorSource(path));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> other, OpenTensorSource(other_path));
  const std::vector<StateKey> keys = ModelKeys(source->contents());
  const size_t other_count = ModelKeys(other->contents()).size();
  if (keys.size() != other_count) {
    return absl::DataLossError(
        absl::StrFormat("%s holds %d tensors, %s %d", path, keys.size(), other_path, other_count));
  }
  for (const StateKey& key : keys) FSDP_RETURN_IF_ERROR(CompareTensor(*source, *other, key));
  return static_cast<int64_t>(keys.size());
}

}  // namespace fsdp
