// SPDX-License-Identifier: Apache-2.0
//
// TorchTensors: the tensors of a pickle by number, and the storages of which they are views. A checkpoint may have a
// million of them, so they are packed into about 100 bytes each, and a TorchTensor is built on access.
//
// TorchTensorTaker: fills such a table while the pickle is parsed, so that the values of a tensor's call are never in
// memory for more than one tensor.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_TENSORS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_TENSORS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/state/dtensor.h"
#include "fsdp/checkpoint/foreign/torch/state/dtensor_reader.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tensor.h"

namespace fsdp {

// Movable, not copyable. Tensors are indexed by i < size(), storages by their number < storage_count().
class TorchTensors {
 public:
  bool empty() const { return tensors_.empty(); }
  size_t size() const { return tensors_.size(); }
  TorchTensor operator[](size_t i) const;
  DType dtype(size_t i) const { return tensors_[i].dtype; }
  Shape shape(size_t i) const;

  // The storage of which a tensor is a view: equal for two tensors with the same key.
  uint32_t storage_of(size_t i) const { return tensors_[i].storage; }
  size_t storage_count() const { return storages_.size(); }
  // Valid as long as the table exists.
  std::string_view storage_key(uint32_t storage) const;
  int64_t storage_bytes(uint32_t storage) const { return storages_[storage].nbytes; }

  // Records the position of a storage's bytes, once the reader of a file has found it: from that byte of the file on,
  // with that CRC-32; 0: the file does not have it.
  void Place(uint32_t storage, int64_t offset, uint32_t crc);
  int64_t storage_offset(uint32_t storage) const { return storages_[storage].offset; }
  uint32_t storage_crc(uint32_t storage) const { return storages_[storage].crc; }

  // The DTensor of which tensor `i` is the part of one rank; null for a tensor that is no DTensor's. The shape and
  // dtype above are the part's. Valid until DropDTensors.
  const DTensor* dtensor(size_t i) const;
  bool has_dtensors() const { return !dtensors_.empty(); }

  // What a program had around tensor `i`, which is read without it.
  TorchWrapper wrapper(size_t i) const { return {tensors_[i].is_parameter, tensors_[i].has_attributes}; }

  // Frees them, once the parts are joined: they have a mesh of all ranks.
  void DropDTensors() { dtensors_ = {}; }

  // Bytes of memory.
  int64_t memory() const;

 private:
  friend class TorchTensorTaker;

  struct Tensor {
    int64_t offset = 0;
    uint32_t storage = 0;
    uint32_t sizes = 0;  // index in sizes_ of its sizes, followed by its strides unless is_row_major
    DType dtype = DType::kFloat32;
    uint8_t rank = 0;
    // In one byte, so that an entry has 24.
    bool is_row_major : 1 = true;  // its strides are RowMajorStrides of its shape
    bool is_parameter : 1 = false;
    bool has_attributes : 1 = false;
    uint32_t place = 0;  // of its value in the pickle, for messages during parsing
  };

  struct Storage {
    int64_t nbytes = 0;
    int64_t offset = 0;  // in the file
    uint32_t crc = 0;
    uint32_t key = 0;  // its position in keys_
  };

  // Deques, because a vector takes three times as much while it grows.
  std::deque<Tensor> tensors_;
  std::deque<Storage> storages_;
  std::deque<int64_t> sizes_;
  // Consecutive keys in blocks, none split between two blocks: two bytes of length and the text.
  std::deque<std::unique_ptr<char[]>> keys_;
  absl::flat_hash_map<uint32_t, std::unique_ptr<const DTensor>> dtensors_;  // by the number of the part
};

// For one pickle and one thread.
class TorchTensorTaker final : public PickleObjects {
 public:
  TorchTensorTaker() = default;
  TorchTensorTaker(const TorchTensorTaker&) = delete;
  TorchTensorTaker& operator=(const TorchTensorTaker&) = delete;

  // The number of the tensor that `call` creates; a wrapper of a tensor that was taken, such as a parameter, is that
  // tensor. nullopt for other calls, and for a tensor that cannot be read: Add of the value returns the reason.
  std::optional<uint32_t> Take(PickleValue call) override;
  int64_t place(uint32_t object) const override { return tensors_.tensors_[object].place; }
  int64_t memory() const override;

  // The number of the tensor that `value` is or creates; of a DTensor, the number of its local tensor. Precondition:
  // IsTensor(value). Errors as ReadTorchTensor and DTensorReader; kDataLoss also for a storage to which two tensors
  // assign different sizes, and for a local tensor that is not the part that its DTensor says.
  absl::StatusOr<uint32_t> Add(PickleValue value);

  // True for a tensor that was taken, and for the calls that create one.
  static bool IsTensor(PickleValue value) { return value.is(PickleKind::kObject) || IsTorchTensor(value); }

  // Returns the table; the taker is empty afterwards.
  TorchTensors Finish();

 private:
  struct Hash {
    using is_transparent = void;
    const TorchTensors* tensors;
    size_t operator()(std::string_view key) const { return std::hash<std::string_view>()(key); }
    size_t operator()(uint32_t storage) const { return (*this)(tensors->storage_key(storage)); }
  };
  struct Equal {
    using is_transparent = void;
    const TorchTensors* tensors;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(uint32_t storage, std::string_view key) const { return tensors->storage_key(storage) == key; }
    bool operator()(std::string_view key, uint32_t storage) const { return tensors->storage_key(storage) == key; }
  };

  // The number of the local tensor of a DTensor. Never taken while the pickle is parsed: its mesh is a value that
  // others refer to.
  absl::StatusOr<uint32_t> AddDTensor(PickleValue value);

  // Records what `value` puts around tensor `number`.
  void NoteWrapper(PickleValue value, uint32_t number);

  // The number of a storage, which is added if its key is new.
  absl::StatusOr<uint32_t> StorageOf(const TorchStorage& storage, PickleValue value);
  // The index in sizes_ of the sizes of `tensor`; shared with the last tensor of its rank if they are equal.
  uint32_t SizesOf(const TorchTensor& tensor, bool is_row_major);

  TorchTensors tensors_;
  absl::flat_hash_set<uint32_t, Hash, Equal> storages_{0, Hash{&tensors_}, Equal{&tensors_}};  // by key
  size_t key_block_left_ = 0;  // unused bytes of the last block
  DTensorReader dtensors_;
  std::array<std::optional<uint32_t>, kMaxTorchRank + 1> last_of_rank_ = {};
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_TENSORS_H_
