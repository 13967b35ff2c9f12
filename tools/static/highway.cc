// SPDX-License-Identifier: Apache-2.0
//
// The two functions in libhwy.so for programs that use Highway's headers, here for static programs: distributions ship
// that library without an archive. They report this processor's instructions, by the names of set_macros-inl.h.
#include <hwy/targets.h>

#include <cstdint>

namespace hwy {
namespace {

int64_t OfThisProcessor() {
  int64_t targets = 0;
#if HWY_ARCH_X86
  __builtin_cpu_init();
  // Each target includes the instructions of the one before.
  if (!__builtin_cpu_supports("ssse3")) return targets;
  targets |= HWY_SSSE3;
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("aes")) {
    return targets;
  }
  targets |= HWY_SSE4;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2") ||
      !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
    return targets;
  }
  targets |= HWY_AVX2;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512bw")) {
    return targets;
  }
  targets |= HWY_AVX3;
#endif
  return targets;
}

}  // namespace

int64_t SupportedTargets() {
  static const int64_t targets = OfThisProcessor();
  // Callers choose the best target of the set, which must not be empty.
  return targets == 0 ? HWY_STATIC_TARGET : targets;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
