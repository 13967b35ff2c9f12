// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/benchmark/page_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// Calls `visit` with each regular file below `directory`, open for reading; false ends it with an error.
absl::Status ForEachFile(const std::string& directory, const std::function<bool(int fd)>& visit) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    const bool done = fd >= 0 && visit(fd);
    if (fd >= 0) close(fd);
    if (!done) return absl::InternalError(absl::StrCat("cannot read ", entry.path().string()));
  }
  return absl::OkStatus();
}

}  // namespace

// Advice, not a command: the kernel drops only clean pages, so files must have been synced.
absl::Status DropFromPageCache(const std::string& directory) {
  return ForEachFile(directory, [](int fd) { return posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0; });
}

// Through a small buffer: the pages stay in the cache, not in this process.
absl::Status ReadIntoPageCache(const std::string& directory) {
  std::vector<char> buffer(1 << 20);
  return ForEachFile(directory, [&](int fd) {
    ssize_t n = 0;
    do {
      n = read(fd, buffer.data(), buffer.size());
    } while (n > 0);
    return n == 0;
  });
}

}  // namespace fsdp
