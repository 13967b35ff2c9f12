// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/command_line.h"

#include <cstdlib>
#include <filesystem>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/time/time.h"
#include "fsdp/base/environment_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

ABSL_FLAG(int, count, 7, "a number");
ABSL_FLAG(bool, loud, false, "a switch");
ABSL_FLAG(std::string, text, "", "a text");
ABSL_FLAG(fsdp::RepeatedFlag, name, {}, "may be repeated");
ABSL_FLAG(int, two_words, 0, "a number");
ABSL_FLAG(fsdp::SwitchOrTextFlag, list, {}, "all, or some");
ABSL_FLAG(fsdp::ByteSizeFlag, size, {int64_t{512} << 20}, "bytes");
ABSL_FLAG(absl::Duration, wait, absl::ZeroDuration(), "a time");
ABSL_FLAG(double, share, 0, "a number");
ABSL_FLAG(bool, json, false, "a switch");

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Optional;

const std::vector<std::string>& AllFlags() {
  static const auto* all = new std::vector<std::string>{"count",     "loud", "text", "name",  "size",
                                                        "two_words", "list", "wait", "share", "json"};
  return *all;
}

// Arguments as main() gets them.
class Arguments {
 public:
  explicit Arguments(std::vector<std::string> words) : words_(std::move(words)) {
    words_.insert(words_.begin(), "/bin/program");
    for (std::string& word : words_) pointers_.push_back(word.data());
    pointers_.push_back(nullptr);
  }
  int argc() const { return static_cast<int>(words_.size()); }
  char** argv() { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

class CommandLineTest : public testing::Test {
 protected:
  absl::StatusOr<CommandLine> Read(std::vector<std::string> words) {
    Arguments arguments(std::move(words));
    return ReadCommandLine(arguments.argc(), arguments.argv());
  }

  // Reads and sets.
  absl::Status Set(std::vector<std::string> words, std::vector<std::string> allowed = AllFlags()) {
    FSDP_ASSIGN_OR_RETURN(const CommandLine line, Read(std::move(words)));
    return SetFlags(line, "program sub", allowed);
  }

  std::optional<int> Parse(std::vector<std::string> words, std::vector<std::string>* operands = nullptr) {
    Arguments arguments(std::move(words));
    return ParseFlags(arguments.argc(), arguments.argv(), "program [flags]", operands);
  }

  absl::FlagSaver saver_;
};

TEST_F(CommandLineTest, FlagsStandBeforeOrAfterOperands) {
  ASSERT_OK_AND_ASSIGN(const CommandLine line, Read({"--count=3", "a", "-loud", "b", "--text", "x", "--", "--count"}));
  EXPECT_THAT(line.operands, ElementsAre("a", "b", "--count"));
  ASSERT_OK(SetFlags(line, "program", AllFlags()));
  EXPECT_EQ(absl::GetFlag(FLAGS_count), 3);
  EXPECT_TRUE(absl::GetFlag(FLAGS_loud));
  EXPECT_EQ(absl::GetFlag(FLAGS_text), "x");
}

TEST_F(CommandLineTest, ALoneDashIsAnOperand) {
  ASSERT_OK_AND_ASSIGN(const CommandLine line, Read({"-"}));
  EXPECT_THAT(line.operands, ElementsAre("-"));
}

TEST_F(CommandLineTest, SwitchesAreTurnedOff) {
  ASSERT_OK(Set({"--loud"}));
  EXPECT_TRUE(absl::GetFlag(FLAGS_loud));
  ASSERT_OK(Set({"--noloud"}));
  EXPECT_FALSE(absl::GetFlag(FLAGS_loud));
  ASSERT_OK(Set({"--loud=true"}));
  EXPECT_TRUE(absl::GetFlag(FLAGS_loud));
  EXPECT_THAT(Set({"--nocount"}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("unknown flag --nocount")));
  EXPECT_THAT(Set({"--loud=perhaps"}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("--loud")));
}

TEST_F(CommandLineTest, UnknownFlagsAreNamed) {
  EXPECT_THAT(Set({"--colour=red"}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("unknown flag --colour")));
  EXPECT_THAT(Set({"-x"}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("unknown flag -x")));
  EXPECT_THAT(Set({"--txt=red"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("unknown flag --txt (did you mean --text?)")));
  EXPECT_THAT(Set({"--flagfile=/etc/passwd"}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("--flagfile")));
}

TEST_F(CommandLineTest, ASuggestionIsAFlagOfTheSubcommand) {
  Arguments arguments({"--txt=red"});
  const std::string others[] = {"count"};
  EXPECT_THAT(ReadCommandLine(arguments.argc(), arguments.argv(), others),
              StatusIs(StatusCode::kInvalidArgument, "unknown flag --txt"));
}

TEST_F(CommandLineTest, JsonIsAskedForInAnySpellingOfASwitch) {
  const auto wants = [](std::vector<std::string> words) {
    Arguments arguments(std::move(words));
    return WantsJson(arguments.argc(), arguments.argv());
  };
  for (const char* word : {"--json", "-json", "--json=true", "--json=1", "--json=yes"}) {
    EXPECT_TRUE(wants({"a", word, "--wrong"})) << word;
  }
  for (const char* word : {"--json=false", "--jsonl", "--nojson", "json"}) EXPECT_FALSE(wants({word})) << word;
  EXPECT_FALSE(wants({"--", "--json"}));
}

TEST_F(CommandLineTest, HelpTakesNoValue) {
  EXPECT_THAT(Set({"--help=convert"}), StatusIs(StatusCode::kInvalidArgument, "flag --help takes no value"));
}

TEST_F(CommandLineTest, DashesInANameAreUnderscores) {
  ASSERT_OK(Set({"--two-words=3", "--no-loud"}));
  EXPECT_EQ(absl::GetFlag(FLAGS_two_words), 3);
  EXPECT_FALSE(absl::GetFlag(FLAGS_loud));
}

TEST_F(CommandLineTest, ASwitchMayHaveAText) {
  ASSERT_OK_AND_ASSIGN(const CommandLine line, Read({"--list", "a"}));
  EXPECT_THAT(line.operands, ElementsAre("a"));
  ASSERT_OK(Set({"--list"}));
  EXPECT_TRUE(absl::GetFlag(FLAGS_list).is_on);
  EXPECT_EQ(absl::GetFlag(FLAGS_list).text, "");
  ASSERT_OK(Set({"--list=x.*"}));
  EXPECT_EQ(absl::GetFlag(FLAGS_list).text, "x.*");
  ASSERT_OK(Set({"--nolist"}));
  EXPECT_FALSE(absl::GetFlag(FLAGS_list).is_on);
  EXPECT_EQ(FlagHelp({"list"}), "  --list[=VALUE]: all, or some\n");
}

TEST_F(CommandLineTest, HelpAndVersionHaveShortForms) {
  ASSERT_OK_AND_ASSIGN(const CommandLine help, Read({"-h"}));
  EXPECT_TRUE(help.help);
  ASSERT_OK_AND_ASSIGN(const CommandLine version, Read({"-V"}));
  EXPECT_TRUE(version.version);
}

TEST_F(CommandLineTest, AFlagOfAnotherSubcommandIsAnError) {
  EXPECT_THAT(Set({"--text=x"}, {"count"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("program sub has no flag --text")));
}

TEST_F(CommandLineTest, MalformedValuesAreErrors) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--count=three", "--count=three, expected a whole number"},
      {"--count=", "--count=, expected a whole number"},
      {"--count=1.5", "--count=1.5, expected a whole number"},
      {"--count=99999999999", "--count=99999999999, expected a smaller number"},
      {"--loud=perhaps", "--loud=perhaps, expected true or false"},
      {"--wait=5", "--wait=5, expected a duration such as 90s, 5m or 2h"},
      {"--share=half", "--share=half, expected a number"},
      {"--size=a; b", "--size=a; b, expected a number of bytes such as 1048576, 512MiB, 1.5GiB or 5GB"}};
  for (const auto& [argument, message] : cases) {
    EXPECT_THAT(Set({argument}), StatusIs(StatusCode::kInvalidArgument, message));
  }
  EXPECT_THAT(Set({"--count"}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("flag --count needs a value")));
}

TEST_F(CommandLineTest, OnlyARepeatedFlagIsGivenTwice) {
  EXPECT_THAT(Set({"--count=1", "--count=1"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("--count is given 2 times, expected once")));
  ASSERT_OK(Set({"--name=a,b", "--name=", "--name", "c"}));
  EXPECT_THAT(absl::GetFlag(FLAGS_name).values, ElementsAre("a,b", "", "c"));
}

TEST_F(CommandLineTest, ByteSizesHaveUnits) {
  const std::vector<std::pair<std::string, int64_t>> sizes = {{"0", 0},
                                                              {"1048576", 1 << 20},
                                                              {"17B", 17},
                                                              {"512MiB", int64_t{512} << 20},
                                                              {"5GB", 5'000'000'000},
                                                              {"1.5GiB", int64_t{3} << 29},
                                                              {"2KB", 2000},
                                                              {"2KiB", 2048},
                                                              {"1TB", 1'000'000'000'000},
                                                              {"1TiB", int64_t{1} << 40}};
  for (const auto& [text, bytes] : sizes) {
    ASSERT_OK(Set({"--size=" + text}));
    EXPECT_EQ(absl::GetFlag(FLAGS_size).bytes, bytes) << text;
  }
  for (const char* text : {"", "B", "MiB", "-1", "5gb", "1e9", "1.2.3", "0x10", "5 GB", "99999999TiB", "inf", "nan"}) {
    EXPECT_THAT(Set({std::string("--size=") + text}),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected a number of bytes such as")))
        << text;
  }
}

TEST_F(CommandLineTest, HelpShowsMeaningAndDefault) {
  EXPECT_EQ(FlagHelp({"count", "size", "name", "loud"}),
            "  --count=VALUE: a number; default: 7\n  --size=VALUE: bytes; default: 512MiB\n"
            "  --name=VALUE: may be repeated\n  --loud: a switch\n");
}

TEST_F(CommandLineTest, AProgramOfOneWordParsesAllItsFlags) {
  EXPECT_EQ(Parse({"--count=4"}), std::nullopt);
  EXPECT_EQ(absl::GetFlag(FLAGS_count), 4);
  testing::internal::CaptureStdout();
  EXPECT_THAT(Parse({"--help"}), Optional(kExitDone));
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("usage: program [flags]\n\n  --count=VALUE: a number"));
  testing::internal::CaptureStderr();
  EXPECT_THAT(Parse({"--colour"}), Optional(kExitUsage));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "program: unknown flag --colour; program --help shows what there is\n");
  EXPECT_THAT(Parse({"operand"}), Optional(kExitUsage));
  std::vector<std::string> operands;
  EXPECT_EQ(Parse({"operand"}, &operands), std::nullopt);
  EXPECT_THAT(operands, ElementsAre("operand"));
}

TEST_F(CommandLineTest, HelpAndVersionAreWordsToo) {
  testing::internal::CaptureStdout();
  EXPECT_THAT(Parse({"help"}), Optional(kExitDone));
  const std::string help = testing::internal::GetCapturedStdout();
  testing::internal::CaptureStdout();
  EXPECT_THAT(Parse({"--help"}), Optional(kExitDone));
  EXPECT_EQ(help, testing::internal::GetCapturedStdout());
  testing::internal::CaptureStdout();
  EXPECT_THAT(Parse({"version"}), Optional(kExitDone));
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("program "));
  std::vector<std::string> operands;
  EXPECT_EQ(Parse({"help", "me"}, &operands), std::nullopt);
  EXPECT_THAT(operands, ElementsAre("help", "me"));
}

TEST_F(CommandLineTest, ExamplesComeAfterTheFlags) {
  Arguments arguments({"--help"});
  testing::internal::CaptureStdout();
  EXPECT_THAT(
      ParseFlags(arguments.argc(), arguments.argv(), "program [flags]\nDoes it.\n\nexamples:\n  program --loud\n"),
      Optional(kExitDone));
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_LT(help.find("Does it."), help.find("  --loud: a switch"));
  EXPECT_LT(help.find("  --loud: a switch"), help.find("\nexamples:\n  program --loud\n"));
}

TEST_F(CommandLineTest, RelativePathsAreTheCallers) {
  const std::filesystem::path before = std::filesystem::current_path();
  ScopedVariable variable("BUILD_WORKING_DIRECTORY", "/");
  EnterCallersDirectory();
  EXPECT_EQ(std::filesystem::current_path(), "/");
  variable.Set(std::nullopt);
  std::filesystem::current_path(before);
  EnterCallersDirectory();
  EXPECT_EQ(std::filesystem::current_path(), before);
}

}  // namespace
}  // namespace fsdp
