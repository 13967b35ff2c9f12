// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/disk_room.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

absl::Status CheckRoom(const std::string& path, std::string_view what, int64_t nbytes) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(SplitPath(path).directory, error);
  if (error || static_cast<uint64_t>(nbytes) <= space.available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(path, ": ", std::string(what), " take ", nbytes,
                                                   " bytes, but the disk has room for ", space.available));
}

}  // namespace fsdp
