// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/dcp/megatron_sign.h"

#include <cstdint>
#include <filesystem>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/source/json_document.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

absl::StatusOr<bool> IsFile(const std::string& directory, const char* name) {
  FSDP_ASSIGN_OR_RETURN(const std::filesystem::file_type type, TypeOfTarget(JoinPath(directory, name)));
  return type != std::filesystem::file_type::not_found && type != std::filesystem::file_type::directory;
}

}  // namespace

// A DCP directory of another program may have a metadata.json of its own.
absl::StatusOr<bool> IsMegatronDist(const std::string& directory) {
  constexpr int64_t kMaxTextBytes = 64 * 1024;
  FSDP_ASSIGN_OR_RETURN(const bool has_metadata, IsFile(directory, kMegatronMetadataName));
  FSDP_ASSIGN_OR_RETURN(const bool has_common, IsFile(directory, kMegatronCommonName));
  FSDP_ASSIGN_OR_RETURN(const bool has_dcp, IsFile(directory, kDcpMetadataName));
  if (has_common && (has_metadata || has_dcp)) return true;
  if (!has_metadata) return false;
  const absl::StatusOr<std::string> text =
      ReadFile(PosixFileSystem(), JoinPath(directory, kMegatronMetadataName), kMaxTextBytes);
  if (absl::IsInvalidArgument(text.status())) return false;  // too large, or no file
  FSDP_RETURN_IF_ERROR(text.status());
  const absl::StatusOr<nlohmann::json> json = ParseJson(*text);
  return json.ok() && json->contains("sharded_backend");
}

}  // namespace fsdp
