// SPDX-License-Identifier: Apache-2.0
//
// FileDescriptor: owns a file descriptor and closes it in the destructor. Move-only. -1 is the empty state, in which
// ok() is false, as after a system call that failed.
#ifndef FSDP_BASE_FILE_DESCRIPTOR_H_
#define FSDP_BASE_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace fsdp {

// Not thread-safe: one thread at a time may use an object, as with a plain int.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  // Takes ownership of `fd`; a negative number makes an empty object.
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { Close(); }

  // The moved-from object is empty.
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  // Closes the descriptor that this object owned before.
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  // The descriptor, which stays owned; -1 in the empty state.
  int get() const { return fd_; }
  // False in the empty state.
  bool ok() const { return fd_ >= 0; }

  // Gives up the descriptor without closing it. The caller must close it. The object becomes empty.
  int Release() { return std::exchange(fd_, -1); }

  // Errors of close() are ignored: a writer that needs them calls fsync first. Does nothing in the empty state.
  void Close() {
    if (fd_ >= 0) {
      close(std::exchange(fd_, -1));
    }
  }

 private:
  int fd_ = -1;
};

}  // namespace fsdp

#endif  // FSDP_BASE_FILE_DESCRIPTOR_H_
