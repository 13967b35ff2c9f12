// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/ucx_library.h"

#include <stdlib.h>

#include <string>

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

TEST(UcxLibraryTest, AnAbsentLibraryIsNamedWithItsPackage) {
  EXPECT_THAT(LoadUcpFrom("libucp-that-is-not-there.so.0").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       testing::AllOf(HasSubstr("Debian package libucx0"), HasSubstr("libucp-that-is-not-there"))));
}

TEST(UcxLibraryTest, ALibraryWithoutTheFunctionsIsRefused) {
  EXPECT_THAT(LoadUcpFrom("libc.so.6").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("libc.so.6 has no ucp_init_version")));
}

TEST(UcxLibraryTest, WhatIsInstalledHasAllFunctions) {
  const absl::StatusOr<const UcpFunctions*> ucp = LoadUcp();
  if (!ucp.ok()) GTEST_SKIP() << ucp.status();
  EXPECT_NE((*ucp)->request_free, nullptr);
}

// The settings are made before the library is searched.
TEST(UcxLibraryTest, ASettingOfTheUserIsKeptAndOneThatIsMissingIsMade) {
  constexpr char kName[] = "UCX_TCP_RX_SEG_SIZE";
  const char* const before = getenv(kName);
  const std::string saved = before == nullptr ? "" : before;
  ASSERT_EQ(setenv(kName, "96k", 1), 0);
  EXPECT_FALSE(LoadUcpFrom("libucp-that-is-not-there.so.0").ok());
  EXPECT_STREQ(getenv(kName), "96k");
  ASSERT_EQ(unsetenv(kName), 0);
  EXPECT_FALSE(LoadUcpFrom("libucp-that-is-not-there.so.0").ok());
  EXPECT_STREQ(getenv(kName), "512k");
  if (!saved.empty()) setenv(kName, saved.c_str(), 1);
}

}  // namespace
}  // namespace fsdp
