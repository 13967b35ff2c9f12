// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/file_identity.h"

#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// The kernel follows at most this many links; longer chains are loops.
constexpr size_t kMaxLinks = 40;

// The number of a file's names, in the deleted directories and in all.
struct NamesOfFile {
  uint64_t seen = 0;
  uint64_t all = 0;
  int64_t nbytes = 0;
};

void CountName(const std::string& path, std::map<FileIdentity, NamesOfFile>& files) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return;
  NamesOfFile& file = files[{info.st_dev, info.st_ino}];
  file = {.seen = file.seen + 1, .all = info.st_nlink, .nbytes = info.st_size};
}

}  // namespace

std::optional<FileIdentity> IdentityOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return FileIdentity{info.st_dev, info.st_ino};
}

std::string PhysicalPath(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  // The first call leaves "none/../link/file" as "link/file", with a link in the existing part.
  fs::path physical = fs::weakly_canonical(fs::weakly_canonical(whole, error), error);
  if (error || physical.empty()) physical = whole.lexically_normal();
  if (!physical.has_filename()) physical = physical.parent_path();  // "a/none/", which does not exist
  return physical;
}

std::vector<std::string> PhysicalParents(const std::string& path) {
  std::vector<std::string> parents;
  for (fs::path at = PhysicalPath(path); at.has_relative_path();) {
    at = at.parent_path();
    parents.push_back(at);
  }
  return parents;
}

std::vector<std::string> LinkChain(const std::string& path) {
  std::vector<std::string> chain = {path};
  std::error_code error;
  while (chain.size() <= kMaxLinks) {
    // With a slash at the end, the path would denote the target of the link.
    const fs::path at =
        fs::path(chain.back()).has_filename() ? fs::path(chain.back()) : fs::path(chain.back()).parent_path();
    const fs::path target = fs::read_symlink(at, error);
    if (error) break;
    chain.push_back(at.parent_path() / target);  // an absolute target replaces the directory
  }
  return chain;
}

int64_t FreedBytes(const std::vector<std::string>& paths) {
  std::map<FileIdentity, NamesOfFile> files;
  for (const std::string& path : paths) {
    CountName(path, files);
    std::error_code error;
    // The iterator would follow a link given as its root, and count files that a deletion of the link keeps.
    if (fs::is_symlink(fs::symlink_status(path, error))) continue;
    for (fs::recursive_directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      CountName(it->path(), files);
    }
  }
  int64_t nbytes = 0;
  // Space is freed only when the last name of a file disappears.
  for (const auto& [identity, file] : files) nbytes += file.seen == file.all ? file.nbytes : 0;
  return nbytes;
}

}  // namespace fsdp
