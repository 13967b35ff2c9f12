// SPDX-License-Identifier: Apache-2.0
//
// RawFile: the floor for saves and loads: copies memory to one flat file and back with the same I/O, but without
// format, digests, copies and commit. Memory is page-aligned and has room for whole pages.
#ifndef FSDP_CHECKPOINT_BENCHMARK_RAW_FILE_H_
#define FSDP_CHECKPOINT_BENCHMARK_RAW_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/base/thread_pool.h"

namespace fsdp {

class RawFile {
 public:
  // `pool` must outlive it.
  RawFile(std::string path, ThreadPool& pool) : path_(std::move(path)), pool_(pool) {}

  const std::string& path() const { return path_; }

  // Writes a new file of `nbytes` bytes: space is reserved, blocks of 4 MiB go through a write queue of each thread,
  // four in flight in each, then one fsync. If `nbytes` exceeds the bytes, the first block is written in place of the
  // missing ones.
  absl::Status Write(absl::Span<const std::byte> bytes, int64_t nbytes) const;

  // The same blocks by pwrite through the page cache, one fsync. A new file.
  absl::Status WriteBuffered(absl::Span<const std::byte> bytes) const;

  // Blocks of 4 MiB through a read queue for each thread, four in flight in each.
  absl::Status Read(absl::Span<std::byte> out) const;

  // The same blocks by pread through the page cache, with the kernel's read-ahead.
  absl::Status ReadBuffered(absl::Span<std::byte> out) const;

 private:
  const std::string path_;
  ThreadPool& pool_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_RAW_FILE_H_
