// SPDX-License-Identifier: Apache-2.0
//
// ctrl-C and SIGTERM during a conversion: nothing half-written is left, a target that is to be replaced stays as it
// was, and the program ends by the signal.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A safetensors file of one tensor with `bytes` of zeros, which take no room.
void WriteSparseModel(const std::string& path, int64_t bytes) {
  std::string header = "{\"w\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(bytes) + "],\"data_offsets\":[0," +
                       std::to_string(bytes) + "]}}";
  while (header.size() % 8 != 0) header += ' ';
  std::string start(8, '\0');
  for (int i = 0; i < 8; ++i) start[i] = static_cast<char>(header.size() >> (8 * i));
  WriteFile(path, start + header);
  std::filesystem::resize_file(path, 8 + header.size() + static_cast<uintmax_t>(bytes));
}

class InterruptionTest : public CkptTest {
 protected:
  InterruptionTest() {
    std::filesystem::create_directory(Path("out"));
    WriteSparseModel(Path("model.safetensors"), int64_t{2} << 30);
  }

  // Converts the model into out/`name`, and sends `signal` when out/ has another name, `times` times. Returns how the
  // program ended.
  Outcome Interrupted(const std::string& name, std::vector<std::string> flags, int signal, int times = 1) const {
    const size_t before = NamesIn(Path("out")).size();
    std::vector<std::string> words = {std::filesystem::absolute("tools/ckpt"), "convert", Path("model.safetensors"),
                                      Path("out/" + name)};
    words.insert(words.end(), flags.begin(), flags.end());
    absl::StatusOr<std::unique_ptr<ChildProcess>> child = ChildProcess::Start(words, {.errors = ChildOutput::Text()});
    EXPECT_OK(child.status());
    if (!child.ok()) return {};
    // A lock file comes first, then the output.
    while (NamesIn(Path("out")).size() < before + 2 && !(*child)->Poll(absl::Milliseconds(1)).has_value()) {
    }
    for (int i = 0; i < times; ++i) {
      if (i > 0) absl::SleepFor(absl::Milliseconds(1));
      (*child)->Signal(signal);
    }
    const absl::StatusOr<int> status = (*child)->Wait(absl::Minutes(1));
    EXPECT_OK(status.status());
    return {.status = status.value_or(-1), .out = (*child)->output(), .err = (*child)->errors()};
  }
};

TEST_F(InterruptionTest, NothingIsLeftOfAnOutputInAnyFormat) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> outputs = {
      {"a.safetensors", {}}, {"a.pt", {}}, {"a.npz", {}}, {"dcp", {"--to=dcp"}}};
  for (const auto& [name, flags] : outputs) {
    const Outcome outcome = Interrupted(name, flags, SIGINT);
    EXPECT_EQ(outcome.status, 128 + SIGINT) << name << ": " << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("interrupted: " + Path("out/" + name) + " was not made, and nothing of it is"));
    EXPECT_THAT(NamesIn(Path("out")), IsEmpty()) << name;
  }
}

// Regression: `timeout` sends its signal to the process and to the group of it, and the second one ended the program
// before it had removed anything.
TEST_F(InterruptionTest, ASignalThatIsSentTwiceIsOne) {
  for (const char* name : {"a.safetensors", "a.npz"}) {
    const Outcome outcome = Interrupted(name, {}, SIGTERM, 5);
    EXPECT_EQ(outcome.status, 128 + SIGTERM) << name << ": " << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("nothing of it is left"));
    EXPECT_THAT(NamesIn(Path("out")), IsEmpty()) << name;
  }
}

TEST_F(InterruptionTest, ATargetThatIsToBeReplacedIsUnchanged) {
  WriteFile(Path("small.safetensors"), std::string("\x02\0\0\0\0\0\0\0{}", 10));
  WriteFile(Path("out/a.safetensors"), std::string("\x02\0\0\0\0\0\0\0{}", 10));
  const Outcome outcome = Interrupted("a.safetensors", {"--force"}, SIGTERM);
  EXPECT_EQ(outcome.status, 128 + SIGTERM) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("is unchanged"));
  EXPECT_THAT(NamesIn(Path("out")), ElementsAre("a.safetensors"));
  EXPECT_EQ(std::filesystem::file_size(Path("out/a.safetensors")), 10u);
}

// Regression: the files made so far stayed in a hidden directory, as large as what was lost.
TEST_F(InterruptionTest, NothingIsLeftOfARepair) {
  MustCkpt(
      {"convert", Path("model.safetensors"), Path("c"), "--state_dict_type=sharded", "--world_size=2", "--parity=1"});
  std::filesystem::remove(Path("c/rank-00001-of-00002.h5"));
  const std::vector<std::string> before = NamesIn(Path("c"));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ChildProcess> child,
                       ChildProcess::Start({std::filesystem::absolute("tools/ckpt"), "repair", Path("c")},
                                           {.errors = ChildOutput::Text()}));
  while (NamesIn(Path("c")).size() == before.size() && !child->Poll(absl::Milliseconds(1)).has_value()) {
  }
  child->Signal(SIGINT);
  EXPECT_THAT(child->Wait(absl::Minutes(1)), IsOkAndHolds(128 + SIGINT)) << child->errors();
  EXPECT_THAT(child->errors(), HasSubstr("ckpt repair: interrupted: " + Path("c") + " is unchanged"));
  EXPECT_EQ(NamesIn(Path("c")), before);
}

}  // namespace
}  // namespace fsdp
