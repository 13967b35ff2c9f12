// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/peft/fused_sums.h"

#include <cmath>
#include <random>
#include <vector>

#include "fsdp/tensor/each_target.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(FusedSumsTest, EverySumIsThatOfFusedOperationsInOrder) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 1);
  ForEachTarget([&] {
    for (const int64_t count : {1, 2, 17}) {
      for (const int64_t numel : {0, 1, 3, 8, 31, 64, 133, 300}) {
        const int64_t stride = numel + 5;
        std::vector<float> factors(count);
        std::vector<float> terms(count * stride);
        for (float& value : factors) value = normal(random);
        for (float& value : terms) value = normal(random);
        std::vector<float> sums(numel + 1, -1);
        FusedSums(factors.data(), terms.data(), count, stride, sums.data(), numel);
        for (int64_t i = 0; i < numel; ++i) {
          float sum = 0;
          for (int64_t k = 0; k < count; ++k) sum = std::fma(factors[k], terms[k * stride + i], sum);
          ASSERT_EQ(sums[i], sum) << count << " terms, sum " << i << " of " << numel;
        }
        EXPECT_EQ(sums[numel], -1);  // not written
      }
    }
  });
}

}  // namespace
}  // namespace fsdp
