// SPDX-License-Identifier: Apache-2.0
//
// FusedSums: a row of a product of two matrices of float32, by fused multiplications and additions in the order of the
// terms. Vectorised with run-time dispatch; a processor without such instructions computes in float64, which rounds
// otherwise in about one of 2^29 sums.
#ifndef FSDP_CHECKPOINT_FOREIGN_PEFT_FUSED_SUMS_H_
#define FSDP_CHECKPOINT_FOREIGN_PEFT_FUSED_SUMS_H_

#include <cstdint>

namespace fsdp {

// sums[i] = factors[0] * terms[i] + factors[1] * terms[stride + i] + ..., `count` terms, for the `numel` sums from 0
// on.
void FusedSums(const float* factors, const float* terms, int64_t count, int64_t stride, float* sums, int64_t numel);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_PEFT_FUSED_SUMS_H_
