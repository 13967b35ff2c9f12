// SPDX-License-Identifier: Apache-2.0
//
// FileSystem and File: checkpoint/ changes files only through these two interfaces, so that a test can count the
// operations, fail the k-th, or lose unsynced changes (fault_file_system.h). Errors name the operation, the path and
// errno. Thread-safe.
#ifndef FSDP_CHECKPOINT_STORAGE_FILE_SYSTEM_H_
#define FSDP_CHECKPOINT_STORAGE_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/byte_range.h"

namespace fsdp {

class WriteQueue;

// An open regular file; the destructor closes it.
class File {
 public:
  virtual ~File() = default;

  virtual const std::string& path() const = 0;
  virtual absl::StatusOr<int64_t> Size() const = 0;

  // Fills all of `out`; kDataLoss when the file ends before.
  virtual absl::Status Read(int64_t offset, absl::Span<std::byte> out) const = 0;

  // Writes all of `bytes`.
  virtual absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) = 0;

  // Makes an empty file `nbytes` long, of zeros, with its space allocated if the file system can: a full disk is
  // noticed here.
  virtual absl::Status Reserve(int64_t nbytes) = 0;

  // For many large writes. The queue has up to `depth` blocks of memory: the caller fills one while the others are in
  // flight. No other writes to the file are allowed until the queue is finished (write_queue.h). The file must outlive
  // the queue.
  virtual std::unique_ptr<WriteQueue> NewWriteQueue(int depth) = 0;

  // Blocks until the contents and the size are durable. The file's name is not: see SyncDirectory.
  virtual absl::Status Sync() = 0;

  // For callers that read without Read (read_queue.h): a descriptor that reads through the page cache, and one for
  // direct I/O; -1 without one. The file owns both and closes them.
  struct Descriptors {
    int cached = -1;
    int direct = -1;
    DirectAlignment alignment;  // of `direct`
  };
  virtual Descriptors descriptors() const { return {}; }

  // True when this file holds the lock of OpenLocked. Closing the file, or the end of the process, releases the lock.
  virtual bool locked() const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // A new empty file, for reading and writing. kAlreadyExists when the name is taken.
  virtual absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) = 0;

  // For reading; never waits. kNotFound when `path` does not exist; kInvalidArgument when it is not a regular file: a
  // directory, a FIFO, a socket, a device, a loop of links.
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path) = 0;

  // An existing file, for reading and writing; a symbolic link is not followed. kNotFound when `path` does not exist.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenToWrite(const std::string& path) = 0;

  // For reading and writing, created if absent, with an exclusive lock. kUnavailable when another process holds the
  // lock, or has removed the file between our open and our lock. On a file system without locks the file is returned
  // unlocked.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenLocked(const std::string& path) = 0;

  virtual absl::Status MakeDirectory(const std::string& path) = 0;    // kAlreadyExists when the name is taken
  virtual absl::Status RemoveDirectory(const std::string& path) = 0;  // an empty one
  virtual absl::Status Unlink(const std::string& path) = 0;           // a file
  virtual absl::Status SyncDirectory(const std::string& path) = 0;    // makes the names in it durable
  // A second name `to` of the file `from`. kAlreadyExists when `to` exists; kUnimplemented on a file system without
  // hard links.
  virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;  // kAlreadyExists when `to` exists
  // Like Rename, for files, but atomically replaces a file that has the name `to`.
  virtual absl::Status Replace(const std::string& from, const std::string& to) = 0;
  // Swaps two existing names atomically. kUnimplemented when the file system cannot.
  virtual absl::Status Exchange(const std::string& a, const std::string& b) = 0;

  // The names in the directory `path` without "." and "..", sorted. kNotFound when `path` does not exist.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;

  // True when anything has this name, even a dangling symbolic link.
  virtual bool Exists(const std::string& path) = 0;
};

// The file system of the operating system.
FileSystem& PosixFileSystem();

// Makes the directory `path` and the missing directories above it, durably.
absl::Status MakeDirectories(FileSystem& files, const std::string& path);

// Removes `path` with everything in it. Links are removed, not followed.
absl::Status RemoveTree(FileSystem& files, const std::string& path);

// All bytes of the file `path`, at most `max_bytes`: kInvalidArgument for a larger one.
absl::StatusOr<std::string> ReadFile(FileSystem& files, const std::string& path, int64_t max_bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_FILE_SYSTEM_H_
