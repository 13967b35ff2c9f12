// SPDX-License-Identifier: Apache-2.0
//
// Sha256: the digest by which the golden data identify the bytes of each tensor. Only for tests; checkpoints of this
// project use the digest of base/digest.h.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_SHA256_TESTUTIL_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_SHA256_TESTUTIL_H_

#include <string>
#include <string_view>

namespace fsdp {

// 64 lower-case hexadecimal digits.
std::string Sha256(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_SHA256_TESTUTIL_H_
