// SPDX-License-Identifier: Apache-2.0
//
// The rules for operands of the kernels of ops.h, on every device: kInvalidArgument that names the operation, the
// operand, and its actual form. The kernels call these on the stream, so that their errors come in stream order like
// all others.
#ifndef FSDP_TENSOR_CHECK_OPERANDS_H_
#define FSDP_TENSOR_CHECK_OPERANDS_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Defined, and without padding between rows. `op` and `role` are the words of the message: "cast_divide", "source".
absl::Status CheckDefined(std::string_view op, std::string_view role, const Tensor& t);

// Float64, float32, bfloat16 or float16.
absl::Status CheckFloats(std::string_view op, std::string_view role, const Tensor& t);

// `t` is a single float32.
absl::Status CheckScalar(std::string_view op, std::string_view role, const Tensor& t);

// `source` and `destination` are of float dtypes, and of equal numel.
absl::Status CheckPair(std::string_view op, const Tensor& source, const Tensor& destination);

// As CheckPair, but without the check of equal numel; every interval must be inside both. Names the first that is not.
absl::Status CheckIntervals(std::string_view op, const Tensor& source, const Tensor& destination,
                            const std::vector<IntervalCopy>& intervals);

// The operands of a copy of TensorOps::CopyTensors: of equal nbytes.
absl::Status CheckCopy(const Tensor& source, const Tensor& destination);

// The operands of TensorOps::ClipCoefficient: `squared_norms` float32, `result` two float32.
absl::Status CheckClipOperands(const Tensor& squared_norms, const Tensor& result);

}  // namespace fsdp

#endif  // FSDP_TENSOR_CHECK_OPERANDS_H_
