// SPDX-License-Identifier: Apache-2.0
//
// fake_nccl: NCCL between threads, on the emulated GPU's streams, for tests. As with the real NCCL, a call returns
// before the peers have made theirs; the stream spins until they do, for ever if they make another call, and ends on an
// abort; and a non-blocking call is in progress for a while. This header injects faults and counts resources.
#ifndef FSDP_COLLECTIVES_CUDA_FAKE_NCCL_H_
#define FSDP_COLLECTIVES_CUDA_FAKE_NCCL_H_

#include <nccl.h>

namespace fsdp {

struct FakeNcclFaults {
  // The collectives that `rank` launches from now on hang, and its communicators report `async_error`; ncclSuccess:
  // they hang without a report.
  int rank = -1;
  ncclResult_t async_error = ncclSuccess;

  // New communicators stay in progress.
  bool init_hangs = false;

  // The version that ncclGetVersion returns. Windows are registered from 22700 on.
  int version = 22809;

  // GPUs do not reach each other's memory: registering a window makes none.
  bool no_windows = false;
};

// In effect until the next call. Thread-safe.
void SetFakeNcclFaults(const FakeNcclFaults& faults);

// Resources of this process that were created and not yet destroyed, freed or deregistered.
struct FakeNcclCounts {
  int communicators = 0;
  int allocations = 0;
  int registrations = 0;
  int reductions = 0;  // of ncclRedOpCreatePreMulSum

  int windows = 0;

  int groups = 0;  // that have ever been ended

  // Collectives that ever were launched with the memory of all ranks in windows, and all-gathers of these by copy
  // engines.
  int symmetric = 0;
  int by_copy_engines = 0;

  // Faults: windows that their communicator outlived, and memory that was freed while it was a window.
  int left_windows = 0;
  int freed_windows = 0;
};
FakeNcclCounts CountFakeNccl();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_FAKE_NCCL_H_
