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
#include <set>
#include <string>
#include <utility>

#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct Expansion {
  int64_t stored_bytes = 0;
  int64_t expanded_bytes = 0;
  // The tensor that is most bytes larger than what holds its elements (TensorStorage::touched_bytes).
  StateKey worst = {};
  int64_t worst_stored_bytes = 0;
  int64_t worst_expanded_bytes = 0;

  bool expands() const { return expanded_bytes > stored_bytes; }

  // Whether all elements of all tensors can be read in a time that the size of the file bounds.
  bool is_moderate() const { return expanded_bytes / kModerateFactor <= stored_bytes + kModerateBytes; }

  static constexpr int64_t kModerateFactor = 4;
  static constexpr int64_t kModerateBytes = int64_t{16} << 20;

  // "its tensors are 4.4 TB, but the file holds 16 B of them (...)", with numbers in bytes.
  std::string ToString() const;
};

// Of the tensors of `source` for which `is_wanted` is true; null: of all. Reads what TensorSource::Storage reads.
Expansion ExpansionOf(const TensorSource& source, const std::function<bool(const StateKey&)>& is_wanted = nullptr);

// Bytes that hold the elements of one tensor: not more than the tensor itself has.
int64_t StoredBytes(const TensorSource& source, const StateKey& key, const ShardedTensor& tensor);

// For reading every byte of a checkpoint in a time that its size bounds: how many elements of each tensor are worth
// reading, from the first on. All of them, unless the checkpoint expands beyond Expansion::is_moderate: then as many of
// each storage as it has bytes, which need not be all that it holds.
class ElementsOnce {
 public:
  explicit ElementsOnce(const TensorSource& source)
      : source_(source), is_bounded_(!ExpansionOf(source).is_moderate()) {}
  int64_t Of(const StateKey& key, const ShardedTensor& tensor);

 private:
  const TensorSource& source_;
  const bool is_bounded_;
  std::map<int64_t, int64_t> left_;  // bytes by TensorStorage::id
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_EXPANSION_H_
