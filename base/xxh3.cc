// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/xxh3.h"

#include <xxhash.h>

namespace fsdp {
namespace {

Digest Of(const void* bytes, size_t nbytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes, nbytes);
  return {hash.high64, hash.low64};
}

bool Update(void* state, const void* bytes, size_t nbytes) {
  return XXH3_128bits_update(static_cast<XXH3_state_t*>(state), bytes, nbytes) == XXH_OK;
}

}  // namespace

#if defined(__x86_64__)
extern const Xxh3 kXxh3Avx2;  // xxh3_avx2.cc
#endif

std::vector<Xxh3> SupportedXxh3() {
  std::vector<Xxh3> all = {{"", Of, Update}};
#if defined(__x86_64__)
  // This also checks that the kernel saves the registers.
  if (__builtin_cpu_supports("avx2")) all.push_back(kXxh3Avx2);
#endif
  return all;
}

const Xxh3& BestXxh3() {
  static const Xxh3 best = SupportedXxh3().back();
  return best;
}

}  // namespace fsdp
