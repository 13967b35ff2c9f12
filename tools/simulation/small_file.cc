// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/small_file.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace fsdp {

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, " cannot be read"));
  // One byte more than allowed tells a file that is too large, even one that grows.
  std::string text;
  char block[1 << 16];
  while (static_cast<int64_t>(text.size()) <= kMaxSmallFileBytes &&
         (file.read(block, sizeof(block)), file.gcount() > 0)) {
    text.append(block, static_cast<size_t>(file.gcount()));
  }
  if (static_cast<int64_t>(text.size()) <= kMaxSmallFileBytes) return text;
  return absl::InvalidArgumentError(absl::StrCat(path, " has more than ", kMaxSmallFileBytes, " bytes"));
}

}  // namespace fsdp
