// SPDX-License-Identifier: Apache-2.0
//
// A launch puts a task on the emulated stream, that is, on a thread. The task adds its arguments to the Round of the
// same number of its Clique and waits there until all ranks have come. If all arguments match, each rank computes its
// own result from the others' memory and waits until all have computed, so that no input changes while a peer reads it.
// If they do not match, all wait for an abort: the real NCCL would hang, and the tests check that the watch notices.
#include "fsdp/collectives/cuda/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/collectives/cuda/fake_nccl_round.h"
#include "fsdp/cuda/emulator/device_memory.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

using fake_nccl::Count;
using fake_nccl::DTypeOf;
using fake_nccl::Op;
using fake_nccl::Result;
using fake_nccl::Round;
using fake_nccl::Task;

std::mutex state_mutex;
FakeNcclFaults faults;  // guarded by state_mutex
FakeNcclCounts counts;  // guarded by state_mutex

FakeNcclFaults Faults() {
  const std::lock_guard<std::mutex> lock(state_mutex);
  return faults;
}

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
  fake_nccl::Windows windows{size};
};

}  // namespace

void fake_nccl::Count(int FakeNcclCounts::*what, int by) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  counts.*what += by;
}

}  // namespace fsdp

// The state that a communicator of one rank shares with its work on streams.
struct Member {
  std::shared_ptr<fsdp::Clique> clique;
  int rank = 0;
  bool hangs_in_init = false;
  std::atomic<bool> aborted{false};
  std::atomic<ncclResult_t> async_error{ncclSuccess};
  uint64_t begun = 0;  // collectives; guarded by the clique's mutex

  // Work on a stream: this rank's next collective. Waits for its peers or an abort, as a kernel spins.
  void Run(const fsdp::Task& task) {
    std::unique_lock<std::mutex> lock(clique->mutex);
    // Numbers are per rank, so ranks that disagree meet in one round with different tasks, as kernels of NCCL would.
    fsdp::Round& round = clique->rounds[++begun];
    round.tasks[rank] = task;
    clique->changed.notify_all();
    const auto all_match = [&] {
      return static_cast<int>(round.tasks.size()) == clique->size &&
             std::all_of(round.tasks.begin(), round.tasks.end(),
                         [&](const auto& entry) { return entry.second.Matches(task); });
    };
    clique->changed.wait(lock, [&] { return aborted || all_match(); });
    if (aborted) return;
    const std::vector<std::byte> result = fsdp::Result(round, rank);
    ++round.computed;
    clique->changed.notify_all();
    // No rank writes its result before all ranks have read their inputs: they may be the same memory.
    clique->changed.wait(lock, [&] { return aborted || round.computed == clique->size; });
    if (aborted || result.empty()) return;
    std::memcpy(fsdp::EmulatedMemory::Get().KernelView(task.receive), result.data(), result.size());
  }

  void AwaitAbort() {
    std::unique_lock<std::mutex> lock(clique->mutex);
    clique->changed.wait(lock, [&] { return aborted.load(); });
  }

  void Abort() {
    // Under the mutex, or a waiter between its check and its sleep would miss the notification.
    const std::lock_guard<std::mutex> lock(clique->mutex);
    aborted = true;
    clique->changed.notify_all();
  }
};

