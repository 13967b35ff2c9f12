// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/formats/paths_below.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "fsdp/base/natural_order.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr int kLevels = 6;
constexpr int kMaxNames = 2000;

}  // namespace

// Level by level: what is nearest is found without a look at the rest, and a deep tree of something else costs no more
// than its first names.
std::vector<std::string> PathsBelow(const std::string& directory,
                                    const std::function<bool(const std::string& path)>& is_checkpoint) {
  std::vector<fs::path> level = {""};
  int names = 0;
  for (int depth = 0; depth < kLevels && !level.empty(); ++depth) {
    std::vector<std::string> found;
    std::vector<fs::path> next;
    for (const fs::path& parent : level) {
      std::error_code error;
      for (fs::directory_iterator it(fs::path(directory) / parent, error), end; !error && it != end;
           it.increment(error)) {
        const std::string name = it->path().filename();
        if (name[0] == '.') continue;
        if (++names > kMaxNames) return found;
        std::error_code ignored;
        const bool is_directory = it->is_directory(ignored);
        if (is_checkpoint(it->path())) {
          found.push_back(parent / name);
        } else if (is_directory && !it->is_symlink(ignored)) {
          next.push_back(parent / name);
        }
      }
    }
    if (!found.empty()) {
      std::sort(found.begin(), found.end(), IsNaturallyBefore);
      return found;
    }
    level = std::move(next);
  }
  return {};
}

}  // namespace fsdp
