// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/convert/name_filter.h"

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

TEST(NameFilterTest, KeepsEverythingByDefault) {
  ASSERT_OK_AND_ASSIGN(const NameFilter filter, NameFilter::Create({}));
  EXPECT_TRUE(filter.empty());
  EXPECT_THAT(filter.Keeps("h.0.weight"), IsOkAndHolds(true));
  EXPECT_THAT(filter.Rename("h.0.weight"), IsOkAndHolds(std::string("h.0.weight")));
}

TEST(NameFilterTest, AnyIncludeAndNoExcludeMatchAnywhereInTheName) {
  ASSERT_OK_AND_ASSIGN(const NameFilter filter, NameFilter::Create({{"\\.1\\.", "^wte"}, {"bias$"}, {}}));
  EXPECT_FALSE(filter.empty());
  EXPECT_THAT(filter.Keeps("h.1.weight"), IsOkAndHolds(true));
  EXPECT_THAT(filter.Keeps("wte.weight"), IsOkAndHolds(true));
  EXPECT_THAT(filter.Keeps("h.11.weight"), IsOkAndHolds(false));
  EXPECT_THAT(filter.Keeps("h.1.bias"), IsOkAndHolds(false));
}

TEST(NameFilterTest, RenamesInOrderEveryMatch) {
  ASSERT_OK_AND_ASSIGN(
      const NameFilter filter,
      NameFilter::Create({{}, {}, {{"^transformer\\.", ""}, {"h\\.(\\d+)", "layers.$1"}, {"a", "b"}}}));
  EXPECT_THAT(filter.Rename("transformer.h.12.attn.a"), IsOkAndHolds(std::string("lbyers.12.bttn.b")));
}

TEST(NameFilterTest, ABackslashNamesAGroupToo) {
  ASSERT_OK_AND_ASSIGN(const NameFilter filter, NameFilter::Create({{}, {}, {{"h\\.(\\d+)\\.(\\w+)", "\\2.\\1"}}}));
  EXPECT_THAT(filter.Rename("h.3.attn"), IsOkAndHolds(std::string("attn.3")));
}

TEST(NameFilterTest, AnInvalidRegularExpressionIsNamed) {
  for (const char* pattern : {"(", "a{2,1}", "[z-a]", "\\", "*"}) {
    EXPECT_THAT(NameFilter::Create({{pattern}, {}, {}}),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("is not a regular expression")))
        << pattern;
    EXPECT_THAT(NameFilter::Create({{}, {pattern}, {}}), StatusIs(StatusCode::kInvalidArgument)) << pattern;
    EXPECT_THAT(NameFilter::Create({{}, {}, {{pattern, ""}}}), StatusIs(StatusCode::kInvalidArgument)) << pattern;
  }
}

TEST(NameFilterTest, LongPatternsAndNamesAreRefusedInsteadOfOverflowingTheStack) {
  EXPECT_THAT(NameFilter::Create({{std::string(1'000'000, '(')}, {}, {}}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("1000000 bytes, expected at most 1024")));
  ASSERT_OK_AND_ASSIGN(const NameFilter filter, NameFilter::Create({{"^(a|b)*x"}, {}, {{"^(.*)\\.(.|b)*", "$1"}}}));
  EXPECT_THAT(filter.Keeps(std::string(1024, 'a')), IsOkAndHolds(false));
  EXPECT_THAT(filter.Keeps(std::string(1025, 'a')),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("1025 bytes"), HasSubstr("aaa...aaa"))));
  EXPECT_OK(filter.Rename(std::string(1024, 'a')));
  EXPECT_THAT(filter.Rename(std::string(1025, 'a')), StatusIs(StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace fsdp
