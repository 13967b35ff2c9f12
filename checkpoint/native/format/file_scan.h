// SPDX-License-Identifier: Apache-2.0
//
// ScanFiles: reads every byte of a checkpoint's files once, in large pieces and by several threads, and delivers each
// to the caller as the manifest describes it: a block of payload, which has its own digest, or a part of the rest,
// whose bytes are digested together in file order. It judges nothing: read errors are delivered too.
//
// CheckFileDigests: a scan of one file that compares every digest.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_FILE_SCAN_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_FILE_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// A block of files[file].extents[extent].
struct ScannedBlock {
  int file = 0;
  int extent = 0;
  int64_t block = 0;
  ByteRange range;  // in the file
};

// The calls of a scan, made from several threads at the same time. An error among the arguments comes from opening or
// reading; an error that a call returns ends the scan.
struct FileScanner {
  // Opens files[file]. Called at least once for each file, in their order.
  std::function<absl::StatusOr<std::shared_ptr<const File>>(int file)> open;

  // The bytes of a block, valid until the call returns.
  std::function<absl::Status(const ScannedBlock& block, const absl::StatusOr<const std::byte*>& bytes)> block;

  // The digest of all bytes of a file outside of its extents; called once for each file. If empty, these bytes are not
  // read.
  std::function<absl::Status(int file, const absl::StatusOr<Digest>& digest)> rest;

  // Called after `nbytes` more bytes have been delivered, as bytes or as an error; may be empty.
  std::function<void(int64_t nbytes)> count = {};
};

// Scans `files` on the threads of `pool`; a null file is skipped. Returns the error of the first read that has one.
absl::Status ScanFiles(const std::vector<const StoredFile*>& files, ThreadPool& pool, const FileScanner& scanner);

// OK when the size and every digest of `file` are as in `stored`. kDataLoss otherwise, naming the file and the first
// bytes that differ. Reads all of the file.
absl::Status CheckFileDigests(const File& file, const StoredFile& stored, ThreadPool& pool);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_FILE_SCAN_H_
