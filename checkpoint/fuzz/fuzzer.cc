// SPDX-License-Identifier: Apache-2.0
//
// One libFuzzer program: FSDP_FUZZ_TARGET is a function of fuzz_targets.h.
#include <cstddef>
#include <cstdint>

#include "fsdp/checkpoint/fuzz/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdp::FSDP_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
