// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/formats/path_kind.h"

#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/file_names.h"
#include "fsdp/checkpoint/safetensors/safetensors_source.h"
#include "fsdp/checkpoint/torch/dcp/dcp_source.h"
#include "fsdp/checkpoint/torch/pt/torch_source.h"
#include "fsdp/checkpoint/verify/latest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// True when something, even a link to nothing, has this name.
bool HasName(const std::string& directory, const char* name) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(fs::path(directory) / name, ignored));
}

// The name of a file in `directory` that only a checkpoint of ours has; empty when there is none.
std::string FindCheckpointFile(const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (name == kCheckpointFileName || (absl::StartsWith(name, "rank-") && absl::EndsWith(name, ".h5"))) return name;
  }
  return "";
}

absl::StatusOr<PathKind> RecogniseDirectory(const std::string& path) {
  if (HasName(path, kManifestName)) return PathKind::kCheckpoint;
  if (const std::string name = FindCheckpointFile(path); !name.empty()) {
    return absl::DataLossError(absl::StrCat(kManifestName, " is missing in ", path, ", which holds ", name));
  }
  if (IsHuggingFaceDirectory(path)) return PathKind::kHuggingFaceDirectory;
  if (IsDcpDirectory(path)) return PathKind::kDcpDirectory;
  if (IsTorchDirectory(path)) return PathKind::kTorchDirectory;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> steps, ListCheckpoints(path));
  if (!steps.empty()) return PathKind::kRoot;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is no checkpoint: expected manifest.json, step-* directories, ",
                   "model.safetensors, pytorch_model.bin, an index of several, or ", "DCP's .metadata in it"));
}

absl::StatusOr<PathKind> RecogniseFile(const std::string& path) {
  char bytes[9] = {};
  std::ifstream file(path, std::ios::binary);
  file.read(bytes, sizeof(bytes));
  const std::string_view head(bytes, static_cast<size_t>(file.gcount()));
  if (file.bad() || !file.is_open()) return absl::UnavailableError(absl::StrCat("cannot read ", path));
  if (absl::StartsWith({head.data(), head.size()}, "\x89HDF\r\n\x1a\n")) {
    return PathKind::kHdf5File;
  }
  const bool is_zip = absl::StartsWith({head.data(), head.size()}, "PK\x03\x04");
  const bool is_pickle = head.size() > 1 && head[0] == '\x80' && head[1] <= 5;
  const bool has_brace = head.size() == sizeof(bytes) && std::string_view("{ \t\r\n").find(head[8]) != head.npos;
  if (has_brace && !is_zip) return PathKind::kSafetensorsFile;
  if (is_zip || is_pickle) return PathKind::kTorchFile;
  // A file of that name is opened as safetensors whatever it holds, so that the error says what is wrong with it.
  if (absl::EndsWith(path, ".safetensors")) return PathKind::kSafetensorsFile;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is neither a safetensors file, a torch file nor a checkpoint directory"));
}

}  // namespace

absl::StatusOr<PathKind> RecognisePath(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return absl::NotFoundError(absl::StrCat(path, " does not exist"));
  if (status.type() == fs::file_type::directory) return RecogniseDirectory(path);
  if (status.type() == fs::file_type::regular) return RecogniseFile(path);
  if (error) return absl::ErrnoToStatus(error.value(), path);
  return absl::InvalidArgumentError(absl::StrCat(path, " is neither a file nor a directory"));
}

std::string FormatName(PathKind kind) {
  switch (kind) {
    case PathKind::kCheckpoint:
    case PathKind::kRoot:
      return "hdf5";
    case PathKind::kHdf5File:
      return "hdf5 file";
    case PathKind::kSafetensorsFile:
    case PathKind::kHuggingFaceDirectory:
      return "safetensors";
    case PathKind::kTorchFile:
    case PathKind::kTorchDirectory:
      return "torch";
    case PathKind::kDcpDirectory:
      return "dcp";
  }
  CheckFailed("not a PathKind", __FILE__, __LINE__);
}

}  // namespace fsdp
