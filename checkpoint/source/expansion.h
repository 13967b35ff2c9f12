// SPDX-License-Identifier: Apache-2.0
//
// Expansion: how much larger the tensors of a checkpoint are than the bytes that hold them. torch.save stores a tensor
// as a view of a storage, so a file of a few hundred bytes can hold a tensor of terabytes (torch.expand: stride 0), and
// a thousand tensors can be views of one storage. The definition, everywhere:
//
//   expanded bytes   the sum of all tensors, numel times the size of an element, equal views of one storage once (they
//                    are one tensor under several names: tied weights)
//   stored bytes     the sum of the storages that these tensors are views of, each once and whole
//
// A checkpoint expands when the first is more than the second. Formats without views never do.
#ifndef FSDP_CHECKPOINT_SOURCE_EXPANSION_H_
#define FSDP_CHECKPOINT_SOURCE_EXPANSION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct Expansion {
  int64_t stored_bytes = 0;
  int64_t expanded_bytes = 0;
  // The tensor that is most bytes larger than what holds its elements (TensorStorage::touched_bytes). Where no tensor
  // is larger, but the tensors of a storage are together, the first of the storage where they are the most.
  StateKey worst = {};
  int64_t worst_stored_bytes = 0;
  int64_t worst_expanded_bytes = 0;

  bool expands() const { return expanded_bytes > stored_bytes; }

  // True when one tensor is larger than what holds its elements. An expansion without such a tensor is of tensors that
  // are views of the same storage.
  bool has_expanded_tensor() const { return worst_expanded_bytes > worst_stored_bytes; }

  // Whether all elements of all tensors can be read in a time that the size of the file bounds.
  bool is_moderate() const { return expanded_bytes / kModerateFactor <= stored_bytes + kModerateBytes; }

  static constexpr int64_t kModerateFactor = 4;
  static constexpr int64_t kModerateBytes = int64_t{16} << 20;  // times the factor: 64 MiB

  // "its tensors are 4.4 TB, but the file holds 16 B of them (...)", with numbers in bytes.
  std::string ToString() const;
};

// Of the tensors of `source` for which `is_wanted` is true; null: of all. Reads what TensorViews::Storage reads.
Expansion ExpansionOf(const TensorSource& source, const std::function<bool(const StateKey&)>& is_wanted = nullptr);

// Bytes that hold the elements of one tensor: not more than the tensor itself has.
int64_t StoredBytes(const TensorSource& source, const StateKey& key, const ShardedTensor& tensor);

// What a reader of all values reads of one tensor: elements [0, numel), by TensorViews::ReadDistinct or by Read.
struct ReadExtent {
  bool is_distinct = false;
  int64_t numel = 0;
  int64_t left_out = 0;  // elements behind `numel` that are not read

  // The tensor whose values are those of this one, an equal view of the same storage: its number in the order of
  // ReadBound::Of, from 0. Nothing is read of this one then. -1: none.
  int64_t same_as = -1;

  absl::Status Read(const TensorSource& source, const StateKey& key, const Interval& interval, void* out) const {
    return is_distinct ? source.views()->ReadDistinct(key, interval, out) : source.Read(key, interval, out);
  }
};

// For reading all values of a checkpoint in a time that its size bounds. Every element of every tensor, if they are
// altogether at most 4 times the stored bytes and 64 MiB, as in all ordinary checkpoints. Otherwise:
//
//   a tensor that is expanded, or whose windows overlap     its distinct elements, each once
//   a tensor that is the same view as one before it         nothing: ReadExtent::same_as
//   any other tensor                                        every element
//
// So every stored element that a tensor shows is read, and what is left to bound is different views of one storage,
// such as thousands of slices that overlap: at most 4 times the bytes of each storage, and 64 MiB for all together, in
// the order of the tensors. ReadExtent::left_out is what this bound cuts off; the caller must report it.
class ReadBound {
 public:
  explicit ReadBound(const TensorSource& source);

  // Call it once for each tensor of contents(), in order.
  ReadExtent Of(const StateKey& key, const ShardedTensor& tensor);

 private:
  const TensorSource& source_;
  bool is_bounded_ = false;
  std::map<int64_t, int64_t> left_;                                // bytes by TensorStorage::id
  int64_t left_for_all_ = 0;                                       // bytes
  int64_t count_ = 0;                                              // of tensors so far
  std::map<std::tuple<int64_t, int64_t, int64_t>, int64_t> seen_;  // tensors by storage, view and number of elements
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_EXPANSION_H_
