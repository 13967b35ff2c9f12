// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/expansion.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

int64_t BytesOf(const ShardedTensor& tensor) { return tensor.shape.numel() * SizeOf(tensor.dtype); }

}  // namespace

std::string Expansion::ToString() const {
  const std::string sizes =
      absl::StrCat("its tensors have ", expanded_bytes, " bytes, but they are views of ", stored_bytes, " bytes; ");
  if (worst_expanded_bytes <= worst_stored_bytes) {
    return absl::StrCat(sizes, "different tensors are views of the same storage, such as ", Quote(worst.ToString()));
  }
  return absl::StrCat(sizes, "the worst is ", Quote(worst.ToString()), ", ", worst_expanded_bytes, " bytes of ",
                      worst_stored_bytes);
}

Expansion ExpansionOf(const TensorSource& source, const std::function<bool(const StateKey&)>& is_wanted) {
  Expansion expansion;
  std::set<int64_t> storages;
  std::set<std::pair<int64_t, int64_t>> views;
  int64_t most = -1;
  for (const auto& [key, value] : source.contents().entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr || (is_wanted && !is_wanted(key))) continue;
    const int64_t nbytes = BytesOf(*tensor);
    const std::optional<TensorStorage> storage = source.Storage(key);
    if (!storage) {
      expansion.stored_bytes += nbytes;
      expansion.expanded_bytes += nbytes;
      continue;
    }
    if (storages.insert(storage->id).second) expansion.stored_bytes += storage->nbytes;
    if (!views.insert({storage->id, storage->view}).second) continue;
    expansion.expanded_bytes += nbytes;
    const int64_t touched = std::min(storage->touched_bytes, nbytes);
    if (nbytes - touched <= most) continue;
    most = nbytes - touched;
    expansion.worst = key;
    expansion.worst_stored_bytes = touched;
    expansion.worst_expanded_bytes = nbytes;
  }
  return expansion;
}

int64_t StoredBytes(const TensorSource& source, const StateKey& key, const ShardedTensor& tensor) {
  const std::optional<TensorStorage> storage = source.Storage(key);
  return storage ? std::min(storage->touched_bytes, BytesOf(tensor)) : BytesOf(tensor);
}

int64_t ElementsOnce::Of(const StateKey& key, const ShardedTensor& tensor) {
  const std::optional<TensorStorage> storage = is_bounded_ ? source_.Storage(key) : std::nullopt;
  if (!storage) return tensor.shape.numel();
  int64_t& left = left_.try_emplace(storage->id, storage->nbytes).first->second;
  const int64_t elements = std::min(tensor.shape.numel(), left / SizeOf(tensor.dtype));
  left -= elements * SizeOf(tensor.dtype);
  return elements;
}

}  // namespace fsdp
