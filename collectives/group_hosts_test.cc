// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/group_hosts.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/job/host_identity.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// RanksPerHost on a rank for each host id; all ranks get the same.
absl::StatusOr<int> RanksPerHostOf(const std::vector<std::string>& host_ids) {
  std::vector<absl::StatusOr<int>> results(host_ids.size());
  EXPECT_OK(RunRanks(static_cast<int>(host_ids.size()), [&](std::shared_ptr<ProcessGroup> group) {
    results[group->rank()] = RanksPerHost(*group, host_ids[group->rank()]);
    return absl::OkStatus();
  }));
  for (const absl::StatusOr<int>& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

TEST(RanksPerHostTest, AreTheSameOnEveryHost) {
  EXPECT_THAT(RanksPerHostOf({"a", "a", "b", "b"}), IsOkAndHolds(2));
  EXPECT_THAT(RanksPerHostOf({"a", "a", "a", "b", "b", "b"}), IsOkAndHolds(3));
  EXPECT_THAT(RanksPerHostOf({"a", "b", "c"}), IsOkAndHolds(1));
}

TEST(RanksPerHostTest, AreAllRanksOfOneHost) {
  EXPECT_THAT(RanksPerHostOf({"a", "a", "a"}), IsOkAndHolds(3));
  EXPECT_THAT(RanksPerHostOf({"", "", "", ""}), IsOkAndHolds(4)) << "threads of one process";
  EXPECT_THAT(RanksPerHostOf({""}), IsOkAndHolds(1));
}

TEST(RanksPerHostTest, UnevenHostsAreAnErrorThatNamesThem) {
  const std::string name = HostIdentity::OfThisProcess("").name;
  EXPECT_THAT(RanksPerHostOf({"a", "a", "b"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("there are 2 hosts with 2, 1 ranks: "),
                             HasSubstr(absl::StrCat(name, " has ranks 0, 1; ", name, " has rank 2;")),
                             HasSubstr("or give the size of the shard groups"))));
}

TEST(RanksPerHostTest, RanksThatAlternateAreAnErrorThatNamesThem) {
  EXPECT_THAT(RanksPerHostOf({"a", "b", "a", "b"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("2 hosts whose ranks alternate"), HasSubstr(" has ranks 0, 2; "),
                             HasSubstr("numbered host by host"))));
}

std::string Description(const std::vector<std::string>& host_ids) {
  std::string description;
  EXPECT_OK(RunRanks(static_cast<int>(host_ids.size()), [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const GroupHosts hosts, FindHosts(*group, host_ids[group->rank()]));
    if (group->rank() == 0) description = hosts.ToString();
    return absl::OkStatus();
  }));
  return description;
}

TEST(GroupHostsTest, ToStringSaysWhereRanksAreIfTheyAreNoGrid) {
  EXPECT_EQ(Description({""}), "1 rank on 1 host with 1 rank");
  EXPECT_EQ(Description({"a", "a", "b", "b"}), "4 ranks on 2 hosts with 2 ranks each");
  EXPECT_THAT(Description({"a", "b", "a", "b"}),
              AllOf(StartsWith("4 ranks on 2 hosts whose ranks alternate: "), EndsWith(" has ranks 1, 3")));
}

TEST(GroupHostsTest, ManyHostsAreNotAllNamed) {
  std::vector<std::string> host_ids = {"twice"};
  for (int host = 0; host < 20; ++host) host_ids.push_back(absl::StrCat(host));
  host_ids.push_back("twice");
  EXPECT_THAT(RanksPerHostOf(host_ids).status().message(), HasSubstr(" has rank 15; ...;"));
}

}  // namespace
}  // namespace fsdp
