// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/source_layout.h"

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Section = TensorRole::Section;
using testing::HasSubstr;

TEST(SourceLayoutTest, ARoleIsABranchItsSectionAndAPrefix) {
  ASSERT_OK_AND_ASSIGN(const TensorRole plain, ParseTensorRole("app.model=model"));
  EXPECT_EQ(plain.branch, "app.model");
  EXPECT_EQ(plain.section, Section::kModel);
  EXPECT_EQ(plain.prefix, "");
  ASSERT_OK_AND_ASSIGN(const TensorRole prefixed, ParseTensorRole("a=b=optim.gen.erator"));
  EXPECT_EQ(prefixed.branch, "a=b");
  EXPECT_EQ(prefixed.section, Section::kOptim);
  EXPECT_EQ(prefixed.prefix, "gen.erator.");
  ASSERT_OK_AND_ASSIGN(const TensorRole extra, ParseTensorRole(".=extra"));
  EXPECT_EQ(extra.branch, ".");
  EXPECT_EQ(extra.section, Section::kExtra);
}

TEST(SourceLayoutTest, ATextThatIsNoRoleIsQuoted) {
  for (const char* text : {"", "model", "=model", "a=", "a=weights", "a=model.", "a=extra.b"}) {
    EXPECT_THAT(ParseTensorRole(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected FROM=ROLE or FROM=ROLE.PREFIX")))
        << text;
  }
}

TEST(SourceLayoutTest, TheRolesOfAFlagKeepTheirOrderAndAnErrorNamesTheFlag) {
  ASSERT_OK_AND_ASSIGN(const std::vector<TensorRole> roles, RolesOfMapFlag({"b=model", "a=extra"}));
  ASSERT_EQ(roles.size(), 2);
  EXPECT_EQ(roles[0].branch, "b");
  EXPECT_EQ(roles[1].section, Section::kExtra);
  EXPECT_THAT(RolesOfMapFlag({"b=model", "a"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--map: \"a\", expected FROM=ROLE")));
}

}  // namespace
}  // namespace fsdp
