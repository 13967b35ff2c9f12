// SPDX-License-Identifier: Apache-2.0
//
// TorchTensor: a tensor as torch.save describes it: a view, by offset, sizes and strides, of a storage whose bytes are
// outside the pickle. Read from a pickle's value, with every number checked. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_TENSOR_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_TENSOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// A storage as a persistent id describes it. Its size in the file is checked when the storage is located.
struct TorchStorage {
  std::string key;
  std::optional<DType> dtype = {};  // of a torch.FloatStorage and the like; nullopt: an UntypedStorage
  int64_t nbytes = 0;

  // Bytes of one element, the unit in which the file counts its length.
  int64_t element_size() const { return dtype ? SizeOf(*dtype) : 1; }
};

// Element (i, j, ...) is element offset + i * strides[0] + j * strides[1] + ... of the storage. Every element is inside
// it.
struct TorchTensor {
  TorchStorage storage;
  DType dtype = DType::kFloat32;
  Shape shape;
  absl::InlinedVector<int64_t, 4> strides;  // in elements, one for each dimension; not negative
  int64_t offset = 0;                       // of the first element in the storage, in elements

  // True when its elements are consecutive in row-major order.
  bool is_contiguous() const;

  // Bytes of the storage from its first element to its last, both included; at most the storage's. Fewer bytes than the
  // elements have in an expanded or overlapping view.
  int64_t touched_bytes() const;
};

// More dimensions are refused; torch does not allow more.
inline constexpr int kMaxTorchRank = 64;

// The value inside a parameter, or inside a parameter of a parameter: the call that creates the tensor, or a tensor of
// PickleObjects; `value` itself if it is not a parameter.
PickleValue UnwrapTorchTensor(PickleValue value);

// What a program had around a tensor.
struct TorchWrapper {
  bool is_parameter = false;    // a torch.nn.Parameter
  bool has_attributes = false;  // values that were set on it, such as `persistent` of a torch.nn.Buffer
};

// Of a value for ReadTorchTensor. Subclasses of Parameter are pickled as parameters.
TorchWrapper WrapperOf(PickleValue value);

// True for the calls that create a tensor, a parameter or a tensor with attributes: values for ReadTorchTensor.
bool IsTorchTensor(PickleValue value);

// kInvalidArgument for a tensor that cannot be read (a dtype that this project does not support, a conjugated view), by
// name; kDataLoss for numbers that contradict each other, such as a view that reaches beyond its storage. Messages name
// the byte of the pickle.
absl::StatusOr<TorchTensor> ReadTorchTensor(PickleValue value);

// A persistent id: ("storage", class, key, location, numel[, view]).
absl::StatusOr<TorchStorage> ReadTorchStorage(PickleValue persistent);

// A torch.Size, tuple or list of integers that are not negative.
absl::StatusOr<std::vector<int64_t>> ReadSizes(PickleValue value);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_TENSOR_H_
