// SPDX-License-Identifier: Apache-2.0
//
// A launch puts a task on the emulated stream, that is, on a thread. The task adds its arguments to the Round of the
// same number of its Clique and waits there until all ranks have come. If all arguments match, each rank computes its
// own result from the others' memory and waits until all have computed, so that no input changes while a peer reads it.
// If they do not match, all wait for an abort: the real NCCL would hang, and the tests check that the watch notices.
#include "fsdp/collectives/cuda/fake_nccl_communicator.h"

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <string>

#include "fsdp/cuda/emulator/device_memory.h"

namespace fsdp::fake_nccl {
namespace {

std::mutex cliques_mutex;

// By unique id. Guarded by cliques_mutex; never destroyed, because streams of other tests may still use its cliques.
std::map<std::string, std::shared_ptr<Clique>>& Cliques() {
  static auto* const cliques = new std::map<std::string, std::shared_ptr<Clique>>;
  return *cliques;
}

// Keeps the work that graphs replay for the rest of the program: a graph may outlive its communicator. Its replays then
// do nothing.
std::function<void()>* Captured(std::function<void()> work) {
  static auto* const captured = new std::deque<std::function<void()>>;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  return &captured->emplace_back(std::move(work));
}

// True between ncclGroupStart and ncclGroupEnd.
thread_local bool groups = false;
thread_local std::vector<std::function<ncclResult_t()>> grouped;

}  // namespace

void Member::Run(const Task& task) {
  std::unique_lock<std::mutex> lock(clique->mutex);
  // Numbers are per rank, so ranks that disagree meet in one round with different tasks, as kernels of NCCL would.
  Round& round = clique->rounds[++begun];
  round.tasks[rank] = task;
  clique->changed.notify_all();
  const auto all_match = [&] {
    return static_cast<int>(round.tasks.size()) == clique->size &&
           std::all_of(round.tasks.begin(), round.tasks.end(),
                       [&](const auto& entry) { return entry.second.Matches(task); });
  };
  clique->changed.wait(lock, [&] { return aborted || all_match(); });
  if (aborted) return;
  const std::vector<std::byte> result = Result(round, rank);
  ++round.computed;
  clique->changed.notify_all();
  // No rank writes its result before all ranks have read their inputs: they may be the same memory.
  clique->changed.wait(lock, [&] { return aborted || round.computed == clique->size; });
  if (aborted || result.empty()) return;
  std::memcpy(EmulatedMemory::Get().KernelView(task.receive), result.data(), result.size());
}

void Member::AwaitAbort() {
  std::unique_lock<std::mutex> lock(clique->mutex);
  clique->changed.wait(lock, [&] { return aborted.load(); });
}

void Member::Abort() {
  // Under the mutex, or a waiter between its check and its sleep would miss the notification.
  const std::lock_guard<std::mutex> lock(clique->mutex);
  aborted = true;
  clique->changed.notify_all();
}

std::shared_ptr<Clique> CliqueOf(const ncclUniqueId& id, int ranks) {
  const std::lock_guard<std::mutex> lock(cliques_mutex);
  std::shared_ptr<Clique>& clique = Cliques()[std::string(id.internal, sizeof(id.internal))];
  if (clique == nullptr) clique = std::make_shared<Clique>(ranks);
  return clique;
}

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

// There are two waits: for the last rank that comes to create the parts, and for the last rank that takes its part to
// clear them, so that the next split starts empty.
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

bool BeginGroup() { return !std::exchange(groups, true); }

// Launches the last call first: callers must not rely on the order of grouped calls, and this finds callers that do.
bool EndGroup(ncclResult_t& result) {
  if (!std::exchange(groups, false)) return false;
  const auto launches = std::exchange(grouped, {});
  result = ncclSuccess;
  for (auto launch = launches.rbegin(); launch != launches.rend() && result == ncclSuccess; ++launch) {
    result = (*launch)();
  }
  Count(&FakeNcclCounts::groups, 1);
  return true;
}

}  // namespace fsdp::fake_nccl
