// SPDX-License-Identifier: Apache-2.0
//
// ScanFiles: every byte of a checkpoint's files, read once and in large pieces by several threads, as what the manifest
// says it is: a block of payload, which has a digest of its own, or a part of the rest, whose bytes are digested
// together in the order of the file. What is wrong is for the caller to say.
#ifndef FSDP_CHECKPOINT_FORMAT_FILE_SCAN_H_
#define FSDP_CHECKPOINT_FORMAT_FILE_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// A block of files[file].extents[extent].
struct ScannedBlock {
  int file = 0;
  int extent = 0;
  int64_t block = 0;
  ByteRange range;  // in the file
};

// Called from several threads; an error among the arguments is that of opening or reading, an error that is returned
// ends the scan.
struct FileScanner {
  std::function<absl::StatusOr<std::shared_ptr<const File>>(int file)> open;

  // The bytes of a block, there until it returns.
  std::function<absl::Status(const ScannedBlock& block, const absl::StatusOr<const std::byte*>& bytes)> block;

  // The digest of all bytes of a file outside of its extents; may be empty: these are not read then.
  std::function<absl::Status(int file, const absl::StatusOr<Digest>& digest)> rest;

  // So many bytes more are done, or given up; may be empty.
  std::function<void(int64_t nbytes)> count = {};
};

// Scans `files` on the threads of `pool`; a null file is left out. The error is that of the first read that has one.
absl::Status ScanFiles(const std::vector<const StoredFile*>& files, ThreadPool& pool, const FileScanner& scanner);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMAT_FILE_SCAN_H_
