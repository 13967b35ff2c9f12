// SPDX-License-Identifier: Apache-2.0
//
// GemmParts: a large product of 16-bit operands whose sizes are not multiples of 8, as products whose sizes are, and
// thin rests. cuBLASLt has fast kernels for Hopper only if all three sizes are multiples of 8, whatever the strides:
// the head of GPT-2, with 50,257 classes, ran at an eighth of the speed that 50,256 have. With n8 and m8 the largest
// multiples of 8 up to n and m, and k8 the same of k:
//
//               n8      rest
//          +---------+---+        each box is a product over k, of two steps if k is not a multiple of 8: first
//       m8 |         |   |        a[:, k8:] b[k8:, :], which is small and is rounded once, then the rest is added
//          +---------+---+        to a[:, :k8] b[:k8, :] before that sum is rounded
//     rest |         |   |
//          +---------+---+
//
// No part has a matrix whose elements are 2^31 or more apart, as the logits of 64 sequences of 1,024 tokens are: not
// every kernel is known to compute such offsets in 64 bits. Such a product is halved over the rows of that matrix; if
// these are the terms of the sums, the second half is added to the first, as of two micro-batches.
#ifndef FSDP_NN_CUDA_CUDA_GEMM_PARTS_H_
#define FSDP_NN_CUDA_CUDA_GEMM_PARTS_H_

#include <vector>

#include "fsdp/nn/ops/gemm.h"

namespace fsdp {

// The products to run one after the other in place of `gemm`, or only `gemm`. A function of sizes, strides and dtype,
// not of addresses.
std::vector<Gemm> GemmParts(const Gemm& gemm);

// True if tensor cores compute the product, and it is so large that a slow kernel costs more than a few further
// launches and copies.
bool IsLargeTensorCoreProduct(const Gemm& gemm);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_GEMM_PARTS_H_
