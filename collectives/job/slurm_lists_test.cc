// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/slurm_lists.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SlurmListsTest, TheFirstHostKeepsItsZerosAndWhatFollowsItsBrackets) {
  EXPECT_EQ(FirstSlurmHost("node1"), "node1");
  EXPECT_EQ(FirstSlurmHost("a,b"), "a");
  EXPECT_EQ(FirstSlurmHost("n[01-03,7]"), "n01");
  EXPECT_EQ(FirstSlurmHost("n[1,3]"), "n1");
  EXPECT_EQ(FirstSlurmHost("n[5]"), "n5");
  EXPECT_EQ(FirstSlurmHost("gpu[07-09,12],cpu1"), "gpu07");
  EXPECT_EQ(FirstSlurmHost("node[03-07,12]-ib,other"), "node03-ib");
  EXPECT_EQ(FirstSlurmHost("rack[1-2]n[5,7]"), "rack1n5");
}

TEST(SlurmListsTest, AMalformedHostlistHasNoFirstHost) {
  for (const char* list : {"", "n[", "n[]", "n[1-2", "n[-2]", ",n1"}) {
    EXPECT_EQ(FirstSlurmHost(list), "") << list;
  }
}

TEST(SlurmListsTest, TasksAreCountedByNode) {
  EXPECT_EQ(SlurmTasksOfNode("2(x3),1", 0), 2);
  EXPECT_EQ(SlurmTasksOfNode("2(x3),1", 2), 2);
  EXPECT_EQ(SlurmTasksOfNode("2(x3),1", 3), 1);
  EXPECT_EQ(SlurmTasksOfNode("2(x3),1", 4), -1);
  for (const char* list : {"", "x", "2(x", "2(x)", "2(x3", "2x(3"}) {
    EXPECT_EQ(SlurmTasksOfNode(list, 0), -1) << list;
  }
}

TEST(SlurmListsTest, PortsAreListedInOrderUpTo16) {
  EXPECT_THAT(SlurmPorts("12000-12002,12010"), ElementsAre(12000, 12001, 12002, 12010));
  EXPECT_THAT(SlurmPorts("12000"), ElementsAre(12000));
  EXPECT_EQ(SlurmPorts("1-65535").size(), 16u);
  for (const char* list : {"", "a", "12000-", "-12000", "12000-11999", "0", "65536", "1-65536", "1,,2", "1-2-3"}) {
    EXPECT_THAT(SlurmPorts(list), IsEmpty()) << list;
  }
}

}  // namespace
}  // namespace fsdp
