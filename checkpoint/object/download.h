// SPDX-License-Identifier: Apache-2.0
//
// DownloadCheckpoint: copies a checkpoint from an object store to a directory, which appears complete or not at all
// (staged_checkpoint.h), with every byte compared with its digest.
#ifndef FSDP_CHECKPOINT_OBJECT_DOWNLOAD_H_
#define FSDP_CHECKPOINT_OBJECT_DOWNLOAD_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/object/object_store.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct DownloadOptions {
  // Behaviour.
  bool overwrite = false;                                      // replace a checkpoint of that name, by exchange
  std::function<void(const std::string& sentence)> note = {};  // about leftovers of crashes; may be empty

  // Performance.
  int threads = 4;                                                             // that get files
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // may be empty; thread-safe
};

struct DownloadReport {
  int64_t step = 0;   // -1: unknown
  int64_t files = 0;  // without the manifest
  int64_t bytes = 0;  // of these
};

// Makes the directory `destination`, whose parent exists, from the checkpoint `step` ("run/step-00000100"). Blocks
// until it is durable. Incremental checkpoints come with copies of the files that they share. kNotFound when `step`
// does not exist or was replaced meanwhile; kAlreadyExists when `destination` exists; kResourceExhausted when the disk
// has no room for all files; kDataLoss, with file and range, for bytes that differ from the saved ones. After an error
// no file remains.
absl::StatusOr<DownloadReport> DownloadCheckpoint(ObjectStore& store, const std::string& step, FileSystem& files,
                                                  const std::string& destination, const DownloadOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_DOWNLOAD_H_
