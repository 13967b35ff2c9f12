// SPDX-License-Identifier: Apache-2.0
//
// Programs print by Print and PrintError (base/terminal.h), which let no text of others command a terminal. This reads
// the sources as layers_test does: README.md in the runfiles is a link to the source tree.
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "fsdp/base/file_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

// The sources of programs and of what they share.
constexpr const char* kFolders[] = {"base", "checkpoint", "collectives", "fsdp",  "models",
                                    "nn",   "optim",      "tensor",      "tools", "train"};

// Files that have their own way to a stream, and why.
const std::set<std::string> kOwnWay = {
    "base/check.cc",                       // a broken invariant of ours: a text of this source
    "base/terminal.cc",                    // the way of all others
    "checkpoint/storage/fault_series.cc",  // for tests: counts
    "tools/cli/progress.cc",               // numbers, and the commands that redraw a line
    "tools/package/installed_program.cc",  // a test of the install
};

bool IsProductionSource(const fs::path& path) {
  const std::string extension = path.extension(), stem = path.stem();
  return (extension == ".cc" || extension == ".h") && !absl::StrContains(stem, "test") &&
         !absl::EndsWith(stem, "benchmark") && !absl::StrContains(stem, "fake_") &&
         !absl::StrContains(path.string(), "/emulator/") && !absl::StrContains(path.string(), "/testdata/") &&
         !absl::StrContains(path.string(), "/fuzz/") && !absl::StrContains(path.string(), "benchmark/");
}

// "12: std::printf(..." for each line of `source` that writes to stdout or stderr.
std::vector<std::string> OtherWays(const std::string& source) {
  static const std::regex kWays(
      R"((^|[^\w.>])(printf|fprintf|vprintf|puts|fputs|putchar|fputc|putc|fwrite|perror|psignal|PrintF|FPrintF|cout|cerr|clog)\b\s*(\(|<<))");
  std::vector<std::string> ways;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(source, '\n')) {
    ++number;
    const std::string code(line.substr(0, line.find("//")));
    if (std::regex_search(code, kWays)) ways.push_back(absl::StrCat(number, ": ", line));
  }
  return ways;
}

TEST(TerminalTest, EveryProgramPrintsThroughOneFunction) {
  const fs::path tree = fs::canonical("README.md").parent_path();
  std::map<std::string, std::vector<std::string>> found;
  int sources = 0;
  for (const char* folder : kFolders) {
    for (const auto& entry : fs::recursive_directory_iterator(tree / folder)) {
      const std::string path = fs::relative(entry.path(), tree);
      if (!entry.is_regular_file() || !IsProductionSource(path) || kOwnWay.count(path) != 0) continue;
      ++sources;
      const std::vector<std::string> ways = OtherWays(ReadFile(entry.path()));
      if (!ways.empty()) found[path] = ways;
    }
  }
  EXPECT_GT(sources, 300);
  EXPECT_THAT(found, IsEmpty()) << "print by Print or PrintError of base/terminal.h";
}

TEST(TerminalTest, AnotherWayIsNamedWithItsLine) {
  EXPECT_THAT(OtherWays("int a;\n  std::printf(\"%s\", name);\n"), ElementsAre("2:   std::printf(\"%s\", name);"));
  EXPECT_THAT(OtherWays("absl::PrintF(format);\nstd::cerr << x;"),
              ElementsAre("1: absl::PrintF(format);", "2: std::cerr << x;"));
  EXPECT_THAT(OtherWays("Print(x); PrintError(y); std::snprintf(buffer, 3, z); // std::printf(x)"), IsEmpty());
}

}  // namespace
}  // namespace fsdp
