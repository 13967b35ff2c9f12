// SPDX-License-Identifier: Apache-2.0
//
// XXH3-128 with AVX2 if this processor has it. Distributions build libxxhash for their oldest processor: with SSE2 it
// digests 20 GB/s, with AVX2 49 GB/s, and AVX-512 is not faster (one core, bytes in its cache). The library's functions
// that choose by processor are in its shared object only, not in its archive. The results are the same.
#ifndef FSDP_BASE_XXH3_H_
#define FSDP_BASE_XXH3_H_

#include <cstddef>
#include <vector>

#include "fsdp/base/digest.h"

namespace fsdp {

// The functions that process many bytes; the library creates, resets and finishes states.
struct Xxh3 {
  const char* target;  // the instruction set as compilers name it; "" for the library's own functions
  Digest (*of)(const void* bytes, size_t nbytes);
  bool (*update)(void* state, const void* bytes, size_t nbytes);  // an XXH3_state_t; false on error
};

// The fastest. Thread-safe.
const Xxh3& BestXxh3();

// All that this processor can run, the fastest last.
std::vector<Xxh3> SupportedXxh3();

}  // namespace fsdp

#endif  // FSDP_BASE_XXH3_H_
