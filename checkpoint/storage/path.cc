// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/path.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace fsdp {

std::string JoinPath(const std::string& directory, const std::string& name) {
  return absl::EndsWith(directory, "/") ? absl::StrCat(directory, name) : absl::StrCat(directory, "/", name);
}

PathParts SplitPath(const std::string& path) {
  const size_t last = path.find_last_not_of('/');
  if (last == std::string::npos) return {path.empty() ? "." : "/", ""};
  const size_t slash = path.rfind('/', last);
  if (slash == std::string::npos) return {".", path.substr(0, last + 1)};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1, last - slash)};
}

}  // namespace fsdp
