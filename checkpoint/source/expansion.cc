// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/expansion.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

// ExpansionOf counts each storage once and each different view once. It must do so for a million storages, nearly all
// of which have one view, in little memory: so SharedStorages first finds the few storages with several views, and only
// these get table entries. ReadBound spends two budgets in bytes: one per storage (4 times its size), and one for all
// tensors together (64 MiB), which is used only after a storage's own budget is exhausted.
int64_t BytesOf(const ShardedTensor& tensor) { return tensor.shape.numel() * SizeOf(tensor.dtype); }

struct ViewedStorage {
  const StateKey* first;     // the first tensor that is a view of it
  int64_t first_view = 0;    // TensorStorage::view of that tensor
  int64_t excess_bytes = 0;  // sum of all different views minus the storage
};

// The storages, by TensorStorage::id, of which more than one wanted tensor is a view. The list of all ids, 8 bytes
// each, is freed on return.
absl::flat_hash_set<int64_t> SharedStorages(const TensorSource& source,
                                            const std::function<bool(const StateKey&)>& is_wanted) {
  std::vector<int64_t> ids;
  ids.reserve(source.contents().entries().size());
  for (const auto& [key, value] : source.contents().entries()) {
    if (!std::holds_alternative<ShardedTensor>(value) || (is_wanted && !is_wanted(key))) continue;
    if (const std::optional<TensorStorage> storage = StorageOf(source, key)) ids.push_back(storage->id);
  }
  std::sort(ids.begin(), ids.end());
  absl::flat_hash_set<int64_t> shared;
  for (size_t i = 1; i < ids.size(); ++i) {
    if (ids[i] == ids[i - 1]) shared.insert(ids[i]);
  }
  return shared;
}

// The storage with the largest excess, the first among equal ones. It is named when no single tensor is expanded.
class WorstStorage {
 public:
  void Add(int64_t id, const ViewedStorage& storage) {
    if (first_ != nullptr && std::pair(storage.excess_bytes, -id) <= most_) return;
    most_ = {storage.excess_bytes, -id};
    first_ = storage.first;
  }
  const StateKey& first() const { return *first_; }

 private:
  std::pair<int64_t, int64_t> most_;
  const StateKey* first_ = nullptr;
};

}  // namespace

std::string Expansion::ToString() const {
  const std::string sizes =
      absl::StrCat("its tensors have ", expanded_bytes, " bytes, but they are views of ", stored_bytes, " bytes; ");
  if (!has_expanded_tensor()) {
    return absl::StrCat(sizes, "different tensors are views of the same storage, such as ", Quote(worst.ToString()));
  }
  return absl::StrCat(sizes, "the worst is ", Quote(worst.ToString()), ", ", worst_expanded_bytes, " bytes of ",
                      worst_stored_bytes);
}

Expansion ExpansionOf(const TensorSource& source, const std::function<bool(const StateKey&)>& is_wanted) {
  Expansion expansion;
  const absl::flat_hash_set<int64_t> shared = SharedStorages(source, is_wanted);
  absl::flat_hash_map<int64_t, ViewedStorage> storages;  // only shared ones
  WorstStorage worst_storage;
  std::set<std::pair<int64_t, int64_t>> views;  // all but the first of each storage, since most have only one
  int64_t most = 0;
  for (const auto& [key, value] : source.contents().entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr || (is_wanted && !is_wanted(key))) continue;
    const int64_t nbytes = BytesOf(*tensor);
    const std::optional<TensorStorage> storage = StorageOf(source, key);
    // A format without views stores every element once, so the tensor adds the same to both sums.
    if (!storage) {
      expansion.stored_bytes += nbytes;
      expansion.expanded_bytes += nbytes;
      continue;
    }
    ViewedStorage viewed = {&key, storage->view, nbytes - storage->nbytes};
    bool is_new = true;
    if (shared.contains(storage->id)) {
      const auto [at, is_first] = storages.try_emplace(storage->id, viewed);
      is_new = is_first;
      // An equal view is the same tensor under another name. The first view is compared separately, which spares a set
      // entry for most storages.
      if (!is_new && storage->view == at->second.first_view) continue;
      if (!is_new && !views.insert({storage->id, storage->view}).second) continue;
      if (!is_new) at->second.excess_bytes += nbytes;
    } else {
      worst_storage.Add(storage->id, viewed);
    }
    if (is_new) expansion.stored_bytes += storage->nbytes;
    expansion.expanded_bytes += nbytes;
    // A slice of a large storage is not expanded: compare it with the bytes that its elements span, not with the
    // storage.
    const int64_t touched = std::min(storage->touched_bytes, nbytes);
    if (nbytes - touched <= most) continue;
    most = nbytes - touched;
    expansion.worst = key;
    expansion.worst_stored_bytes = touched;
    expansion.worst_expanded_bytes = nbytes;
  }
  if (expansion.expands() && !expansion.has_expanded_tensor()) {
    for (const auto& [id, storage] : storages) worst_storage.Add(id, storage);
    expansion.worst = worst_storage.first();
  }
  return expansion;
}

