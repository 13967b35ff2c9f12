// SPDX-License-Identifier: Apache-2.0
//
// LiteralTensor: a small tensor with its bytes, and its form in JSON, for tensors among plain values. The learning rate
// of a capturable optimizer is such a tensor, because a CUDA graph cannot read a Python number:
//
//   {"__python__": "tensor", "dtype": "float32", "shape": [2], "hex": "cdcccc3d0000003f"}
//
// In param_groups of this project such tensors are plain numbers, so that code that loads them need not handle tensors.
// A member of the group records which numbers were tensors, and their dtypes:
//
//   {"lr": 0.001, "betas": [0.9, 0.95], "__tensors__": {"lr": "float32"}, "params": [...]}
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_LITERAL_TENSOR_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_LITERAL_TENSOR_H_

#include <optional>
#include <string>

#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

struct LiteralTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::string bytes;  // row-major, little-endian
};

// In bytes; a larger tensor among plain values is refused. Hyperparameters have a few elements at most.
inline constexpr int64_t kMaxLiteralBytes = 4096;

inline constexpr char kTensorsOfGroup[] = "__tensors__";

// Linear in its bytes, of which there should be at most kMaxLiteralBytes.
PythonJson JsonOfTensor(const LiteralTensor& tensor);

// The inverse of JsonOfTensor; nullopt for any other JSON, even if it differs only in a space or a case.
std::optional<LiteralTensor> TensorOfJson(const PythonJson& json);

// `group`, a member of param_groups, with a number in place of each tensor without dimensions that JSON can hold
// exactly (float32, float64, int64; finite), and kTensorsOfGroup for their dtypes. Other tensors stay as they are.
PythonJson WithNumbersForTensors(const PythonJson& group);

// The inverse of WithNumbersForTensors.
PythonJson WithTensorsForNumbers(const PythonJson& group);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_LITERAL_TENSOR_H_
