// SPDX-License-Identifier: Apache-2.0
//
// SharedMemory: memory that processes of one host share without a name: a memfd, mapped. Peers of the same user reach
// it as /proc/<pid>/fd/<n> of the process that made it, so it never appears in /dev/shm and goes with the last process
// that maps it, however that ends.
#ifndef FSDP_COLLECTIVES_HOST_SHARED_MEMORY_H_
#define FSDP_COLLECTIVES_HOST_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

class SharedMemory {
 public:
  // `nbytes` of zeros that take no memory until Commit. `name` is for /proc/<pid>/maps.
  static absl::StatusOr<SharedMemory> Create(const std::string& name, int64_t nbytes);

  // Maps what process `pid` has as descriptor `fd`. kUnavailable when that is gone or not of this size.
  static absl::StatusOr<SharedMemory> OpenReadOnly(int pid, int fd, int64_t nbytes);
  static absl::StatusOr<SharedMemory> OpenReadWrite(int pid, int fd, int64_t nbytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  int64_t nbytes() const { return nbytes_; }
  int fd() const { return fd_.get(); }

  // Gives [offset, offset + nbytes) real memory, so that touching it can neither fail nor be slow; zeros where it had
  // none. kResourceExhausted when there is not enough.
  absl::Status Commit(int64_t offset, int64_t nbytes) const;

  // Takes the memory back; its contents become zeros.
  void Decommit(int64_t offset, int64_t nbytes) const;

 private:
  SharedMemory(FileDescriptor fd, std::byte* data, int64_t nbytes) : fd_(std::move(fd)), data_(data), nbytes_(nbytes) {}

  static absl::StatusOr<SharedMemory> Map(FileDescriptor fd, int64_t nbytes, int protection);
  static absl::StatusOr<SharedMemory> Open(int pid, int fd, int64_t nbytes, int protection);

  FileDescriptor fd_;
  std::byte* data_;
  int64_t nbytes_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_SHARED_MEMORY_H_
