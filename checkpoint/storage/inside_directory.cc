// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/inside_directory.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// Both are canonical.
bool IsBelow(const fs::path& path, const fs::path& directory) {
  return std::mismatch(directory.begin(), directory.end(), path.begin(), path.end()).first == directory.end();
}

absl::Status Refused(const std::string& location, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("the location ", Quote(location), " ", what,
                                                 ": refused, because only files in the same directory are read"));
}

}  // namespace

absl::Status CheckStaysInside(const std::string& directory, const std::string& location, const std::string& stated_in) {
  const fs::path relative = location;
  if (location.empty() || location.find('\0') != location.npos) return Refused(location, "is no path");
  if (relative.is_absolute()) return Refused(location, "is absolute");
  if (std::find(relative.begin(), relative.end(), "..") != relative.end()) {
    return Refused(location, "leads out of the directory");
  }
  std::error_code error;
  const fs::path home = fs::canonical(directory, error);
  if (error) return absl::OkStatus();
  const fs::path target = fs::canonical(home / relative, error);
  if (error || IsBelow(target, home)) return absl::OkStatus();
  const fs::path file = fs::canonical(stated_in, error);
  if (!error && IsBelow(target, file.parent_path())) return absl::OkStatus();
  return Refused(location, "is a link that leads out of the directory");
}

}  // namespace fsdp
