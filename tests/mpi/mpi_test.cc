// SPDX-License-Identifier: Apache-2.0
//
// Backend "mpi" as users start it: by the launcher of the MPI that this was built with. The suites of collectives/ run
// inside the ranks; this file sets the number of ranks and their hosts, and tests jobs that fail. All but the last
// tests skip if there was no MPI.
#include <signal.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/exit_code.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

// mpiexec of the MPI that this was built with; empty without MPI.
constexpr char kMpiexec[] = FSDP_MPIEXEC;

constexpr absl::Duration kLong = absl::Minutes(4);

// More ranks than cores, as root, for any MPI; outside any job that this process may be in.
ChildOptions MpiOptions() {
  ChildOptions options;
  options.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                         {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                         {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                         {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                         {"OMP_NUM_THREADS", "1"},
                         {"OMP_WAIT_POLICY", "passive"}};
  options.unset = {"RANK", "WORLD_SIZE", "FSDP_HOSTID", "BUILD_WORKING_DIRECTORY"};
  return options;
}

// `program`, a runfile, on `ranks` ranks. `host`: the host of each, in the shell's arithmetic with r for the rank;
// empty: the real hosts.
absl::StatusOr<Flags> Mpiexec(int ranks, const std::string& host, const std::string& program, const Flags& flags) {
  FSDP_ASSIGN_OR_RETURN(const std::string path, FindRunfile(program));
  Flags command = {kMpiexec, "-n", absl::StrCat(ranks)};
  if (!host.empty()) {
    command = command + Flags{"sh", "-c",
                              absl::StrCat("r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; FSDP_HOSTID=$((", host,
                                           ")) exec \"$0\" \"$@\"")};
  }
  return command + Flags{path} + flags;
}

absl::StatusOr<ProgramResult> RunRanks(int ranks, const std::string& host, const std::string& program,
                                       const Flags& flags = {}) {
  FSDP_ASSIGN_OR_RETURN(const Flags command, Mpiexec(ranks, host, program, flags));
  return RunProgram(command, kLong, MpiOptions());
}

int CountOf(const std::string& text, const std::string& part) {
  return static_cast<int>(std::vector<std::string>(absl::StrSplit(text, part)).size()) - 1;
}

class MpiTest : public testing::Test {
 protected:
  void SetUp() override {
    if (kMpiexec[0] == '\0') GTEST_SKIP() << "this was built without an MPI with its launcher (third_party/mpi.bzl)";
  }

  // Runs a program of GoogleTest on all ranks.
  static void RunSuite(int ranks, const std::string& host, const std::string& program) {
    ASSERT_OK_AND_ASSIGN(const ProgramResult result, RunRanks(ranks, host, program, {"--gtest_brief=0"}));
    EXPECT_EQ(result.exit_status, 0) << result.output;
    EXPECT_EQ(CountOf(result.output, "[  PASSED  ]"), ranks) << result.output;
    EXPECT_THAT(result.output, Not(HasSubstr("[  FAILED  ]")));
  }
};

TEST_F(MpiTest, TheTransport) { RunSuite(3, "", "collectives/mpi/mpi_transport_ranks"); }

struct Layout {
  const char* name;
  int ranks;
  const char* host;  // of rank r
};

class MpiConformanceTest : public MpiTest, public testing::WithParamInterface<Layout> {};

// Each run has the sizes 1, 2, 3, 4 and 7, whose hosts are the hosts of the first ranks: with two on each host, four
// ranks are on 2 x 2 and three on 2 + 1.
INSTANTIATE_TEST_SUITE_P(Hosts, MpiConformanceTest,
                         testing::Values(Layout{"OneHost", 7, ""}, Layout{"OneRankAHost", 7, "r"},
                                         Layout{"TwoRanksAHost", 7, "r / 2"}, Layout{"ThreeHostsOfTwo", 6, "r / 2"},
                                         Layout{"Alternating", 7, "r % 2"}),
                         [](const auto& info) { return info.param.name; });

TEST_P(MpiConformanceTest, TheSuitePassesOnEveryRank) {
  RunSuite(GetParam().ranks, GetParam().host, "collectives/conformance/conformance_mpi_ranks");
}

std::string OutputOf(const std::string& mode) {
  const absl::StatusOr<ProgramResult> result = RunRanks(2, "", "tests/mpi/mpi_program", {mode});
  return result.ok() ? result->output : result.status().ToString();
}

TEST_F(MpiTest, AProgramWithMpiOfItsOwnKeepsIt) { EXPECT_THAT(OutputOf("multiple"), EndsWith("ok\n")); }

TEST_F(MpiTest, AGroupAfterAGroupUsesTheSameMpi) { EXPECT_THAT(OutputOf("none"), EndsWith("ok\n")); }

TEST_F(MpiTest, AProgramThatAllowsOneThreadOfMpiIsRefused) {
  EXPECT_THAT(OutputOf("funneled"), HasSubstr("MPI's thread level is MPI_THREAD_FUNNELED, wanted MPI_THREAD_MULTIPLE"));
}

TEST_F(MpiTest, AProgramThatHasFinalizedMpiIsRefused) {
  EXPECT_THAT(OutputOf("finalized"), HasSubstr("MPI is finalized in this process, and cannot be initialised again"));
}

// SmallRun without its --nproc.
Flags RunOfAnyRanks() {
  Flags flags = SmallRun();
  flags.erase(flags.begin());
  return flags;
}

class MpiTrainingTest : public MpiTest, public testing::WithParamInterface<Layout> {};

INSTANTIATE_TEST_SUITE_P(Hosts, MpiTrainingTest,
                         testing::Values(Layout{"OneHost", 4, ""}, Layout{"TwoHostsOfTwo", 4, "r / 2"},
                                         Layout{"ThreeHostsOfTwo", 6, "r / 2"},
                                         Layout{"TwoHostsOfTwoAndOne", 3, "r / 2"}, Layout{"Alternating", 4, "r % 2"}),
                         [](const auto& info) { return info.param.name; });

TEST_P(MpiTrainingTest, LossesAreBitForBitThoseOfSharedMemory) {
  const std::string directory = NewDirectory();
  const Flags steps = {"--steps=5"};
  ASSERT_OK_AND_ASSIGN(const ProgramResult shm, Train(RunOfAnyRanks() + steps +
                                                      Flags{absl::StrCat("--nproc=", GetParam().ranks),
                                                            "--metrics=" + directory + "/shm.jsonl"}));
  ASSERT_EQ(shm.exit_status, 0) << shm.output;
  ASSERT_OK_AND_ASSIGN(
      const ProgramResult mpi,
      RunRanks(GetParam().ranks, GetParam().host, "train/train_gpt",
               RunOfAnyRanks() + steps + Flags{"--backend=mpi", "--metrics=" + directory + "/mpi.jsonl"}));
  ASSERT_EQ(mpi.exit_status, 0) << mpi.output;
  ASSERT_OK_AND_ASSIGN(const auto expected, MetricsByStep(directory + "/shm.jsonl"));
  ASSERT_OK_AND_ASSIGN(const auto found, MetricsByStep(directory + "/mpi.jsonl"));
  ASSERT_EQ(expected.size(), 5u);
  ASSERT_EQ(found.size(), 5u);
  for (const auto& [step, metrics] : expected) {
    EXPECT_EQ(found.at(step).loss, metrics.loss) << "step " << step;
    EXPECT_EQ(found.at(step).grad_norm, metrics.grad_norm) << "step " << step;
  }
}

// A run of four ranks on two hosts, one of which gets a signal in the middle of its steps. Returns the output, once the
// run has ended with a failure.
std::string OutputAfter(int signal) {
  const std::string directory = NewDirectory();
  const std::string metrics = directory + "/metrics.jsonl";
  const auto run = [&]() -> absl::StatusOr<std::string> {
    FSDP_ASSIGN_OR_RETURN(const Flags command,
                          Mpiexec(4, "r / 2", "train/train_gpt",
                                  RunOfAnyRanks() + Flags{"--backend=mpi", "--steps=1000000", "--metrics=" + metrics}));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> job, ChildProcess::Start(command, MpiOptions()));
    FSDP_RETURN_IF_ERROR(WaitForStep(metrics, 3));
    std::map<int, pid_t> ranks = RanksOf(directory, "OMPI_COMM_WORLD_RANK");
    ranks.merge(RanksOf(directory, "PMI_RANK"));
    if (ranks.count(2) == 0 || kill(ranks.at(2), signal) != 0) return absl::NotFoundError("rank 2");
    FSDP_ASSIGN_OR_RETURN(const int exit_status, job->Wait(absl::Seconds(60)));
    EXPECT_NE(exit_status, 0) << job->output();
    return job->output();
  };
  const absl::StatusOr<std::string> output = run();
  EXPECT_TRUE(Survivors(directory).empty());
  return output.ok() ? *output : output.status().ToString();
}

// Whether the message names it depends on the launcher, which ends the others immediately. That the job ends and leaves
// no process behind is checked above.
TEST_F(MpiTest, ARankThatIsKilledEndsTheJob) { EXPECT_THAT(OutputAfter(SIGKILL), HasSubstr("step 0 of 1000000")); }

// Long before the deadline. Open MPI's launcher may end the rank that prints it when another has ended with 75.
TEST_F(MpiTest, ARankThatIsStoppedIsNoticedByTheWatch) {
  EXPECT_THAT(OutputAfter(SIGSTOP),
              AnyOf(ContainsRegex("rank 2 \\([^)]*pid [0-9]+\\) does not answer"), ContainsRegex("Exit code: +75")));
}

TEST(WithoutMpisLauncherTest, TheErrorSaysWhatIsMissing) {
  if (!FSDP_HAS_MPI) GTEST_SKIP() << "this was built without MPI: the error of WithoutMpiTest is all there is";
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("train/train_gpt"));
  ASSERT_OK_AND_ASSIGN(
      const ProgramResult result,
      RunProgram(Flags{program, "--nproc=2", "--backend=mpi", "--steps=1"} + RunOfAnyRanks(), kLong, MpiOptions()));
  EXPECT_EQ(result.exit_status, kExitFailed) << result.output;
  EXPECT_THAT(result.output, HasSubstr("is in an MPI_COMM_WORLD of 1 rank, wanted one of at least 2"));
}

