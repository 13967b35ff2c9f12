// SPDX-License-Identifier: Apache-2.0
//
// fake_nccl: NCCL between threads, on the emulated GPU's streams, for tests. As the real one it returns before the
// peers come, spins on the stream until they do, for ever when they do something else, ends when it is aborted, and is
// in progress for a while whenever that is allowed. What a test may do to it is here.
#ifndef FSDP_COLLECTIVES_CUDA_FAKE_NCCL_H_
#define FSDP_COLLECTIVES_CUDA_FAKE_NCCL_H_

#include <nccl.h>

namespace fsdp {

struct FakeNcclFaults {
  // The collectives that `rank` launches from now on hang, and its communicators report `async_error`; ncclSuccess:
  // they hang in silence.
  int rank = -1;
  ncclResult_t async_error = ncclSuccess;

  // Communicators stay in progress when they are made.
  bool init_hangs = false;
};

// Until it is called again. Thread-safe.
void SetFakeNcclFaults(const FakeNcclFaults& faults);

// What was made and not destroyed, freed or deregistered yet.
struct FakeNcclCounts {
  int communicators = 0;
  int allocations = 0;
  int registrations = 0;
  int reductions = 0;  // of ncclRedOpCreatePreMulSum

  int groups = 0;  // that were ended, ever
};
FakeNcclCounts CountFakeNccl();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_FAKE_NCCL_H_
