// SPDX-License-Identifier: Apache-2.0
//
// ParseFloatDType: the floating-point dtype that a person types: PyTorch's name, or one by which other programs know
// it.
#ifndef FSDP_TENSOR_FLOAT_DTYPE_H_
#define FSDP_TENSOR_FLOAT_DTYPE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// Upper case counts as lower case, and "torch." may come first: "bfloat16", "bf16", "BF16", "torch.bfloat16". "fp16",
// "f16" and "half" are float16; "fp32", "f32" and "float" float32; "fp64", "f64" and "double" float64; "fp8_e4m3",
// "f8_e4m3" and "float8_e4m3" float8_e4m3fn; "fp8_e5m2" and "f8_e5m2" float8_e5m2. kInvalidArgument for all others,
// also for other dtypes: the message begins with `text`, and lists the names, the usual ones first.
absl::StatusOr<DType> ParseFloatDType(std::string_view text);

// PyTorch's name of the dtype that ParseFloatDType finds; `text` itself if that does not parse.
std::string FloatDTypeName(std::string_view text);

}  // namespace fsdp

#endif  // FSDP_TENSOR_FLOAT_DTYPE_H_
