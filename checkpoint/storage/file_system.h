// SPDX-License-Identifier: Apache-2.0
//
// FileSystem and File: every storage operation of checkpoint/ goes through these two interfaces, so that a test can
// count them, fail the k-th, or lose what was not synced (fault_file_system.h). Errors name the operation, the path and
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
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {

// An open regular file; closed when it goes.
class File {
 public:
  virtual ~File() = default;

  virtual const std::string& path() const = 0;
  virtual absl::StatusOr<int64_t> Size() const = 0;

  // All of `out`; kDataLoss when the file ends before.
  virtual absl::Status Read(int64_t offset, absl::Span<std::byte> out) const = 0;

  // All of `bytes`.
  virtual absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) = 0;

  // Makes an empty file `nbytes` long, of zeros, with its space allocated where the file system can: a full disk is
  // noticed here.
  virtual absl::Status Reserve(int64_t nbytes) = 0;

  // For many large writes, with up to `depth` blocks of memory, of which one is being made while the others are in
  // flight; see there before writing to the file beside it. The file must outlive the queue.
  virtual std::unique_ptr<WriteQueue> NewWriteQueue(int depth) = 0;

  // Returns when the contents and the size are durable.
  virtual absl::Status Sync() = 0;

  // For who reads without Read (read_queue.h): a descriptor that reads through the page cache, and one for direct I/O;
  // -1 where there is none. They are the file's, and go with it.
  struct Descriptors {
    int cached = -1;
    int direct = -1;
    DirectAlignment alignment;  // of the direct one
  };
  virtual Descriptors descriptors() const { return {}; }

  // True when this holds the lock of OpenLocked. The lock goes with the file, and with the process.
  virtual bool locked() const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // A new empty file, for reading and writing. kAlreadyExists when the name is taken.
  virtual absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) = 0;

  // For reading; never waits. kNotFound when there is none; kInvalidArgument when it is not a regular file: a
  // directory, a FIFO, a socket, a device, a loop of links.
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path) = 0;

  // A file that exists, for reading and writing. kNotFound when there is none.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenToWrite(const std::string& path) = 0;

  // For reading and writing, made if absent, with an exclusive lock. kUnavailable when another holds it or has removed
  // the file meanwhile. Where the file system has no locks, an unlocked file.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenLocked(const std::string& path) = 0;

  virtual absl::Status MakeDirectory(const std::string& path) = 0;    // kAlreadyExists when the name is taken
  virtual absl::Status RemoveDirectory(const std::string& path) = 0;  // an empty one
  virtual absl::Status Unlink(const std::string& path) = 0;           // a file
  virtual absl::Status SyncDirectory(const std::string& path) = 0;    // its names are durable
  // A second name `to` of the file `from`. kAlreadyExists when it is taken; kUnimplemented where files have one name.
  virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;  // kAlreadyExists when `to` exists
  // As Rename, of a file; in the same instant a file that had the name `to` loses it.
  virtual absl::Status Replace(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Exchange(const std::string& a, const std::string& b) = 0;  // kUnimplemented where impossible

  // Names in a directory, "." and ".." left out, sorted. kNotFound when there is none.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;

  // True when something, even a dangling link, has this name.
  virtual bool Exists(const std::string& path) = 0;
};

// The operating system's.
FileSystem& PosixFileSystem();

// Makes `path` and whatever directories lead to it, durably.
absl::Status MakeDirectories(FileSystem& files, const std::string& path);

// Removes `path` with everything in it. Links are removed, not followed.
absl::Status RemoveTree(FileSystem& files, const std::string& path);

// All bytes of the file `path`, at most `max_bytes`: kInvalidArgument for a larger one.
absl::StatusOr<std::string> ReadFile(FileSystem& files, const std::string& path, int64_t max_bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_FILE_SYSTEM_H_
