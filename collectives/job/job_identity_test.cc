// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/job_identity.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Environment = std::map<std::string, std::string>;

const ProcessEvidence& ByHand() {
  static const ProcessEvidence evidence = {.user = 7, .directory = "/run", .command_line = {"program", "--lr=1"}};
  return evidence;
}

std::string Identify(const Environment& environment, const ProcessEvidence& evidence = ByHand()) {
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto it = environment.find(name);
    return it == environment.end() ? std::nullopt : std::optional<std::string>(it->second);
  };
  return IdentifyJob(lookup, evidence);
}

TEST(JobIdentityTest, TheFirstNameInTheOrderOfPrecedenceIsTaken) {
  const struct {
    Environment added;
    std::string name;
  } rows[] = {
      {{{"LSB_JOBID", "6"}}, "lsf 6"},
      {{{"PBS_JOBID", "5.server"}}, "pbs 5.server"},
      {{{"SLURM_JOBID", "3"}}, "slurm 3"},
      {{{"SLURM_JOB_ID", "4"}}, "slurm 4"},
      {{{"SLURM_STEP_ID", "0"}}, "slurm 4.0"},
      {{{"OMPI_MCA_ess_base_jobid", "99"}}, "openmpi 99"},
      {{{"PMIX_NAMESPACE", "host-123@1"}}, "pmix host-123@1"},
      {{{"TORCHELASTIC_RUN_ID", "none"}}, "pmix host-123@1"},
      {{{"TORCHELASTIC_RUN_ID", "abc"}}, "torchrun abc"},
      {{{"FSDP_RUN_ID", "nightly"}}, "run nightly"},
      {{{"FSDP_LAUNCH_ID", "29500.77"}}, "run nightly"},
      {{{"MASTER_PORT", "2950"}}, "run nightly"},
      {{{"MASTER_PORT", "29500"}}, "launch 29500.77"},
  };
  Environment environment;
  for (const auto& row : rows) {
    for (const auto& [name, value] : row.added) environment[name] = value;
    EXPECT_EQ(Identify(environment), row.name);
  }
  for (auto& [name, value] : environment) value = "";
  EXPECT_EQ(Identify(environment), Identify({})) << "empty is unset";
}

// Hosts may run the program in different directories.
TEST(JobIdentityTest, ATorchrunJobWithoutARunIdHasTheNameOfItsAgentsStore) {
  const Environment agent = {{"TORCHELASTIC_RUN_ID", "none"}, {"MASTER_ADDR", "host-a"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(Identify(agent), Identify({})) << "the port is not the agent's";
  Environment with_store = agent;
  with_store["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(Identify(with_store), "torchrun at host-a:29500");
}

TEST(JobIdentityTest, WithoutANameUserDirectoryAndCommandLineTell) {
  const std::string name = Identify({});
  EXPECT_THAT(name, testing::MatchesRegex("command [0-9a-f]+ in /run"));
  EXPECT_EQ(Identify({}), name);
  const ProcessEvidence others[] = {
      {.user = 8, .directory = "/run", .command_line = {"program", "--lr=1"}},
      {.user = 7, .directory = "/other", .command_line = {"program", "--lr=1"}},
      {.user = 7, .directory = "/run", .command_line = {"program", "--lr=2"}},
      {.user = 7, .directory = "/run", .command_line = {"program", "--lr", "=1"}},
  };
  for (const ProcessEvidence& other : others) EXPECT_NE(Identify({}, other), name);
}

TEST(JobIdentityTest, LongAndUnprintableNamesAreShortAndPrintableAndStayDifferent) {
  EXPECT_EQ(Identify({{"FSDP_RUN_ID", "a\nb"}}), "run a\\nb");
  const std::string one = Identify({{"FSDP_RUN_ID", std::string(5000, 'x') + "1"}});
  const std::string two = Identify({{"FSDP_RUN_ID", std::string(5000, 'x') + "2"}});
  EXPECT_LE(one.size(), 300u);
  EXPECT_NE(one, two);
}

TEST(JobIdentityTest, EveryLaunchHasANumberOfItsOwn) {
  EXPECT_THAT(NewLaunchId(29500), testing::MatchesRegex("29500\\.[0-9a-f]{16}"));
  EXPECT_NE(NewLaunchId(29500), NewLaunchId(29500));
}

TEST(JobIdentityTest, ThisProcessKnowsItsCommandLine) {
  const ProcessEvidence evidence = ProcessEvidence::OfThisProcess();
  ASSERT_FALSE(evidence.command_line.empty());
  EXPECT_THAT(evidence.command_line[0], testing::HasSubstr("_test"));
  EXPECT_THAT(evidence.directory, testing::StartsWith("/"));
}

}  // namespace
}  // namespace fsdp
