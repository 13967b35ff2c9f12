// SPDX-License-Identifier: Apache-2.0
//
// The counts and reports of VerifySource.
#include "fsdp/checkpoint/formats/verify_source.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(VerifySourceTest, CountsNaNAndInfinityOfEachTensor) {
  StateDict state = FullState({{StateKey::Model("w"), DType::kFloat32, {3, 700'000}},
                               {StateKey::Model("half"), DType::kBFloat16, {4}},
                               {StateKey::Model("count"), DType::kInt32, {6}}});
  state.aliases.clear();
  auto* w = static_cast<float*>(state.FindTensor(StateKey::Model("w"))->shards[0].data.data());
  w[7] = std::nanf("");
  w[2'099'999] = -std::nanf("");
  w[1'048'576] = -INFINITY;
  auto* half = static_cast<uint16_t*>(state.FindTensor(StateKey::Model("half"))->shards[0].data.data());
  std::fill(half, half + 4, 0x7FFF);
  auto* count = static_cast<int32_t*>(state.FindTensor(StateKey::Model("count"))->shards[0].data.data());
  std::fill(count, count + 6, -1);
  const std::string path = NewTestDirectory() + "/model.safetensors";
  ASSERT_OK(WriteSafetensors(path, state, ReadFromMemory(state)));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path));
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifySource(*source, {.count_nonfinite = true}));
  EXPECT_THAT(report.problems, IsEmpty());
  ASSERT_EQ(report.nonfinite.size(), 2);
  EXPECT_EQ(report.nonfinite[0].name, "model/w");
  EXPECT_EQ(report.nonfinite[0].count.nan, 2);
  EXPECT_EQ(report.nonfinite[0].count.inf, 1);
  EXPECT_EQ(report.nonfinite[1].name, "model/half");
  EXPECT_EQ(report.nonfinite[1].count.nan, 4);
  EXPECT_EQ(report.tensors, 3);
  EXPECT_EQ(report.bytes, (2'100'000 + 6) * 4 + 8);
}

TEST(VerifySourceTest, OneUnreadableTensorDoesNotHideAnother) {
  StateDict state = FullState({{StateKey::Model("a"), DType::kBool, {3}},
                               {StateKey::Model("b"), DType::kBool, {3}},
                               {StateKey::Model("c"), DType::kFloat32, {3}}});
  state.aliases.clear();
  for (const char* name : {"a", "b"}) {
    static_cast<char*>(state.FindTensor(StateKey::Model(name))->shards[0].data.data())[1] = 2;
  }
  const std::string path = NewTestDirectory() + "/model.safetensors";
  ASSERT_OK(WriteSafetensors(path, state, ReadFromMemory(state)));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path));
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifySource(*source));
  EXPECT_THAT(report.problems, ElementsAre(HasSubstr("tensor \"a\""), HasSubstr("tensor \"b\"")));
  EXPECT_EQ(report.bytes, 12);
}

}  // namespace
}  // namespace fsdp