// Without its library the system's loader would not start a program; it prints the libraries that a program needs.
TEST(WithoutMpiTest, NoProgramNeedsItsLibraryToStart) {
  for (const std::string name : {"train/train_gpt", "tools/launch", "tools/ckpt"}) {
    ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile(name));
    ChildOptions options;
    options.environment = {{"LD_TRACE_LOADED_OBJECTS", "1"}};
    ASSERT_OK_AND_ASSIGN(const ProgramResult result, RunProgram({program}, kLong, options));
    EXPECT_THAT(result.output, AllOf(HasSubstr("libc.so"), Not(HasSubstr("libmpi")), Not(HasSubstr("libfsdp_mpi"))));
  }
}

// A program that is moved without the files that Bazel built next to it.
TEST(WithoutMpiTest, ACopiedProgramTrainsAndSaysWhatTheBackendLacks) {
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("train/train_gpt"));
  const std::string copy = NewDirectory() + "/train_gpt";
  std::filesystem::copy_file(program, copy);
  ChildOptions options = MpiOptions();
  options.unset.insert(options.unset.end(), {"RUNFILES_DIR", "TEST_SRCDIR", "LD_LIBRARY_PATH"});
  const Flags command = Flags{copy, "--nproc=2", "--steps=1"} + RunOfAnyRanks();
  ASSERT_OK_AND_ASSIGN(const ProgramResult trained, RunProgram(command, kLong, options));
  EXPECT_EQ(trained.exit_status, 0) << trained.output;
  ASSERT_OK_AND_ASSIGN(const ProgramResult refused, RunProgram(command + Flags{"--backend=mpi"}, kLong, options));
  EXPECT_EQ(refused.exit_status, kExitFailed);
  EXPECT_THAT(refused.output, HasSubstr("backend mpi: libfsdp_mpi.so cannot be loaded: libfsdp_mpi.so: "));
}

}  // namespace
}  // namespace fsdp
