// SPDX-License-Identifier: Apache-2.0
//
// Expansion: compares the size of the tensors of a checkpoint with the bytes that hold them. torch.save stores a tensor
// as a view of a storage, so a file of a few hundred bytes can hold a tensor of terabytes (torch.expand: stride 0), and
// a thousand tensors can be views of one storage. The definitions:
//
//   expanded bytes   the sum of all tensors, numel times the size of an element, equal views of one storage once (they
//                    are one tensor under several names: tied weights)
//   stored bytes     the sum of the storages of these tensors, each once and whole
//
// A checkpoint expands when the first is larger than the second. Formats without views never do.
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
  // The tensor with the largest excess over the bytes that hold its elements (TensorStorage::touched_bytes). If no
  // tensor has an excess, but the tensors of a storage have one together, the first tensor of the storage with the
  // largest.
  StateKey worst = {};
  int64_t worst_stored_bytes = 0;
  int64_t worst_expanded_bytes = 0;

  bool expands() const { return expanded_bytes > stored_bytes; }

  // True if one tensor is larger than the bytes that hold its elements. Otherwise an expansion comes from different
  // tensors that are views of the same storage.
  bool has_expanded_tensor() const { return worst_expanded_bytes > worst_stored_bytes; }

  // True if all elements of all tensors can be read in a time bounded by the size of the file.
  bool is_moderate() const { return expanded_bytes / kModerateFactor <= stored_bytes + kModerateBytes; }

  static constexpr int64_t kModerateFactor = 4;
  static constexpr int64_t kModerateBytes = int64_t{16} << 20;  // times the factor: 64 MiB

  // `its tensors have 4398046511104 bytes, but they are views of 16 bytes; the worst is "model/w", ...`.
  std::string ToString() const;
};

// The expansion of the tensors of `source` for which `is_wanted` is true; null: of all. Calls TensorViews::Storage,
// which may read metadata.
Expansion ExpansionOf(const TensorSource& source, const std::function<bool(const StateKey&)>& is_wanted = nullptr);

// Bytes that hold the elements of one tensor, at most the size of the tensor itself.
int64_t StoredBytes(const TensorSource& source, const StateKey& key, const ShardedTensor& tensor);

// The elements of one tensor that a reader of all values reads: [0, numel), by TensorViews::ReadDistinct or by Read.
struct ReadExtent {
  bool is_distinct = false;
  int64_t numel = 0;
  int64_t left_out = 0;  // elements after `numel` that are not read

  // An earlier tensor with the same values, an equal view of the same storage: its number in the order of
  // ReadBound::Of, from 0. Then no element of this tensor is read. -1 without one.
  int64_t same_as = -1;

  absl::Status Read(const TensorSource& source, const StateKey& key, const Interval& interval, void* out) const {
    return is_distinct ? source.views()->ReadDistinct(key, interval, out) : source.Read(key, interval, out);
  }
};

// Limits the reading of all values of a checkpoint to a time bounded by its size. Every element of every tensor is read
// if all of them together have at most 4 times the stored bytes plus 64 MiB, as in all ordinary checkpoints. Otherwise:
//
//   a tensor that is expanded, or whose windows overlap     its distinct elements, each once
//   a tensor that is the same view as one before it         nothing: ReadExtent::same_as
//   any other tensor                                        every element
//
// This reads every stored element that a tensor shows. Different views of one storage, such as thousands of overlapping
// slices, are limited further: to 4 times the bytes of each storage, plus 64 MiB for all together, in the order of the
// tensors. The caller must report ReadExtent::left_out, the elements beyond this limit.
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
  int64_t count_ = 0;                                              // number of tensors so far
  std::map<std::tuple<int64_t, int64_t, int64_t>, int64_t> seen_;  // tensors by storage, view and number of elements
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_EXPANSION_H_
