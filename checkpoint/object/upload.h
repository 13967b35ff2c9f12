// SPDX-License-Identifier: Apache-2.0
//
// UploadCheckpoint: copies a committed checkpoint directory to an object store. Readers see it complete or not at all
// (remote_checkpoint.h), even if the process dies at any time; upload.cc numbers the steps. No other rank takes part:
// the directory has the files of all ranks.
#ifndef FSDP_CHECKPOINT_OBJECT_UPLOAD_H_
#define FSDP_CHECKPOINT_OBJECT_UPLOAD_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/object/object_store.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct UploadOptions {
  // Behaviour.

  // Replace another save of this step; otherwise kAlreadyExists. A reader of the replaced save gets kNotFound and must
  // begin again. One process at a time may replace a step.
  bool overwrite = false;

  // Returning true soon ends the upload with kCancelled. Called from several threads; may be empty.
  std::function<bool()> is_cancelled = {};

  // Performance.

  int threads = 2;                                                             // that put files
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // may be empty; thread-safe
};

struct UploadReport {
  std::string step;        // "run/step-00000100"
  int64_t files = 0;       // of the checkpoint, without the manifest
  int64_t bytes = 0;       // of these
  int64_t sent_files = 0;  // of these, in this call: the others existed already
  int64_t sent_bytes = 0;
  int64_t swept_files = 0;  // deleted: files of saves of this step that were never committed, or were replaced
};

// Uploads the checkpoint at `path` as a step of `run`. Blocks until it is complete. `path` is locked meanwhile
// (DirectoryLock), so that no other process repairs or deletes it. Files that an interrupted upload of the same save
// has sent are kept. Digests are not compared: readers do that. Errors come from ReadManifest and `store`;
// kInvalidArgument for a checkpoint of an unknown step; kDataLoss when a file does not exist with its size, on either
// side; kUnavailable also while another process holds the lock.
absl::StatusOr<UploadReport> UploadCheckpoint(FileSystem& files, const std::string& path, ObjectStore& store,
                                              const std::string& run, const UploadOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_UPLOAD_H_
