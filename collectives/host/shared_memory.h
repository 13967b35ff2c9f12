// SPDX-License-Identifier: Apache-2.0
//
// SharedMemory: memory that processes of one host share without a name: a mapped memfd. Peers of the same user open it
// as /proc/<pid>/fd/<n> of the process that created it. So it never appears in /dev/shm, and it is freed with the last
// process that maps it, however that process ends. A file in /dev/shm would survive a killed job.
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
  // `nbytes` of zeros that take no memory until Commit. `name` is for /proc/<pid>/maps. kResourceExhausted if there is
  // no descriptor or no room in the address space.
  static absl::StatusOr<SharedMemory> Create(const std::string& name, int64_t nbytes);

  // Maps the memory that process `pid` has open as descriptor `fd`. kUnavailable if it is gone or has another size.
  static absl::StatusOr<SharedMemory> OpenReadOnly(int pid, int fd, int64_t nbytes);
  static absl::StatusOr<SharedMemory> OpenReadWrite(int pid, int fd, int64_t nbytes);

  // Move-only. The destructor unmaps; the memory itself is freed with the last mapping of any process.
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // Aligned to a page.
  std::byte* data() const { return data_; }
  int64_t nbytes() const { return nbytes_; }

  // The memfd, for the peers' Open calls. It must stay open until all peers have mapped the memory.
  int fd() const { return fd_.get(); }

  // Backs [offset, offset + nbytes) with memory, so that a first access neither fails nor faults; pages without memory
  // become zeros. kResourceExhausted if there is not enough.
  absl::Status Commit(int64_t offset, int64_t nbytes) const;

  // Returns the memory to the system; the contents become zeros, for all processes that map it. Offsets and sizes that
  // are multiples of 4096 free all of their pages.
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
