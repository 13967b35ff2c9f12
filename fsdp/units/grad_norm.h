// SPDX-License-Identifier: Apache-2.0
//
// p-norms of tensors in host memory, summed in float64 in the order of the elements, so that every run gives the same
// bits. For norms that TensorOps has no kernel for.
#ifndef FSDP_FSDP_UNITS_GRAD_NORM_H_
#define FSDP_FSDP_UNITS_GRAD_NORM_H_

#include "absl/status/statusor.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// The sum of |t[i]|^p; of an infinite `p` the largest |t[i]|. NaN comes through. kInvalidArgument for a dtype that
// does not convert to float64.
absl::StatusOr<double> PowerSum(const Tensor& t, double p);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_GRAD_NORM_H_
