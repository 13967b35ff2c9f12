// SPDX-License-Identifier: Apache-2.0
//
// PickleMemo: the numbered values of a pickle, for PUT, MEMOIZE and GET. Python numbers them in order, from 0 or from
// 1; such a number costs four bytes if it is read again, and nothing otherwise (pickle_references.h). Any other number
// costs an entry of a hash map.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_MEMO_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_MEMO_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_references.h"

namespace fsdp {

class PickleMemo {
 public:
  // `references` must outlive the memo.
  explicit PickleMemo(const PickleReferences& references) : references_(references) {}

  // False for a number that is never read: the memo does not store the value then.
  bool Put(uint64_t index, uint32_t id) {
    if (index > next_ + 1 || index >= references_.limit()) {
      size_ += others_.insert_or_assign(index, id).second ? 1 : 0;
      return true;
    }
    if (index > next_) {  // next_ has no value yet, or has one as a number out of order
      if (!others_.contains(next_)) holes_.insert(next_);
      ++next_;
    }
    if (index == next_) {
      ++next_;
      size_ += others_.erase(index) == 0 ? 1 : 0;
    } else {
      size_ += holes_.erase(index) != 0 ? 1 : 0;
    }
    if (!references_.contains(index)) return false;
    const size_t place = references_.index(index);
    if (place >= in_order_.size()) in_order_.resize(place + 1, kNone);
    in_order_[place] = id;
    return true;
  }

  // nullopt for a number that was never put.
  std::optional<uint32_t> Find(uint64_t index) const {
    if (index < references_.limit() && references_.contains(index)) {
      const size_t place = references_.index(index);
      if (place < in_order_.size() && in_order_[place] != kNone) return in_order_[place];
    }
    const auto at = others_.find(index);
    return at == others_.end() ? std::nullopt : std::make_optional(at->second);
  }

  // The number of values with a number, which is the next number of MEMOIZE.
  uint64_t size() const { return size_; }

  // Bytes of memory, including the references, and how many more the next Put can need: a growing hash table briefly
  // has both its tables.
  int64_t memory() const {
    return static_cast<int64_t>(in_order_.size() * sizeof(uint32_t) + others_.capacity() * kEntryBytes +
                                holes_.capacity() * kHoleBytes) +
           references_.memory();
  }
  int64_t growth() const { return Growth(others_, kEntryBytes) + Growth(holes_, kHoleBytes); }

 private:
  template <typename Table>
  static int64_t Growth(const Table& table, size_t entry_bytes) {
    const bool is_full = (table.size() + 1) * 8 > table.capacity() * 7;
    return is_full ? static_cast<int64_t>((2 * table.capacity() + 1) * entry_bytes) : 0;
  }

  static constexpr uint32_t kNone = UINT32_MAX;                                     // no value has this id
  static constexpr size_t kEntryBytes = sizeof(std::pair<uint64_t, uint32_t>) + 1;  // and its byte of control
  static constexpr size_t kHoleBytes = sizeof(uint64_t) + 1;

  const PickleReferences& references_;
  uint64_t next_ = 0;  // all numbers below were put, except holes_
  absl::flat_hash_set<uint64_t> holes_;
  std::deque<uint32_t> in_order_;  // for numbers below next_ that are read, by PickleReferences::index
  absl::flat_hash_map<uint64_t, uint32_t> others_;
  uint64_t size_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_MEMO_H_
