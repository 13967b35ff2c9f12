// SPDX-License-Identifier: Apache-2.0
//
// Replacing a directory deletes its files, so `force` applies only to checkpoints: every entry must be a regular file
// with a name that some format's writer uses, or a directory with such a name and only such files in it. In that
// directory, a directory that a format knows as a part of its checkpoints, which may have any name (zero/NAME of
// DeepSpeed), holds files of the names that some format reads. The check reads names, not contents; it guards against a
// mistyped path and not against an adversary. The writers replace the destination by one rename, whatever changes in
// between.
#include "fsdp/checkpoint/convert/convert_destination.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// True for names of every format: a conversion may replace a checkpoint with one in another format.
bool IsCheckpointFileName(const std::string& name) {
  return std::any_of(Formats().begin(), Formats().end(),
                     [&](const Format& format) { return format.driver->OwnsFileName(name); });
}

bool IsReadFileName(const std::string& name) {
  return std::any_of(Formats().begin(), Formats().end(),
                     [&](const Format& format) { return format.driver->ReadsFileName(name); });
}

absl::StatusOr<bool> IsCheckpointDirectory(const std::string& path) {
  for (const Format& format : Formats()) {
    FSDP_ASSIGN_OR_RETURN(const bool is_one, format.driver->IsCheckpointDirectory(path));
    if (is_one) return true;
  }
  return false;
}

constexpr int kMostDepth = 3;  // of directories: TAG/zero/NAME

absl::Status CheckHoldsCheckpointFilesOnly(const std::string& path, const std::map<std::string, std::string>& replaced,
                                           int depth = 0) {
  absl::StatusOr<bool> is_part = false;
  if (depth > 0) is_part = IsCheckpointDirectory(path);
  FSDP_RETURN_IF_ERROR(is_part.status());
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    const bool is_file = it->is_regular_file(error);
    if (is_file && (replaced.count(name) != 0 || IsCheckpointFileName(name))) continue;
    if (is_file && *is_part && IsReadFileName(name)) continue;
    const bool is_directory = depth < kMostDepth && !it->is_symlink(error) && it->is_directory(error);
    absl::StatusOr<bool> is_of_one = depth == 0 && IsCheckpointFileName(name);
    if (is_directory && depth > 0) is_of_one = IsCheckpointDirectory(it->path());
    FSDP_RETURN_IF_ERROR(is_of_one.status());
    if (is_directory && *is_of_one) {
      FSDP_RETURN_IF_ERROR(CheckHoldsCheckpointFilesOnly(it->path(), {}, depth + 1));
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat(path, " holds ", Quote(name),
                     ", which is not a file of a checkpoint, so ConvertOptions::force does not replace the ",
                     "directory; choose another destination or remove it yourself"));
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("list ", path));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDestination(const std::string& path, const DestinationOptions& options) {
  const bool is_directory = options.is_directory;
  const std::string parent = SplitPath(path).directory;
  FSDP_ASSIGN_OR_RETURN(const fs::file_type place, TypeOfTarget(parent));
  if (place != fs::file_type::directory) {
    return absl::NotFoundError(absl::StrCat("directory ", parent, " does not exist; make it first"));
  }
  // Of the entry itself: a link to a directory is neither a directory nor a file here, so `force` never replaces a
  // link.
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfEntry(path));
  if (type == fs::file_type::not_found) return absl::OkStatus();
  if (!options.force) return absl::AlreadyExistsError(absl::StrCat(path, " exists; ConvertOptions::force replaces it"));
  if (type != (is_directory ? fs::file_type::directory : fs::file_type::regular)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a ", is_directory ? "directory" : "regular file",
                                                      ", so ConvertOptions::force does not replace it with one"));
  }
  return is_directory ? CheckHoldsCheckpointFilesOnly(path, options.replaced) : absl::OkStatus();
}

}  // namespace fsdp
