// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_CHECKPOINT_FUZZ_RESEAL_H_
#define FSDP_CHECKPOINT_FUZZ_RESEAL_H_

#include <string>
#include <string_view>

namespace fsdp {

// A manifest or record with a corrected seal: the members before "digest", followed by their digest. Otherwise code
// after the comparison of digests would never be reached, since any change of an input breaks its digest.
std::string Resealed(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FUZZ_RESEAL_H_
