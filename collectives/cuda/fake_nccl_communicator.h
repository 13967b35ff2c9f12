// SPDX-License-Identifier: Apache-2.0
//
// The communicators of fake_nccl, and the collectives that they launch.
#ifndef FSDP_COLLECTIVES_CUDA_FAKE_NCCL_COMMUNICATOR_H_
#define FSDP_COLLECTIVES_CUDA_FAKE_NCCL_COMMUNICATOR_H_

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/collectives/cuda/fake_nccl.h"
#include "fsdp/collectives/cuda/fake_nccl_round.h"
#include "fsdp/collectives/cuda/fake_nccl_windows.h"

namespace fsdp::fake_nccl {

// What SetFakeNcclFaults was given last.
FakeNcclFaults Faults();

// The ranks that have joined one communicator so far.
struct Clique {
  explicit Clique(int n) : size(n) {}

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  // All guarded by mutex.
  int joined = 0;
  std::map<uint64_t, Round> rounds;
  std::map<int, std::shared_ptr<Clique>> parts;            // of the split in progress, by color
  std::map<int, std::map<std::pair<int, int>, int>> keys;  // of its members, by color: (key, rank)
  int split = 0;                                           // ranks that joined the split
  Windows windows{size};
};

// The state that a communicator of one rank shares with its work on streams.
struct Member {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  bool hangs_in_init = false;
  std::atomic<bool> aborted{false};
  std::atomic<ncclResult_t> async_error{ncclSuccess};
  uint64_t begun = 0;  // collectives; guarded by the clique's mutex

  // Work on a stream: this rank's next collective. Waits for its peers or an abort, as a kernel spins.
  void Run(const Task& task);
  void AwaitAbort();
  void Abort();
};

// The clique of the communicators of `ranks` ranks that have this id.
std::shared_ptr<Clique> CliqueOf(const ncclUniqueId& id, int ranks);

// Whether a communicator can be made with these settings.
bool IsValid(const ncclConfig_t& config);

void Join(ncclComm* comm, std::shared_ptr<Clique> clique, int rank, bool copy_engines);

// This rank's part of a split, after all ranks have come; null if they were aborted.
ncclComm* SplitOff(Member& member, int color, int key, bool copy_engines);

// Puts a collective on the stream, or, within a group, keeps the call for EndGroup. BeginGroup is false within a group,
// and EndGroup outside of one.
ncclResult_t Launch(Task task, ncclComm_t comm, cudaStream_t stream);
bool BeginGroup();
bool EndGroup(ncclResult_t& result);

}  // namespace fsdp::fake_nccl

struct ncclComm {
  std::shared_ptr<fsdp::fake_nccl::Member> member = std::make_shared<fsdp::fake_nccl::Member>();
  std::vector<double> factors;  // of pre-multiplied sums: operation ncclAvg + 1 + i
  int registrations = 0;        // freed with the communicator
  int reductions = 0;           // freed with the communicator
  std::thread splitter;         // creates the communicator of the last ncclCommSplit
  std::atomic<bool> splitting{false};
  bool copy_engines = false;

  ~ncclComm() {
    if (splitter.joinable()) splitter.join();
  }
};

#endif  // FSDP_COLLECTIVES_CUDA_FAKE_NCCL_COMMUNICATOR_H_
