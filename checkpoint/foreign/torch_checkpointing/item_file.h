// SPDX-License-Identifier: Apache-2.0
//
// ItemFile: one item of one rank, as its file has it: a tree of values, and its tensors, which are local ones: parts,
// or copies, of the tensors of the checkpoint. Opening reads metadata; elements are read from the file of a FilePool,
// so that a run of thousands of ranks needs few open files. Thread-safe once opened.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_FILE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pt/file_pool.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/items_metadata.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

// The elements of a local tensor in its file.
struct LocalTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  int64_t offset = 0;                       // in the file, in bytes, of the first element
  absl::InlinedVector<int64_t, 4> strides;  // in elements
  bool is_contiguous = true;
  // The storage that it is a view of: a number in the file, its CRC-32 (0: unknown), and whether it shows all of it.
  int64_t storage = 0;
  uint32_t crc = 0;
  bool is_whole_storage = false;
};

class ItemFile {
 public:
  // `directory` is the directory of `pool`. With options.verify, CRCs of what is read from the pool are compared from
  // now on. Errors name the file; kInvalidArgument also for a tensor that has more elements than its bytes.
  static absl::StatusOr<std::unique_ptr<ItemFile>> Open(const std::string& directory, const ItemLayout& layout,
                                                        const TensorSourceOptions& options, FilePool& pool);

  const std::string& name() const { return layout_.file; }
  ItemFormat format() const { return layout_.format; }

  // The tree, whose tensors are numbers below size(). Of a safetensors file a dict of tensors, of JSON a value, of
  // other bytes Python's bytes. Once.
  TorchNode TakeRoot() { return std::move(root_); }

  int64_t size() const;
  DType dtype(int tensor) const;
  Shape shape(int tensor) const;
  TorchWrapper wrapper(int tensor) const;
  LocalTensor tensor(int tensor) const;

  // The division that the file itself states; null if nothing, and after DropDTensors.
  const DTensor* dtensor(int tensor) const;
  void DropDTensors() { archive_.tree.tensors.DropDTensors(); }

  // Why the file is no value of the checkpoint, for TensorSource::left_out: text or bytes that are too many; else
  // empty.
  const std::string& left_out() const { return left_out_; }

  // Elements `interval` of a tensor, row-major; or the elements of the box of `shape` at `start` in it, row-major in
  // the box.
  absl::Status Read(FilePool& pool, int tensor, const Interval& interval, std::byte* out) const;
  absl::Status ReadBox(FilePool& pool, int tensor, const std::vector<int64_t>& start, const Shape& shape,
                       const Interval& interval, std::byte* out) const;

 private:
  explicit ItemFile(const ItemLayout& layout) : layout_(layout) {}

  absl::Status ReadTorch(const File& file, const TensorSourceOptions& options);
  absl::Status ReadSafetensors(const std::string& path);
  absl::Status ReadValue(const File& file);

  const ItemLayout layout_;
  TorchNode root_;
  TorchArchive archive_;  // of a torch file
  struct Entry {
    DType dtype = DType::kFloat32;
    Shape shape;
    int64_t offset = 0;
  };
  std::vector<Entry> entries_;  // of a safetensors file
  std::string left_out_;
};

// True if two local tensors have the same elements: by their CRCs, or, if they have at most `max_bytes`, by their
// bytes. nullopt if neither tells. Errors of the files.
absl::StatusOr<std::optional<bool>> AreCopies(FilePool& pool, const ItemFile& a, int tensor_of_a, const ItemFile& b,
                                              int tensor_of_b, int64_t max_bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_ITEM_FILE_H_
