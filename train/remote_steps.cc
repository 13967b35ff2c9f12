// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/remote_steps.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/set_aside.h"
#include "fsdp/checkpoint/object/download.h"
#include "fsdp/checkpoint/object/open_store.h"
#include "fsdp/checkpoint/object/remote_checkpoint.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

absl::StatusOr<RemoteSteps> RemoteSteps::Open(const TrainOptions& options) {
  RemoteSteps steps(options);
  if (options.upload.empty()) return steps;
  FSDP_ASSIGN_OR_RETURN(const S3Url url, ParseS3Url(options.upload));
  // Keys and endpoint come from the environment.
  FSDP_ASSIGN_OR_RETURN(steps.store_, OpenObjectStore(url));
  steps.run_ = url.prefix;
  return steps;
}

absl::StatusOr<std::vector<std::string>> RemoteSteps::Beyond(int64_t step) {
  std::vector<std::string> beyond;
  if (store_ == nullptr) return beyond;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListRemoteSteps(*store_, run_));
  // Newest first, and only down to `step`: each check is a request to the store.
  for (auto name = names.rbegin(); name != names.rend() && ParseStepName(*name).value_or(0) > step; ++name) {
    FSDP_ASSIGN_OR_RETURN(const bool is_complete, IsRemoteCheckpoint(*store_, RemoteStep(run_, *name)));
    if (is_complete) beyond.push_back(*name);
  }
  return beyond;
}

absl::StatusOr<std::string> RemoteSteps::Fetch(int64_t step, std::vector<std::string>& notes) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, Beyond(step));
  for (const std::string& name : names) {
    FileSystem& files = PosixFileSystem();
    FSDP_RETURN_IF_ERROR(MakeDirectories(files, options_.checkpoint_dir));
    std::string path = JoinPath(options_.checkpoint_dir, name);
    // It is newer than the newest local step that verifies, so it did not verify: it must not block the download.
    if (files.Exists(path)) {
      FSDP_ASSIGN_OR_RETURN(const SetAsideStep aside, SetAsideCheckpoint(files, options_.checkpoint_dir, name));
      notes.push_back(absl::StrFormat("%s is kept as %s: the object store has the step whole", path, aside.name));
    }
    const std::string remote = RemoteStep(run_, name);
    const absl::Status got = DownloadCheckpoint(*store_, remote, files, path).status();
    if (got.ok()) {
      notes.push_back(absl::StrFormat("%s was downloaded to %s", store_->UrlOf(remote), path));
      return path;
    }
    // Only damage leads to an older step; a store that fails must not.
    if (!absl::IsDataLoss(got)) return got;
    notes.push_back(absl::StrFormat("%s, so it is skipped", std::string(got.message())));
  }
  return std::string();
}

absl::Status RemoteSteps::RefuseBeyond(int64_t step) {
  if (options_.overwrite) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, Beyond(step));
  if (names.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "--upload=%s holds %s, beyond step %d at which this run starts; pass --resume=auto to continue from the newest, "
      "--overwrite to replace such steps, or another prefix",
      options_.upload, names.front(), step));
}

}  // namespace fsdp
