// SPDX-License-Identifier: Apache-2.0
//
// PickleMemo: the values that a pickle numbers, for PUT, MEMOIZE and GET. Python numbers them in order, from 0 or from
// 1, and those cost four bytes each; any other number costs an entry of a hash map.
#ifndef FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_MEMO_H_
#define FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_MEMO_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace fsdp {

class PickleMemo {
 public:
  void Put(uint64_t index, uint32_t id) {
    if (index == in_order_.size() + 1) in_order_.push_back(kNone);
    if (index == in_order_.size()) {
      in_order_.push_back(id);
      size_ += others_.erase(index) == 0 ? 1 : 0;
    } else if (index < in_order_.size()) {
      size_ += in_order_[index] == kNone ? 1 : 0;
      in_order_[index] = id;
    } else {
      size_ += others_.insert_or_assign(index, id).second ? 1 : 0;
    }
  }

  // nullopt for a number that was never put.
  std::optional<uint32_t> Find(uint64_t index) const {
    if (index < in_order_.size() && in_order_[index] < kDropped) return in_order_[index];
    const auto at = others_.find(index);
    return at == others_.end() ? std::nullopt : std::make_optional(at->second);
  }

  // Whether the values of the ids from `first` on have just `count` numbers, all of them among the newest: only then
  // they can be dropped. Constant time.
  bool CanDrop(uint32_t first, int64_t count) const {
    const size_t end = in_order_.size() - std::min(in_order_.size(), kNewest);
    for (size_t i = in_order_.size(); count > 0 && i > end; --i) count -= IsFrom(first, in_order_[i - 1]) ? 1 : 0;
    return count == 0;
  }

  // Takes these numbers from their values, which are about to go. Precondition: CanDrop.
  void Drop(uint32_t first, int64_t count) {
    for (size_t i = in_order_.size(); count > 0; --i) {
      if (!IsFrom(first, in_order_[i - 1])) continue;
      in_order_[i - 1] = kDropped;
      --count;
    }
  }

  // True for a number whose value was dropped and that has no other value since.
  bool is_dropped(uint64_t index) const { return index < in_order_.size() && in_order_[index] == kDropped; }

  // Values that have a number: the next number of MEMOIZE.
  uint64_t size() const { return size_; }

  // Bytes of memory, and how many more the next Put can need: a hash map that grows has both its tables for a moment.
  int64_t memory() const {
    return static_cast<int64_t>(in_order_.size() * sizeof(uint32_t) + others_.capacity() * kEntryBytes);
  }
  int64_t growth() const {
    const bool is_full = (others_.size() + 1) * 8 > others_.capacity() * 7;
    return is_full ? static_cast<int64_t>((2 * others_.capacity() + 1) * kEntryBytes) : 0;
  }

 private:
  static bool IsFrom(uint32_t first, uint32_t id) { return id >= first && id < kDropped; }

  static constexpr uint32_t kNone = UINT32_MAX;         // no value has this id
  static constexpr uint32_t kDropped = UINT32_MAX - 1;  // nor this one
  static constexpr size_t kNewest = 256;
  static constexpr int64_t kEntryBytes = sizeof(std::pair<uint64_t, uint32_t>) + 1;  // and its byte of control

  std::deque<uint32_t> in_order_;
  absl::flat_hash_map<uint64_t, uint32_t> others_;
  uint64_t size_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_MEMO_H_
