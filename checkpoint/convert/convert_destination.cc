// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/convert/convert_destination.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/file_names.h"
#include "fsdp/checkpoint/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/torch/dcp/dcp_metadata.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// True for the names that WriteCheckpointDirectory, WriteHuggingFaceDirectory and WriteDcpDirectory give to files.
bool IsCheckpointFileName(const std::string& name) {
  const auto numbered = [&](const char* prefix, const char* suffix) {
    return absl::StartsWith(name, prefix) && absl::EndsWith(name, suffix);
  };
  return name == kManifestName || name == kCheckpointFileName || numbered("rank-", ".h5") ||
         numbered("parity-", ".bin") || name == kHuggingFaceModelName || name == kHuggingFaceIndexName ||
         numbered("model-", ".safetensors") || name == kDcpMetadataName || numbered("__", ".distcp");
}

absl::Status CheckHoldsCheckpointFilesOnly(const std::string& path) {
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (it->is_regular_file(error) && IsCheckpointFileName(name)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        path, " holds ", Quote(name), ", which is no file of a checkpoint, so --force does not replace the directory; ",
        "choose another destination or remove it yourself"));
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("list ", path));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDestination(const std::string& path, bool is_directory, bool force) {
  std::error_code error;
  const std::string parent = SplitPath(path).directory;
  if (!fs::is_directory(parent, error)) {
    return absl::NotFoundError(absl::StrCat("directory ", parent, " does not exist; make it first"));
  }
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) return absl::OkStatus();
  if (error) return absl::ErrnoToStatus(error.value(), path);
  if (!force) return absl::AlreadyExistsError(absl::StrCat(path, " exists; --force replaces it"));
  if (status.type() != (is_directory ? fs::file_type::directory : fs::file_type::regular)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a ", is_directory ? "directory" : "regular file",
                                                      ", so --force does not replace it with one"));
  }
  return is_directory ? CheckHoldsCheckpointFilesOnly(path) : absl::OkStatus();
}

}  // namespace fsdp