int64_t StoredBytes(const TensorSource& source, const StateKey& key, const ShardedTensor& tensor) {
  const std::optional<TensorStorage> storage = StorageOf(source, key);
  return storage ? std::min(storage->touched_bytes, BytesOf(tensor)) : BytesOf(tensor);
}

// Not Expansion::is_moderate, which counts equal views once: more names for one view cost nothing to convert, but time
// to read.
ReadBound::ReadBound(const TensorSource& source) : source_(source) {
  int64_t wanted = 0;
  int64_t stored = 0;
  const absl::flat_hash_set<int64_t> shared = SharedStorages(source, nullptr);
  absl::flat_hash_set<int64_t> counted;  // the shared storages that `stored` includes
  for (const auto& [key, value] : source.contents().entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const std::optional<TensorStorage> storage = StorageOf(source, key);
    // Both sides of the bound are divided by 4: the wanted bytes / 4 <= stored bytes + 16 MiB.
    wanted += BytesOf(*tensor) / Expansion::kModerateFactor;
    if (!storage) stored += BytesOf(*tensor);
    if (storage && (!shared.contains(storage->id) || counted.insert(storage->id).second)) stored += storage->nbytes;
  }
  is_bounded_ = wanted > stored + Expansion::kModerateBytes;
  left_for_all_ = Expansion::kModerateFactor * Expansion::kModerateBytes;
}

ReadExtent ReadBound::Of(const StateKey& key, const ShardedTensor& tensor) {
  const int64_t number = count_++;
  const int64_t numel = tensor.shape.numel();
  const std::optional<TensorStorage> storage = is_bounded_ ? StorageOf(source_, key) : std::nullopt;
  if (!storage) return {.numel = numel};
  // Equal views with equal numbers of elements have equal values: the first was read.
  const auto [seen, is_new] = seen_.try_emplace({storage->id, storage->view, numel}, number);
  if (!is_new) return {.same_as = seen->second};
  ReadExtent extent = {.numel = numel};
  if (storage->distinct_numel > 0 && storage->distinct_numel < numel) {
    extent = {.is_distinct = true, .numel = storage->distinct_numel};
  }
  const int64_t size = SizeOf(tensor.dtype);
  // Spend the storage's budget first, then the shared one. Neither becomes negative: allowed * size <= left +
  // left_for_all_.
  int64_t& left = left_.try_emplace(storage->id, storage->nbytes * Expansion::kModerateFactor).first->second;
  const int64_t allowed = std::min(extent.numel, (left + left_for_all_) / size);
  const int64_t of_all = std::max<int64_t>(0, allowed * size - left);
  left -= allowed * size - of_all;
  left_for_all_ -= of_all;
  extent.left_out = extent.numel - allowed;
  extent.numel = allowed;
  return extent;
}

}  // namespace fsdp
