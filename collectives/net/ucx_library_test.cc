// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/ucx_library.h"

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

}  // namespace
}  // namespace fsdp
