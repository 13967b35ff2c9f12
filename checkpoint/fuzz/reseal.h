// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_CHECKPOINT_FUZZ_RESEAL_H_
#define FSDP_CHECKPOINT_FUZZ_RESEAL_H_

#include <string>
#include <string_view>

namespace fsdp {

// A manifest or record with the right seal: the members before "digest", closed by their own digest. Nothing behind the
// comparison of digests is reached otherwise, since no change of an input keeps its digest right.
std::string Resealed(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FUZZ_RESEAL_H_
