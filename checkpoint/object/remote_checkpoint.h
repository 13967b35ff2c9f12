// SPDX-License-Identifier: Apache-2.0
//
// The layout of checkpoints in an object store, and how to find them. Rule for readers: a step exists if its
// manifest.json exists. The manifest names the save by its id, and the keys of its files contain this id:
//
//   run/step-00000100/manifest.json                        the same bytes as in the directory; put last
//   run/step-00000100/65e9d6.../checkpoint.h5              65e9d6...: the save id
//   run/step-00000100/65e9d6.../rank-00000-of-00004.h5
//
// A reader that has the manifest of one save never reads a file of another, even if another save is uploaded meanwhile.
// "run" is the prefix of a URL (s3_url.h); "" is the whole bucket. All functions only read, and return the errors of
// ObjectStore.
#ifndef FSDP_CHECKPOINT_OBJECT_REMOTE_CHECKPOINT_H_
#define FSDP_CHECKPOINT_OBJECT_REMOTE_CHECKPOINT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/object/object_store.h"

namespace fsdp {

// "run/step-00000100".
std::string RemoteStep(const std::string& run, const std::string& step_name);

// The keys of a step: of its manifest, and of `file` of save `save_id`; with an empty `file`, the prefix of all its
// files.
std::string RemoteManifestKey(const std::string& step);
std::string RemoteFileKey(const std::string& step, const std::string& save_id, const std::string& file);

// The names of the steps below `run`, "step-00000100", oldest first: all steps whose upload has begun, complete or not.
absl::StatusOr<std::vector<std::string>> ListRemoteSteps(ObjectStore& store, const std::string& run);

// True if `step` exists.
absl::StatusOr<bool> IsRemoteCheckpoint(ObjectStore& store, const std::string& step);

// `prefix` itself if it is a checkpoint, else the newest complete step below it. kNotFound without either.
absl::StatusOr<std::string> FindRemoteCheckpoint(ObjectStore& store, const std::string& prefix);

struct RemoteManifest {
  std::string text;  // of manifest.json
  Manifest manifest;
};

// kNotFound when `step` does not exist; kDataLoss when its manifest is damaged, or of another step than its name.
absl::StatusOr<RemoteManifest> ReadRemoteManifest(ObjectStore& store, const std::string& step);

// OK when every file of `manifest` exists with its size; reads no contents. kDataLoss names the first that does not.
absl::Status CheckRemoteFiles(ObjectStore& store, const std::string& step, const Manifest& manifest);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_REMOTE_CHECKPOINT_H_
