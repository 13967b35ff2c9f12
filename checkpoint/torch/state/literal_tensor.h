// SPDX-License-Identifier: Apache-2.0
//
// LiteralTensor: a small tensor with its bytes, and its form in JSON, for tensors among plain values, such as the
// learning rate of a capturable optimizer:
//
//   {"__python__": "tensor", "dtype": "float32", "shape": [2], "hex": "cdcccc3d0000003f"}
//
// A param_groups of ours says numbers as numbers, so that whoever loads them need not know of tensors. What was a
// tensor is noted beside them:
//
//   {"lr": 0.001, "betas": [0.9, 0.95], "__tensors__": {"lr": "float32"}, "params": [...]}
#ifndef FSDP_CHECKPOINT_TORCH_STATE_LITERAL_TENSOR_H_
#define FSDP_CHECKPOINT_TORCH_STATE_LITERAL_TENSOR_H_

#include <optional>
#include <string>

#include "fsdp/checkpoint/torch/state/python_json.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

struct LiteralTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::string bytes;  // row-major, little-endian
};

// More bytes than any hyperparameter has; a larger tensor among plain values is refused.
inline constexpr int64_t kMaxLiteralBytes = 4096;

inline constexpr char kTensorsOfGroup[] = "__tensors__";

PythonJson JsonOfTensor(const LiteralTensor& tensor);

// Nothing where `json` is not what JsonOfTensor gives.
std::optional<LiteralTensor> TensorOfJson(const PythonJson& json);

// `group`, a member of param_groups, with numbers for tensors without dimensions, which are noted under
// kTensorsOfGroup. Those that no number holds exactly, and those with dimensions, stay as they are.
PythonJson WithNumbersForTensors(const PythonJson& group);

// The inverse.
PythonJson WithTensorsForNumbers(const PythonJson& group);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_STATE_LITERAL_TENSOR_H_
