// SPDX-License-Identifier: Apache-2.0
//
// TensorList: the tensors of the tree of one file or of several files, by number, and reading their elements.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TENSOR_LIST_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TENSOR_LIST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

// Files that are one checkpoint, in the order of their ranks or names.
using TorchFiles = std::vector<std::shared_ptr<TorchFile>>;

// Tensor `index` of file `file`, which must outlive this.
struct TensorRef {
  const TorchFile* file = nullptr;
  int index = 0;

  const TorchTensors& tensors() const { return file->archive().tree.tensors; }
  TorchTensor tensor() const { return tensors()[index]; }
  DType dtype() const { return tensors().dtype(index); }
  // The offset in the file of the first element of the view.
  int64_t first_byte() const;
};

// One tensor of one file, or the one-dimensional shards of all ranks, which it concatenates.
using TensorRefs = absl::InlinedVector<TensorRef, 1>;

// A list of a million tensors of one file each would take 24 MB, so it is not stored: the tensors of a file follow the
// previous file's.
class TensorList {
 public:
  // Every tensor of every file.
  explicit TensorList(const TorchFiles& files);
  explicit TensorList(std::vector<TensorRefs> refs)
      : size_(static_cast<int64_t>(refs.size())), refs_(std::move(refs)) {}

  int64_t size() const { return size_; }
  TensorRefs operator[](int64_t i) const;

 private:
  int64_t size_ = 0;
  std::vector<int64_t> firsts_;  // by file: its first tensor
  std::vector<const TorchFile*> files_;
  std::vector<TensorRefs> refs_;  // of merged tensors; files_ is empty then
};

// Reads elements `interval` of the tensor, row-major, to `out`. The interval must be inside it. Errors of the files.
absl::Status ReadRefs(const TensorRefs& refs, const Interval& interval, std::byte* out);

// True if two tensors have the same dtype, shape and elements, bit by bit. Equal views of storages with equal CRC-32
// are equal (a file's bytes are compared with its CRC when they are read); others are read up to the first difference,
// a block at a time. Expanded views are equal only if their strides are. Errors of the files.
absl::StatusOr<bool> AreEqual(const TensorRef& a, const TensorRef& b);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_TENSOR_LIST_H_
