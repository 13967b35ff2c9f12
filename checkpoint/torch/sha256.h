// SPDX-License-Identifier: Apache-2.0
//
// Sha256: the digest in which the golden data says what each tensor holds. For tests; what a checkpoint of ours has is
// base/digest.h.
#ifndef FSDP_CHECKPOINT_TORCH_SHA256_H_
#define FSDP_CHECKPOINT_TORCH_SHA256_H_

#include <string>
#include <string_view>

namespace fsdp {

// 64 lower-case hexadecimal digits.
std::string Sha256(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_SHA256_H_
