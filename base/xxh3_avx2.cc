// SPDX-License-Identifier: Apache-2.0
//
// XXH_INLINE_ALL makes every function of xxhash.h private to this translation unit, so that they do not clash with the
// library's. Everything else is included above HWY_PUSH_ATTRIBUTES: the linker could keep an inline function that was
// compiled below it for the whole program.
#include "fsdp/base/xxh3.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx2")

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
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

extern const Xxh3 kXxh3Avx2;
const Xxh3 kXxh3Avx2 = {"avx2", Of, Update};

}  // namespace fsdp

HWY_POP_ATTRIBUTES

#endif  // defined(__x86_64__)
