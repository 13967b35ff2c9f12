// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/runfile.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// A runfiles tree has one directory per repository. The name of this repository's directory depends on the MODULE.bazel
// or WORKSPACE of the main repository, so all of them are tried.
void AddRepositories(const fs::path& runfiles, std::vector<fs::path>& roots) {
  std::error_code error;
  for (fs::directory_iterator entry(runfiles, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_directory(error)) roots.push_back(entry->path());
  }
}

// Directories that may hold this repository's built files, the most likely first.
std::vector<fs::path> Roots() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  std::vector<fs::path> roots = {program.parent_path().parent_path()};  // bazel-bin, of bazel-bin/examples/NAME
  AddRepositories(program.string() + ".runfiles", roots);
  for (const char* variable : {"RUNFILES_DIR", "TEST_SRCDIR"}) {
    if (const char* runfiles = std::getenv(variable); runfiles != nullptr) AddRepositories(runfiles, roots);
  }
  return roots;
}

}  // namespace

absl::StatusOr<std::string> FindRunfile(std::string_view name) {
  std::vector<std::string> tried;
  for (const fs::path& root : Roots()) {
    const fs::path path = root / name;
    std::error_code error;
    if (fs::exists(path, error)) return path.string();
    tried.push_back(path.string());
  }
  return absl::NotFoundError(absl::StrFormat("%s: was not built together with this program; tried %s",
                                             std::string(name), absl::StrJoin(tried, ", ")));
}

}  // namespace fsdp
