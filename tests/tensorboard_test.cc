// SPDX-License-Identifier: Apache-2.0
//
// The files of a run for TensorBoard, read back by other code than wrote them: the numbers of --metrics, and marks of
// saves and restarts. tests/tensorboard/run.sh shows the same to the real TensorBoard.
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tests/train_gpt_run.h"
#include "fsdp/train/event_reader_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

std::vector<ReadEvent> EventsOf(const std::string& path) {
  const absl::StatusOr<std::vector<ReadEvent>> events = ReadEvents(ReadFile(path));
  EXPECT_OK(events.status());
  return events.value_or(std::vector<ReadEvent>());
}

void ExpectScalarsOf(const StepMetrics& step, const std::map<std::string, float>& scalars) {
  EXPECT_EQ(scalars.at("train/loss"), static_cast<float>(step.loss));
  EXPECT_EQ(scalars.at("train/grad_norm"), static_cast<float>(step.grad_norm));
  EXPECT_EQ(scalars.at("train/lr"), static_cast<float>(step.lr));
  EXPECT_EQ(scalars.at("speed/tokens_per_second"), static_cast<float>(step.tokens_per_second));
  EXPECT_EQ(scalars.at("memory/peak_bytes"), static_cast<float>(step.peak_bytes));
  ASSERT_TRUE(step.hidden_share.has_value());
  EXPECT_EQ(scalars.at("speed/hidden_share"), static_cast<float>(*step.hidden_share));
  EXPECT_GE(*step.hidden_share, 0);
  EXPECT_LE(*step.hidden_share, 1);
}

TEST(TensorboardTest, EventsHaveTheMetricsOfEachStepAndTheMarksOfSavesAndRestarts) {
  const std::string directory = NewDirectory();
  const Flags flags = SmallRun() + Flags{"--tensorboard=" + directory + "/tb", "--metrics=" + directory + "/m.jsonl",
                                         "--checkpoint_dir=" + directory + "/ckpt"};
  for (const std::string steps : {"--steps=4", "--steps=6"}) {
    ASSERT_OK_AND_ASSIGN(const ProgramResult run, Train(flags + Flags{steps}));
    ASSERT_EQ(run.exit_status, 0) << run.output;
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> metrics, ReadMetrics(directory + "/m.jsonl"));
  ASSERT_EQ(metrics.size(), 6u);
  const std::vector<std::string> files = EventFilesOf(directory + "/tb");
  ASSERT_EQ(files.size(), 2u) << "only rank 0 writes, one file per run";

  size_t step = 0;
  for (const std::string& file : files) {
    const size_t first = step;
    std::vector<std::string> marks;
    for (const ReadEvent& event : EventsOf(file)) {
      if (event.is_start) {
        EXPECT_EQ(event.step, first);
      }
      for (const auto& [tag, text] : event.texts) marks.push_back(absl::StrCat(event.step, " ", tag, ": ", text));
      if (event.scalars.count("checkpoint/blocked_seconds") != 0) {
        EXPECT_EQ(event.step, step - 1);
      }
      if (event.scalars.count("train/loss") == 0) continue;
      ASSERT_LT(step, metrics.size());
      EXPECT_EQ(event.step, metrics[step].step);
      ExpectScalarsOf(metrics[step], event.scalars);
      EXPECT_EQ(metrics[step].restart, step == 4);
      ++step;
    }
    const std::string saved = absl::StrCat(step - 1, " checkpoint: saved ", directory, "/ckpt/step-0000000", step);
    if (first == 0) {
      EXPECT_THAT(marks, testing::ElementsAre(saved));
    } else {
      EXPECT_THAT(marks, testing::ElementsAre("4 restart: continues from " + directory +
                                                  "/ckpt/step-00000004 on 2 ranks: 4 steps are done",
                                              saved));
    }
  }
  EXPECT_EQ(step, metrics.size());
}

TEST(TensorboardTest, ATraceBesideItHasEverySpan) {
  const std::string directory = NewDirectory();
  ASSERT_OK_AND_ASSIGN(const ProgramResult run,
                       Train(SmallRun() + Flags{"--tensorboard=" + directory + "/tb", "--steps=3",
                                                "--trace=" + directory + "/trace.json"}));
  ASSERT_EQ(run.exit_status, 0) << run.output;
  const std::string trace = ReadFile(directory + "/trace.json");
  for (const std::string rank : {"0", "1"}) {
    size_t optimizers = 0;
    const std::string span = "{\"name\":\"optimizer\",\"cat\":\"compute\",\"ph\":\"X\",\"pid\":" + rank + ",";
    for (size_t at = trace.find(span); at != std::string::npos; at = trace.find(span, at + 1)) ++optimizers;
    EXPECT_EQ(optimizers, 3u) << "rank " << rank;
  }
}

TEST(TensorboardTest, ADirectoryThatCannotBeWrittenEndsTheRunBeforeItTrains) {
  const std::string directory = NewDirectory();
  std::ofstream(directory + "/file") << "x";
  ASSERT_OK_AND_ASSIGN(const ProgramResult run, Train(SmallRun() + Flags{"--tensorboard=" + directory + "/file",
                                                                         "--metrics=" + directory + "/m.jsonl"}));
  EXPECT_EQ(run.exit_status, 1);
  EXPECT_THAT(run.output, HasSubstr("--tensorboard"));
  EXPECT_THAT(run.output, HasSubstr(directory + "/file"));
  EXPECT_TRUE(ReadMetrics(directory + "/m.jsonl").value_or(std::vector<StepMetrics>()).empty());
}

}  // namespace
}  // namespace fsdp
