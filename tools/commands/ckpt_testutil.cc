// SPDX-License-Identifier: Apache-2.0
//
// Tests run the program itself, not its functions, since scripts see exit statuses and the two output streams. Bazel
// starts a test in its runfiles, so paths relative to that directory find the program and the test data.
#include "fsdp/tools/commands/ckpt_testutil.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fsdp/base/child_process.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// Runs ckpt, behind the words of a command that starts it.
Outcome RunBehind(std::vector<std::string> words, const std::vector<std::string>& arguments) {
  words.push_back(fs::absolute("tools/ckpt"));
  words.insert(words.end(), arguments.begin(), arguments.end());
  const absl::StatusOr<ProgramResult> run =
      RunProgram(words, absl::InfiniteDuration(), {.errors = ChildOutput::Text()});
  if (!run.ok()) return {.status = -1, .err = run.status().ToString()};
  return {.status = run->exit_status, .out = run->output, .err = run->errors, .peak_bytes = run->peak_bytes};
}

}  // namespace

void WriteFile(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

CkptTest::CkptTest()
    : directory_(testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name()) {
  fs::remove_all(directory_);
  fs::create_directories(directory_);
}

CkptTest::~CkptTest() { fs::remove_all(directory_); }

// Tests of //tools have checkpoint's test data as runfiles, under the same path as in the source tree.
std::string CkptTest::TestData(const std::string& name) { return fs::absolute("checkpoint/testdata/" + name); }

Outcome CkptTest::Ckpt(const std::vector<std::string>& arguments) const { return RunBehind({}, arguments); }

Outcome CkptTest::CkptWithin(const std::string& limit, const std::vector<std::string>& arguments) const {
  return RunBehind({"/bin/sh", "-c", "ulimit " + limit + "; exec \"$@\"", "sh"}, arguments);
}

std::string CkptTest::MustCkpt(const std::vector<std::string>& arguments) const {
  const Outcome outcome = Ckpt(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return outcome.out;
}

}  // namespace fsdp
