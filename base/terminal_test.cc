// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/terminal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "fsdp/base/escape_text.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

std::string Printed(const std::string& text) {
  testing::internal::CaptureStdout();
  Print("%s", text);
  return testing::internal::GetCapturedStdout();
}

TEST(TerminalTest, LinesStayAsTheyAre) {
  EXPECT_EQ(Printed("a: \"b\"\n\tc\\d 'e' \xC3\xBC\n"), "a: \"b\"\n\tc\\d 'e' \xC3\xBC\n");
  testing::internal::CaptureStderr();
  PrintError("%s: %d %5.1f%%\n", "x", 3, 2.5);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "x: 3   2.5%\n");
}

TEST(TerminalTest, NothingThatATerminalObeysOrHidesIsWritten) {
  EXPECT_EQ(Printed(std::string("\x1b[31m\x07\r\x00\x7f", 9)), "\\033[31m\\007\\r\\000\\u007f");
  EXPECT_EQ(Printed("\xC2\x9B\xE2\x80\xAE\xE2\x80\x8B\xEF\xBB\xBF"), "\\u009b\\u202e\\u200b\\ufeff");
  EXPECT_EQ(Printed("\xED\xA0\x80\xFF"), "\\355\\240\\200\\377");
  EXPECT_EQ(Printed("\xF3\xA0\x80\x81"), "\\udb40\\udc01");  // a tag character
}

TEST(TerminalTest, APasswordInAUrlIsNotPrinted) {
  EXPECT_EQ(Printed("http://user:secret@host does not exist"), "http://***@host does not exist");
}

TEST(TerminalTest, JsonKeepsItsValue) {
  const nlohmann::json value = {{"a\xE2\x80\xAE\xC2\x9B", "\x1b\n\x7f\xF3\xA0\x80\x81\"\\"}};
  EXPECT_EQ(nlohmann::json::parse(Printed(value.dump(2))), value);
}

// In a child, since the streams are of the whole process.
TEST(TerminalTest, AMissingStreamIsNotGivenToTheNextFile) {
  EXPECT_EXIT(
      {
        close(STDIN_FILENO);
        close(STDOUT_FILENO);
        KeepStandardStreams();
        const int next = open("/dev/null", O_RDONLY);
        // And a write to the missing one is an error.
        std::_Exit(next > STDERR_FILENO && write(STDOUT_FILENO, "x", 1) < 0 ? 7 : 8);
      },
      testing::ExitedWithCode(7), "");
}

TEST(EscapeTextTest, EveryRangeOfHiddenCharactersHasBothEnds) {
  EXPECT_EQ(EscapeText("\xE2\x80\xA7\xE2\x80\xA8\xE2\x80\xAF"), "\xE2\x80\xA7\\u2028\xE2\x80\xAF");  // U+2027 to U+202F
  EXPECT_EQ(EscapeText("\xE1\xA0\x8A\xE1\xA0\x8B\xE1\xA0\x8F\xE1\xA0\x90"), "\xE1\xA0\x8A\\u180b\\u180f\xE1\xA0\x90");
}

}  // namespace
}  // namespace fsdp
