// SPDX-License-Identifier: Apache-2.0

#include "fsdp/base/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

// Highway compiles the loop for AVX-512, AVX2 and the portable baseline.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/streaming_copy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

//
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLine = 64;

// Writes whole cache lines only: a partial line would have to be read before it is written. StreamingCopy writes the
// ends with memcpy.
void StreamLinesOnTarget(uint8_t* to, const uint8_t* from, size_t lines) {
  const hn::CappedTag<uint8_t, kLine> vector;
  const size_t lanes = hn::Lanes(vector);
  for (size_t i = 0; i < lines * kLine; i += lanes) hn::Stream(hn::LoadU(vector, from + i), vector, to + i);
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(StreamLinesOnTarget);

void StreamingCopy(void* to, const void* from, size_t nbytes) {
  constexpr size_t kAlignment = 64;
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  const size_t head = std::min(nbytes, (kAlignment - reinterpret_cast<uintptr_t>(out) % kAlignment) % kAlignment);
  const size_t lines = (nbytes - head) / kAlignment;
  const size_t tail = head + lines * kAlignment;
  std::memcpy(out, in, head);
  HWY_DYNAMIC_DISPATCH(StreamLinesOnTarget)(out + head, in + head, lines);
  std::memcpy(out + tail, in + tail, nbytes - tail);
}

}  // namespace fsdp
#endif  // HWY_ONCE