struct ncclComm {
  std::shared_ptr<Member> member = std::make_shared<Member>();
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

namespace fsdp {
namespace {

// By unique id. Guarded by state_mutex; never destroyed, because streams of other tests may still use its cliques.
std::map<std::string, std::shared_ptr<Clique>>& Cliques() {
  static auto* const cliques = new std::map<std::string, std::shared_ptr<Clique>>;
  return *cliques;
}

// Whether a communicator can be made with these settings.
bool IsValid(const ncclConfig_t& config) {
  return config.blocking == 0 &&
         (config.CTAPolicy == INT_MIN || (config.CTAPolicy == NCCL_CTA_POLICY_ZERO && Faults().version >= 22800));
}

void Join(ncclComm* comm, std::shared_ptr<Clique> clique, int rank, bool copy_engines) {
  comm->copy_engines = copy_engines;
  comm->member->clique = std::move(clique);
  comm->member->rank = rank;
  comm->member->hangs_in_init = Faults().init_hangs;
  const std::lock_guard<std::mutex> lock(comm->member->clique->mutex);
  ++comm->member->clique->joined;
  Count(&FakeNcclCounts::communicators, 1);
}

// This rank's part of a split, after all ranks have come; null if they were aborted. There are two waits: for the last
// rank that comes to create the parts, and for the last rank that takes its part to clear them, so that the next split
// starts empty.
ncclComm* SplitOff(Member& member, int color, int key, bool copy_engines) {
  Clique& clique = *member.clique;
  std::unique_lock<std::mutex> lock(clique.mutex);
  clique.keys[color][{key, member.rank}] = member.rank;
  const bool last = ++clique.split == clique.size;
  if (last) {
    for (const auto& [c, members] : clique.keys) {
      clique.parts[c] = std::make_shared<Clique>(static_cast<int>(members.size()));
    }
    clique.changed.notify_all();
  }
  clique.changed.wait(lock, [&] { return member.aborted || !clique.parts.empty(); });
  if (member.aborted) return nullptr;
  const auto& members = clique.keys[color];
  // The parts and keys stay until all ranks have taken theirs.
  // Ranks in the new communicator are in the order of (key, rank), which is the order of the map.
  const auto mine = static_cast<int>(std::distance(members.begin(), members.find({key, member.rank})));
  const std::shared_ptr<Clique> part = clique.parts[color];
  if (--clique.split == 0) {
    clique.parts.clear();
    clique.keys.clear();
    clique.changed.notify_all();
  } else {
    clique.changed.wait(lock, [&] { return member.aborted || clique.parts.empty(); });
  }
  lock.unlock();
  auto* const made = new ncclComm;
  Join(made, part, mine, copy_engines);
  return made;
}

// Keeps the work that graphs replay for the rest of the program: a graph may outlive its communicator. Its replays then
// do nothing.
std::function<void()>* Captured(std::function<void()> work) {
  static auto* const captured = new std::deque<std::function<void()>>;
  const std::lock_guard<std::mutex> lock(state_mutex);
  return &captured->emplace_back(std::move(work));
}

// True between ncclGroupStart and ncclGroupEnd.
thread_local bool groups = false;
thread_local std::vector<std::function<ncclResult_t()>> grouped;

ncclResult_t Launch(Task task, ncclComm_t comm, cudaStream_t stream) {
  // The call is copied and runs in ncclGroupEnd; its buffers must stay valid until then, as in NCCL.
  if (groups) {
    grouped.emplace_back([=] { return Launch(task, comm, stream); });
    return ncclSuccess;
  }
  if (task.reduction > ncclAvg) task.factor = comm->factors[task.reduction - ncclAvg - 1];
  const std::shared_ptr<Member> member = comm->member;
  {
    const std::lock_guard<std::mutex> lock(member->clique->mutex);
    task.FindPlaces(member->clique->windows, member->rank);
  }
  if (task.is_symmetric()) Count(&FakeNcclCounts::symmetric, 1);
  if (task.is_symmetric() && comm->copy_engines && task.op == Op::kAllGather) {
    Count(&FakeNcclCounts::by_copy_engines, 1);
  }
  const FakeNcclFaults now = Faults();
  const bool hangs = now.rank == member->rank;
  if (hangs) member->async_error = now.async_error;
  cudaStreamCaptureStatus captures = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &captures);
  // In a capture the work must survive until the last replay; outside of one it runs once and is then deleted.
  if (captures != cudaStreamCaptureStatusNone) {
    // Weak: the captured work lives for ever and must not keep an aborted communicator's state alive.
    std::function<void()>* const work = Captured([weak = std::weak_ptr<Member>(member), task, hangs] {
      const std::shared_ptr<Member> alive = weak.lock();
      if (alive != nullptr) hangs ? alive->AwaitAbort() : alive->Run(task);
    });
    const auto run_again = [](void* argument) { (*static_cast<std::function<void()>*>(argument))(); };
    return cudaLaunchHostFunc(stream, run_again, work) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
  }
  auto* const owned_work =
      new std::function<void()>([member, task, hangs] { hangs ? member->AwaitAbort() : member->Run(task); });
  const auto run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(argument));
    (*owned)();
  };
  return cudaLaunchHostFunc(stream, run, owned_work) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // namespace

void SetFakeNcclFaults(const FakeNcclFaults& wanted) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  faults = wanted;
}

FakeNcclCounts CountFakeNccl() {
  const std::lock_guard<std::mutex> lock(state_mutex);
  return counts;
}

}  // namespace fsdp

using fsdp::FakeNcclCounts;
using fsdp::fake_nccl::Count;

ncclResult_t ncclGetVersion(int* version) {
  *version = fsdp::Faults().version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<uint64_t> last{0};
  *id = {};
  const uint64_t number = ++last;
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (!fsdp::IsValid(*config) || rank < 0 || rank >= nranks) return ncclInvalidArgument;
  std::shared_ptr<fsdp::Clique> clique;
  {
    const std::lock_guard<std::mutex> lock(fsdp::state_mutex);
    auto& entry = fsdp::Cliques()[std::string(id.internal, sizeof(id.internal))];
    if (entry == nullptr) entry = std::make_shared<fsdp::Clique>(nranks);
    clique = entry;
  }
  *comm = new ncclComm;
  fsdp::Join(*comm, std::move(clique), rank, config->CTAPolicy == NCCL_CTA_POLICY_ZERO);
  return ncclInProgress;
}

