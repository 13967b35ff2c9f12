// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of ops.h must be given, on every device: kInvalidArgument with the operation and the operand. The
// checks run on the stream, so that their errors come in stream order as all others do.
#ifndef FSDP_TENSOR_CHECK_OPERANDS_H_
#define FSDP_TENSOR_CHECK_OPERANDS_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

absl::Status CheckDefined(std::string_view op, std::string_view role, const Tensor& t);

// Float64, float32, bfloat16 or float16.
absl::Status CheckFloats(std::string_view op, std::string_view role, const Tensor& t);

// One float32.
absl::Status CheckScalar(std::string_view op, std::string_view role, const Tensor& t);

// Two of floats, of equal numel.
absl::Status CheckPair(std::string_view op, const Tensor& source, const Tensor& destination);

// Two of floats that have the intervals; the first that leaves one of them is named.
absl::Status CheckIntervals(std::string_view op, const Tensor& source, const Tensor& destination,
                            const std::vector<IntervalCopy>& intervals);

// Of TensorOps::ClipCoefficient.
absl::Status CheckClipOperands(const Tensor& squared_norms, const Tensor& result);

}  // namespace fsdp

#endif  // FSDP_TENSOR_CHECK_OPERANDS_H_
