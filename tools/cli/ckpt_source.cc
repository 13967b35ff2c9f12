// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/cli/ckpt_source.h"

#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/checkpoint_driver.h"
#include "fsdp/checkpoint/object/open_store.h"
#include "fsdp/checkpoint/object/remote_checkpoint.h"
#include "fsdp/checkpoint/object/remote_files.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/tools/cli/ckpt_flags.h"

namespace fsdp {

absl::StatusOr<TensorSourceOptions> SourceOptionsFromFlags() {
  TensorSourceOptions options;
  // An empty path, the flag's default, gives an empty layout.
  FSDP_ASSIGN_OR_RETURN(options.flat_layout, ReadFlatLayout(absl::GetFlag(FLAGS_flat_layout)));
  options.skip_links = absl::GetFlag(FLAGS_skip_links);
  options.model_only = absl::GetFlag(FLAGS_model_only);  // only diff has it, of the commands that come here
  FSDP_ASSIGN_OR_RETURN(options.map, RolesFromFlags());
  return options;
}

absl::StatusOr<std::vector<TensorRole>> RolesFromFlags() { return RolesOfMapFlag(absl::GetFlag(FLAGS_map).values); }

absl::StatusOr<RemoteLocation> FindRemote(const std::string& url) {
  FSDP_ASSIGN_OR_RETURN(const S3Url parsed, ParseS3Url(url));
  RemoteLocation found;
  FSDP_ASSIGN_OR_RETURN(found.store, OpenObjectStore(parsed, absl::GetFlag(FLAGS_endpoint_url)));
  absl::StatusOr<std::string> step = FindRemoteCheckpoint(*found.store, parsed.prefix);
  // Not for a bucket that does not exist.
  if (absl::IsNotFound(step.status()) && absl::StrContains(step.status().message(), "holds no checkpoint")) {
    return WithMessage(step.status(), absl::StrCat(step.status().message(),
                                                   "; only what ckpt push has put there is read in place: copy other "
                                                   "files by the store's own client, such as aws s3 cp --recursive"));
  }
  FSDP_RETURN_IF_ERROR(step.status());
  found.step = *std::move(step);
  return found;
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenPath(const std::string& path, const TensorSourceOptions& options) {
  if (!IsS3Url(path)) return OpenTensorSource(path, options);
  FSDP_RETURN_IF_ERROR(CheckpointDriver().CheckApply(options));
  FSDP_ASSIGN_OR_RETURN(RemoteLocation remote, FindRemote(path));
  return OpenRemoteSource(std::move(remote.store), remote.step, options);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenSource(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(TensorSourceOptions options, SourceOptionsFromFlags());
  const FormatDriver* driver = &CheckpointDriver();
  if (!IsS3Url(path)) {
    FSDP_ASSIGN_OR_RETURN(driver, FindFormat(path));
  }
  if (!driver->traits().has_layout) options.map.clear();
  return OpenPath(path, options);
}

}  // namespace fsdp
