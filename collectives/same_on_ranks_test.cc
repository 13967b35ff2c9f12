// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/group/same_on_ranks.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// CheckSameOnRanks on a rank for each list; all ranks get the same.
absl::Status Compare(const std::vector<std::vector<RankFact>>& facts) {
  std::vector<absl::Status> results(facts.size());
  EXPECT_OK(RunRanks(static_cast<int>(facts.size()), [&](const std::shared_ptr<ProcessGroup>& group) {
    results[group->rank()] = CheckSameOnRanks(*group, facts[group->rank()], "start them alike");
    return absl::OkStatus();
  }));
  for (const absl::Status& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

std::string ThisHost() {
  std::string name(255, '\0');
  gethostname(name.data(), name.size());
  return name.c_str();
}

TEST(SameOnRanksTest, EqualFactsFromOtherPlacesAreEqual) {
  EXPECT_OK(Compare({{}, {}}));
  EXPECT_OK(Compare({{{"model", "digest 1", "/a"}}, {{"model", "digest 1", "/b"}}, {{"model", "digest 1", ""}}}));
}

TEST(SameOnRanksTest, ADifferenceNamesTheFactBothValuesRanksHostsAndPlaces) {
  EXPECT_THAT(Compare({{{"--lr", "0.1"}, {"model", "digest 1", "/a"}},
                       {{"--lr", "0.1"}, {"model", "digest 1", "/a"}},
                       {{"--lr", "0.1"}, {"model", "digest 2", "/b"}}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       absl::StrCat("model: digest 1 on rank 0 (", ThisHost(), ", /a), digest 2 on rank 2 (",
                                    ThisHost(), ", /b); expected the same on all ranks: start them alike")));
}

TEST(SameOnRanksTest, OtherSubjectsAndShorterListsAreDifferences) {
  EXPECT_THAT(Compare({{{"--lr", "1"}}, {{"--seed", "1"}}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--lr: 1 on rank 0"), HasSubstr(", but --seed: 1 on rank 1"))));
  EXPECT_THAT(Compare({{{"--lr", "1"}}, {}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(", but nothing more on rank 1 (")));
}

TEST(SameOnRanksTest, LongValuesThatDifferInTheirMiddleDiffer) {
  const std::string ends(400, 'x');
  EXPECT_THAT(Compare({{{"text", ends + "a" + ends}}, {{"text", ends + "b" + ends}}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("text: ")));
}

TEST(SameOnRanksTest, ControlCharactersOfAValueNeitherEndItNorReachTheTerminal) {
  EXPECT_THAT(Compare({{{"a", "1\n2"}, {"b", "\x1b"}}, {{"a", "1"}, {"2", "\x1b"}}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("a: 1\\n2 on"), Not(HasSubstr("\x1b")))));
}

// Two ranks that have taken different branches: the text used to be cut out of the other rank's blob.
TEST(SameOnRanksTest, ARankInAnotherCallIsNamedInsteadOfShowingItsBytes) {
  EXPECT_THAT(RunRanks(2,
                       [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
                         if (group->rank() == 1) return group->AllGatherObject("host-b\n1234").status();
                         const absl::Status status = AllReduceStatus(*group, absl::OkStatus());
                         EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                                      AllOf(HasSubstr("rank 1 of 2 is in another call"),
                                                            Not(HasSubstr("ost-b")))));
                         return absl::OkStatus();
                       }),
              StatusIs(absl::StatusCode::kOk));
  EXPECT_THAT(RunRanks(2,
                       [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
                         if (group->rank() == 1) return group->AllGatherObject("host-b\n1234").status();
                         return CheckSameOnRanks(*group, {{"--lr", "1"}}, "");
                       }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 1 of 2 is in another call than this rank, which compares --lr")));
}

TEST(SameOnRanksTest, AnErrorThatTheRanksAgreedOnKeepsItsRank) {
  EXPECT_OK(RunRanks(3, [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    const absl::Status mine = group->rank() == 2 ? absl::DataLossError("bad") : absl::OkStatus();
    const absl::Status agreed = AllReduceStatus(*group, AllReduceStatus(*group, mine));
    EXPECT_EQ(agreed.message(), "rank 2 of 3: bad");
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
