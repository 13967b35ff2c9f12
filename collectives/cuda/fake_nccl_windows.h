// SPDX-License-Identifier: Apache-2.0
//
// The memory of fake_nccl, and its symmetric windows. It refuses more than NCCL does: memory that is not one whole
// allocation of ncclMemAlloc, sizes that differ, and windows that overlap.
#ifndef FSDP_COLLECTIVES_CUDA_FAKE_NCCL_WINDOWS_H_
#define FSDP_COLLECTIVES_CUDA_FAKE_NCCL_WINDOWS_H_

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "fsdp/collectives/cuda/fake_nccl.h"

struct ncclWindow_vidmem {
  int64_t number = 0;  // of the registration, on all ranks
  uintptr_t data = 0;
  size_t nbytes = 0;
};

namespace fsdp::fake_nccl {

// Adds to what CountFakeNccl returns.
void Count(int FakeNcclCounts::*what, int by);

// Where a pointer is: in the window of this number, -1 for none, at this offset.
struct Place {
  int64_t window = -1;
  uintptr_t offset = 0;

  bool operator==(const Place&) const = default;
  bool is_in_window() const { return window >= 0; }
};

// The windows of one communicator, on all of its ranks. The caller serializes calls.
class Windows {
 public:
  explicit Windows(int ranks) : size_(ranks) {}
  ~Windows();

  // As ncclCommWindowRegister of one rank, which is in progress until all ranks have made it. ncclInvalidUsage for
  // memory that is refused, and while the call before is in progress.
  ncclResult_t Register(int rank, void* data, size_t nbytes, int flags, ncclWindow_t* window);

  // ncclInProgress until the call has ended on all ranks; then its result, once, which sets its window.
  ncclResult_t Progress(int rank);

  ncclResult_t Deregister(int rank, ncclWindow_t window);

  Place Find(int rank, const void* data) const;
  int count(int rank) const;

  // The end of the rank's communicator.
  void DeregisterAll(int rank);

 private:
  struct Pending {
    ncclWindow_vidmem wanted;
    ncclWindow_t* window;
  };

  const int size_;
  std::map<int, int64_t> begun_;                                                 // registrations, by rank
  std::map<int64_t, std::map<int, size_t>> sizes_;                               // by registration and rank
  std::map<int, Pending> pending_;                                               // by rank
  std::map<int, std::map<uintptr_t, std::unique_ptr<ncclWindow_vidmem>>> live_;  // by rank and address
};

}  // namespace fsdp::fake_nccl

#endif  // FSDP_COLLECTIVES_CUDA_FAKE_NCCL_WINDOWS_H_