// As in the real NCCL: returns ncclSuccess immediately, and a thread creates the communicator when all ranks have come.
// Until then *newcomm is null, which no call accepts, and ncclCommGetAsyncError of the parent reports ncclInProgress.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  if (!fsdp::IsValid(*config) || color < 0 || comm->splitting) return ncclInvalidArgument;
  *newcomm = nullptr;
  comm->splitting = true;
  if (comm->splitter.joinable()) comm->splitter.join();
  const bool copy_engines = config->CTAPolicy == NCCL_CTA_POLICY_ZERO;
  comm->splitter = std::thread([=, member = comm->member] {
    *newcomm = fsdp::SplitOff(*member, color, key, copy_engines);
    comm->splitting = false;
  });
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  if (fsdp::groups) return ncclInvalidUsage;
  fsdp::groups = true;
  return ncclSuccess;
}

// Launches the last call first: callers must not rely on the order of grouped calls, and this finds callers that do.
ncclResult_t ncclGroupEnd() {
  if (!std::exchange(fsdp::groups, false)) return ncclInvalidUsage;
  const auto launches = std::exchange(fsdp::grouped, {});
  ncclResult_t result = ncclSuccess;
  for (auto launch = launches.rbegin(); launch != launches.rend() && result == ncclSuccess; ++launch) {
    result = (*launch)();
  }
  Count(&FakeNcclCounts::groups, 1);
  return result;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->member->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Count(&FakeNcclCounts::communicators, -1);
  {
    const Member& member = *comm->member;
    const std::lock_guard<std::mutex> lock(member.clique->mutex);
    if (!member.aborted) Count(&FakeNcclCounts::left_windows, member.clique->windows.count(member.rank));
    member.clique->windows.DeregisterAll(member.rank);
  }
  // Destroying a communicator frees what belongs to it, so tests count only real leaks.
  Count(&FakeNcclCounts::registrations, -comm->registrations);
  Count(&FakeNcclCounts::reductions, -comm->reductions);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->member->Abort();
  return ncclCommDestroy(comm);
}

// A communicator is in progress until all ranks have joined it; the fault `init_hangs` keeps it in progress for ever.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (comm == nullptr) return ncclInvalidArgument;
  Member& member = *comm->member;
  *error = member.async_error;
  if (*error != ncclSuccess) return ncclSuccess;
  if (comm->splitting) {
    *error = ncclInProgress;
    return ncclSuccess;
  }
  const std::lock_guard<std::mutex> lock(member.clique->mutex);
  if (member.hangs_in_init || member.clique->joined < member.clique->size) *error = ncclInProgress;
  if (*error == ncclSuccess) *error = member.clique->windows.Progress(member.rank);
  return ncclSuccess;
}

// The texts of NCCL 2.x, so that messages in tests look as they do on a GPU.
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t, void** handle) {
  *handle = data;
  ++comm->registrations;
  Count(&FakeNcclCounts::registrations, 1);
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  --comm->registrations;
  Count(&FakeNcclCounts::registrations, -1);
  return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags) {
  *win = nullptr;
  if (fsdp::Faults().no_windows) return ncclSuccess;
  Member& member = *comm->member;
  const std::lock_guard<std::mutex> lock(member.clique->mutex);
  return member.clique->windows.Register(member.rank, buff, size, winFlags, win);
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  Member& member = *comm->member;
  const std::lock_guard<std::mutex> lock(member.clique->mutex);
  return member.clique->windows.Deregister(member.rank, win);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  double factor = 0;
  if (residence != ncclScalarHostImmediate ||
      !fsdp::Convert(fsdp::DTypeOf(type), scalar, fsdp::DType::kFloat64, &factor, 1).ok()) {
    return ncclInvalidArgument;
  }
  comm->factors.push_back(factor);
  *op = static_cast<ncclRedOp_t>(ncclAvg + comm->factors.size());
  ++comm->reductions;
  Count(&FakeNcclCounts::reductions, 1);
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t comm) {
  --comm->reductions;
  Count(&FakeNcclCounts::reductions, -1);
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return fsdp::Launch({.op = fsdp::Op::kAllGather, .send = send, .receive = receive, .count = count, .type = type},
                      comm, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return fsdp::Launch(
      {.op = fsdp::Op::kReduceScatter, .send = send, .receive = receive, .count = count, .type = type, .reduction = op},
      comm, stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return fsdp::Launch(
      {.op = fsdp::Op::kAllReduce, .send = send, .receive = receive, .count = count, .type = type, .reduction = op},
      comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return fsdp::Launch(
      {.op = fsdp::Op::kBroadcast, .send = send, .receive = receive, .count = count, .type = type, .root = root}, comm,
      stream);
}
