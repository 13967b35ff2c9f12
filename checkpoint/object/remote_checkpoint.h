// SPDX-License-Identifier: Apache-2.0
//
// Where checkpoints lie in an object store, and how they are found there. One rule for readers: a step is there when
// its manifest.json is. The manifest names the save by its id, and the files of a save lie below it:
//
//   run/step-00000100/manifest.json                        the same bytes as in the directory; put last
//   run/step-00000100/65e9d6.../checkpoint.h5              65e9d6...: the save id
//   run/step-00000100/65e9d6.../rank-00000-of-00004.h5
//
// A reader that has the manifest of one save never reads a file of another, whatever is uploaded meanwhile. "run" is
// the prefix of a URL (s3_url.h), and "" the whole bucket. All functions only read. They return the errors of
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

// The keys of a step: of its manifest, and of `file` of save `save_id`; with an empty `file` what all its files begin
// with.
std::string RemoteManifestKey(const std::string& step);
std::string RemoteFileKey(const std::string& step, const std::string& save_id, const std::string& file);

// The names of the steps below `run`, "step-00000100", oldest first: those whose uploads have begun, complete or not.
absl::StatusOr<std::vector<std::string>> ListRemoteSteps(ObjectStore& store, const std::string& run);

// Whether `step` is there.
absl::StatusOr<bool> IsRemoteCheckpoint(ObjectStore& store, const std::string& step);

// `prefix` itself when a checkpoint is there, else the newest step below it. kNotFound when there is neither.
absl::StatusOr<std::string> FindRemoteCheckpoint(ObjectStore& store, const std::string& prefix);

struct RemoteManifest {
  std::string text;  // of manifest.json
  Manifest manifest;
};

// kNotFound when `step` is not there; kDataLoss when its manifest is damaged, or of another step than its name says.
absl::StatusOr<RemoteManifest> ReadRemoteManifest(ObjectStore& store, const std::string& step);

// OK when every file of `manifest` is there with its size; nothing of it is read. kDataLoss names the first that is
// not.
absl::Status CheckRemoteFiles(ObjectStore& store, const std::string& step, const Manifest& manifest);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_REMOTE_CHECKPOINT_H_
