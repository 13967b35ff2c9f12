// SPDX-License-Identifier: Apache-2.0
//
// OpenSource: opens the checkpoint that a subcommand reads, of any format, here or in an object store, with the options
// that its flags give.
#ifndef FSDP_TOOLS_CLI_CKPT_SOURCE_H_
#define FSDP_TOOLS_CLI_CKPT_SOURCE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/object/object_store.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// The options for opening a checkpoint, from the flags. Reads the file that --flat_layout names, if any; returns the
// errors of ReadFlatLayout.
absl::StatusOr<TensorSourceOptions> SourceOptionsFromFlags();

// The roles of --map, in order. kInvalidArgument quotes one that does not parse.
absl::StatusOr<std::vector<TensorRole>> RolesFromFlags();

// A checkpoint in an object store.
struct RemoteLocation {
  std::unique_ptr<ObjectStore> store;
  std::string step;  // for RemoteFiles and ReadRemoteManifest
};

// The checkpoint that an s3:// URL names, or the newest complete step of a run, in the store of --endpoint_url. Errors
// as ParseS3Url, OpenObjectStore and FindRemoteCheckpoint.
absl::StatusOr<RemoteLocation> FindRemote(const std::string& url);

// OpenTensorSource(path, options), or OpenRemoteSource of what FindRemote finds.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenPath(const std::string& path, const TensorSourceOptions& options);

// OpenPath with the flags' options, and its errors. Of two paths that a subcommand opens only one may need roles, so a
// format without a layout is opened without them.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenSource(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CLI_CKPT_SOURCE_H_
