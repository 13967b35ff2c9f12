// SPDX-License-Identifier: Apache-2.0
//
// --rank0_only saves a whole model from ranks without the memory for it: every rank runs under a limit of its memory in
// training and a few blocks, a third of the size of the whole state.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kMiB = int64_t{1} << 20;

// 32 blocks of 3.2 MB: with AdamW's moments the whole state has 304 MB, and two units have 19 MB.
constexpr int64_t kStateBytes = int64_t{290} << 20;

// Buffers of the writer, stacks of its threads, two units, and the allocator's rounding.
constexpr int64_t kExtraBytes = 80 * kMiB;

// Bytes of the memory that a limit on data (RLIMIT_DATA) counts; 0 if the process is gone.
int64_t DataBytes(pid_t process) {
  std::ifstream status(absl::StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmData:", 0) == 0) return std::atoll(line.c_str() + 7) * 1024;
  }
  return 0;
}

class Rank0FullSaveTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(directory_ + "/config.json")
        << R"({"model_type": "gpt2", "n_layer": 32, "n_head": 4, "n_embd": 256, "vocab_size": 256, "n_positions": 16,)"
        << R"( "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true})";
  }

  Flags Run(int steps) const {
    return {absl::StrCat("--nproc=", kRanks),
            "--batch_size=1",
            "--seq_len=16",
            absl::StrCat("--steps=", steps),
            absl::StrCat("--config=", directory_, "/config.json"),
            absl::StrCat("--metrics=", directory_, "/metrics.jsonl"),
            "--tokens=" + Golden("tokens.u16")};
  }

  Flags Save() const {
    return Run(2) +
           Flags{absl::StrCat("--checkpoint_dir=", directory_, "/run"), "--state_dict_type=full", "--rank0_only"};
  }

  // The peak of a rank that trains and saves nothing.
  absl::StatusOr<int64_t> TrainingBytes() const {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> child, StartTraining(Run(1'000'000)));
    FSDP_RETURN_IF_ERROR(WaitForStep(directory_ + "/metrics.jsonl", 2));
    int64_t most = 0;
    for (const auto& [rank, process] : RanksOf(directory_)) most = std::max(most, DataBytes(process));
    child->Signal(SIGTERM);
    FSDP_RETURN_IF_ERROR(child->Wait(absl::Seconds(60)).status());
    return most;
  }

  // A run whose processes have a limit.
  static absl::StatusOr<ProgramResult> TrainWithin(int64_t bytes, const Flags& flags) {
    struct rlimit own;
    getrlimit(RLIMIT_DATA, &own);
    const struct rlimit limit = {static_cast<rlim_t>(bytes), own.rlim_max};
    setrlimit(RLIMIT_DATA, &limit);
    const absl::StatusOr<ProgramResult> result = Train(flags);
    setrlimit(RLIMIT_DATA, &own);
    return result;
  }

  const std::string directory_ = NewDirectory();
};

TEST_F(Rank0FullSaveTest, SavesAModelForWhichRank0HasNoMemory) {
  ASSERT_OK_AND_ASSIGN(const int64_t training, TrainingBytes());
  ASSERT_GT(training, 0);
  const int64_t limit = training + kExtraBytes;

  ASSERT_OK_AND_ASSIGN(const ProgramResult saved, TrainWithin(limit, Save()));
  EXPECT_EQ(saved.exit_status, 0) << saved.output;
  const std::string step = directory_ + "/run/step-00000002";
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(step, {}));
  EXPECT_EQ(report.problems, std::vector<std::string>());
  EXPECT_GT(static_cast<int64_t>(std::filesystem::file_size(step + "/checkpoint.h5")), kStateBytes);

  // The limit is effective: the asynchronous saver would hold the whole state, and reports that it has no room for it.
  std::filesystem::remove_all(directory_ + "/run");
  ASSERT_OK_AND_ASSIGN(const ProgramResult held, TrainWithin(limit, Save() + Flags{"--async_checkpoint"}));
  EXPECT_NE(held.exit_status, 0) << held.output;
  EXPECT_THAT(held.output, testing::AllOf(testing::HasSubstr("rank 0 has no room for the whole state of"),
                                          testing::HasSubstr("leave out --async_checkpoint")));
}

}  // namespace
}  // namespace fsdp
