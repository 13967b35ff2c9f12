// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/network_interfaces.h"

#include <string>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(NetworkInterfacesTest, LoopbackLeadsToNoOtherHost) {
  for (const char* const host : {"127.0.0.1", "127.0.1.1", "localhost", "::1"}) {
    EXPECT_EQ(InterfaceTowards(host).name, "") << host;
  }
  EXPECT_EQ(InterfaceTowards("no-such-host.invalid").name, "");
}

TEST(NetworkInterfacesTest, DevicesWithoutAnAddressStandAsTheyAre) {
  EXPECT_EQ(DescribeNetworks("mlx5_0:1"), "mlx5_0:1");
  EXPECT_EQ(DescribeNetworks("mlx5_0:1,none0"), "mlx5_0:1, none0");
  EXPECT_THAT(DescribeNetworks("all"), Not(HasSubstr("127.0.0.1")));
  EXPECT_EQ(DescribeNetworks(""), DescribeNetworks("all"));
  EXPECT_FALSE(DescribeNetworks("").empty());
}

}  // namespace
}  // namespace fsdp
