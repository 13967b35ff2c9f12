// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/host/host_dropout.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "fsdp/base/random.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// A run of random numbers that stays in the first cache.
constexpr int64_t kRun = 1024;

template <typename T, typename Widen, typename Round>
void DropRun(const float* random, const DropoutMask& mask, const T* x, T* out, int64_t n, Widen widen, Round round) {
  const float scale = 1 / (1 - mask.p);
  for (int64_t i = 0; i < n; ++i) out[i] = random[i] >= mask.p ? round(widen(x[i]) * scale) : T{0};
}

}  // namespace

void HostDropout(const Tensor& x, const DropoutMask& mask, const Tensor& out) {
  const Philox philox(mask.seed, mask.sequence);
  std::array<float, kRun> random;
  for (int64_t begin = 0; begin < x.numel(); begin += kRun) {
    const int64_t n = std::min(kRun, x.numel() - begin);
    FillUniform(philox, mask.first + static_cast<uint64_t>(begin), absl::MakeSpan(random.data(), n));
    if (x.dtype() == DType::kBFloat16) {
      DropRun(random.data(), mask, x.data_as<uint16_t>() + begin, out.data_as<uint16_t>() + begin, n, BFloat16ToFloat,
              FloatToBFloat16);
    } else if (x.dtype() == DType::kFloat16) {
      DropRun(random.data(), mask, x.data_as<uint16_t>() + begin, out.data_as<uint16_t>() + begin, n, Float16ToFloat,
              FloatToFloat16);
    } else {
      const auto same = [](float value) { return value; };
      DropRun(random.data(), mask, x.data_as<float>() + begin, out.data_as<float>() + begin, n, same, same);
    }
  }
}

}  // namespace fsdp
