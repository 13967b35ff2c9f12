// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/shell_word.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(ShellWordTest, APlainPathIsUnchanged) {
  for (const char* path :
       {"runs/step-00000004", "../a.b_c", "/x/model.safetensors", "\xC3\xBC/\xE6\xA8\xA1.pt", "a=1,b@c:d+e%f"}) {
    EXPECT_EQ(ShellWord(path), path);
  }
}

TEST(ShellWordTest, APathWithOtherCharactersIsQuoted) {
  EXPECT_EQ(ShellWord("my model"), "'my model'");
  EXPECT_EQ(ShellWord("$HOME/x"), "'$HOME/x'");
  EXPECT_EQ(ShellWord("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellWord("a\nb\x1b"), "$'a\\nb\\033'");
  EXPECT_EQ(ShellWord(""), "''");
}

TEST(ShellWordTest, NoPathIsAFlag) {
  EXPECT_EQ(ShellWord("-rf"), "./-rf");
  EXPECT_EQ(ShellWord("--json x"), "'./--json x'");
}

TEST(ShellWordTest, ALongPathIsWhole) { EXPECT_EQ(ShellWord(std::string(4000, 'x')), std::string(4000, 'x')); }

TEST(ShellWordTest, AShellReadsThePathBack) {
  for (const std::string path :
       {"a b", "'", "''", "\"", "\\", "a\\'b", "`id`", "$(id)", "~", "*", "a;b", "a\tb\n", "!x", "{a,b}", "#"}) {
    const absl::StatusOr<ProgramResult> result =
        RunProgram({"/bin/bash", "-c", absl::StrCat("printf %s ", ShellWord(path))}, absl::Seconds(20));
    ASSERT_OK(result.status());
    EXPECT_EQ(result->output, path);
  }
}

}  // namespace
}  // namespace fsdp
