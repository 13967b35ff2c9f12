// SPDX-License-Identifier: Apache-2.0
//
// FileDescriptor: owns a file descriptor and closes it in the destructor. Move-only. -1 is the empty state, in which
// ok() is false, as after a system call that failed.
#ifndef FSDP_BASE_FILE_DESCRIPTOR_H_
#define FSDP_BASE_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace fsdp {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { Close(); }

  // The moved-from object is empty.
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  // The descriptor, which stays owned; -1 if there is none.
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

  // Gives up the descriptor without closing it.
  int Release() { return std::exchange(fd_, -1); }

  // Errors of close() are ignored: a writer that must know syncs first.
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
