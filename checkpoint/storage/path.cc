// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/path.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

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

// Names come from manifests and other metadata, which may be hostile: a name with '/' could leave the directory, and
// control characters could write to the terminal that shows a message.
absl::Status CheckFileName(const std::string& name) {
  const bool has_bad_byte =
      std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '/'; });
  if (name.empty() || name == "." || name == ".." || has_bad_byte || name.size() > 255) {
    return absl::DataLossError(absl::StrCat(Quote(name), " is not the name of a file inside the checkpoint"));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
