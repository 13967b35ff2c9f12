// SPDX-License-Identifier: Apache-2.0
//
// libfsdp_checkpoint.so exports exactly the names in its header: an exported symbol of HDF5 or Abseil would replace
// another library's in the same process.
#include <dlfcn.h>
#include <gnu/libc-version.h>

#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/file_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr char kLibrary[] = "checkpoint/c_api/libfsdp_checkpoint.so";
constexpr char kHeader[] = "checkpoint/c_api/fsdp_checkpoint.h";

// The names of functions that a header declares: the names before a "(" in lines that begin with a type.
std::set<std::string> DeclaredFunctions(const std::string& header) {
  std::set<std::string> names;
  for (const absl::string_view line : absl::StrSplit(header, '\n')) {
    if (line.empty() || !std::isalpha(static_cast<unsigned char>(line[0])) || absl::StartsWith(line, "typedef"))
      continue;
    const size_t end = line.find('(');
    if (end == absl::string_view::npos) continue;
    const size_t begin = line.find_last_of(" *", end) + 1;
    names.emplace(line.substr(begin, end - begin));
  }
  return names;
}

TEST(SymbolsTest, TheLibraryShowsTheFunctionsOfItsHeaderAndNothingElse) {
  const std::set<std::string> declared = DeclaredFunctions(ReadFile(kHeader));
  ASSERT_GT(declared.size(), 30u);
  const absl::StatusOr<ProgramResult> nm =
      RunProgram({"nm", "--dynamic", "--defined-only", "--no-demangle", kLibrary}, absl::Seconds(60));
  ASSERT_TRUE(nm.ok()) << nm.status();
  ASSERT_EQ(nm->exit_status, 0) << nm->output;
  std::set<std::string> shown;
  for (const absl::string_view line : absl::StrSplit(nm->output, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    ASSERT_EQ(words.size(), 3u) << line;
    if (words[1] == "A") continue;  // the name of the version itself
    EXPECT_EQ(words[1], "T") << line;
    const std::vector<std::string> parts = absl::StrSplit(words[2], "@@");
    ASSERT_EQ(parts.size(), 2u) << line;
    EXPECT_EQ(parts[1], "FSDP_CHECKPOINT_1");
    shown.insert(parts[0]);
  }
  EXPECT_EQ(shown, declared);
}

// The versioned symbols that the library needs from others, such as "pow@GLIBC_2.2.5".
std::vector<std::string> Wanted() {
  const absl::StatusOr<ProgramResult> nm =
      RunProgram({"nm", "--dynamic", "--undefined-only", "--no-demangle", kLibrary}, absl::Seconds(60));
  EXPECT_TRUE(nm.ok() && nm->exit_status == 0) << nm.status();
  std::vector<std::string> wanted;
  for (const absl::string_view line : absl::StrSplit(nm.ok() ? nm->output : "", '\n', absl::SkipEmpty())) {
    wanted.emplace_back(line.substr(line.find_last_of(' ') + 1));
  }
  return wanted;
}

// "2.18" as 2018.
int Number(absl::string_view version) {
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  return std::stoi(parts[0]) * 1000 + (parts.size() > 1 ? std::stoi(parts[1]) : 0);
}

TEST(SymbolsTest, TheLibraryRunsWithOlderCLibrariesAndWithNoSharedCppLibrary) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "older_glibc.cc is for x86-64";
#endif
  if (Number(gnu_get_libc_version()) > Number("2.36")) {
    GTEST_SKIP() << "glibc " << gnu_get_libc_version() << " may have functions that older_glibc.cc does not know";
  }
  const std::vector<std::string> wanted = Wanted();
  ASSERT_GT(wanted.size(), 100u);
  for (const std::string& symbol : wanted) {
    const std::string version = symbol.substr(symbol.find('@') + 1);
    if (absl::StrContains(symbol, "absl")) GTEST_SKIP() << "the installed Abseil is linked as shared libraries";
    EXPECT_FALSE(absl::StartsWith(version, "GLIBCXX") || absl::StartsWith(version, "CXXABI")) << symbol;
    if (absl::StartsWith(version, "GLIBC_")) {
      EXPECT_LE(Number(version.substr(6)), Number("2.18")) << symbol << ": older_glibc.cc lacks it";
    }
  }
}

TEST(SymbolsTest, AProgramMayLoadTheLibraryAtRunTime) {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto version = reinterpret_cast<int32_t (*)()>(dlsym(library, "fsdp_checkpoint_abi_version"));
  ASSERT_NE(version, nullptr);
  EXPECT_EQ(version(), 1);
}

}  // namespace
}  // namespace fsdp
