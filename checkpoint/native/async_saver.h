// SPDX-License-Identifier: Apache-2.0
//
// AsyncSaver: SaveCheckpoint in the background. The caller is blocked only while its state is copied into a staging
// arena, which is allocated once (pinned memory for a GPU) and reused by every save; a thread then writes and commits.
//
//   step K        |copy|--------- training continues ---------|copy|----
//   background         |== write, fsync, commit step K ==|         |== ...
//
// On a GPU the caller need not even wait for the copy, which the GPU makes concurrently with the next step, up to its
// update:
//
//   compute stream   step K |==== forward, backward ====|wait for copied|update|
//   copying stream          |-- device to pinned --|copied
//
// The caller issues these copies: one for each tensor above 64 KiB, and one for each 4 MiB of smaller ones, which a
// kernel collects on the GPU first (tensor/packed_copies.h). It waits for none of them.
//
// The threads that digest and write are throttled while training runs, until a caller waits for the save.
//
// There is one save at a time: the next one waits for the one before (back-pressure). Tensors that do not fit into the
// arena are written from the caller's memory, while the caller waits. AsyncSaveReport reports both. Used by one thread
// of a rank.
#ifndef FSDP_CHECKPOINT_NATIVE_ASYNC_SAVER_H_
#define FSDP_CHECKPOINT_NATIVE_ASYNC_SAVER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/save/save_options.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/state_dict.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class PackedCopies;

struct AsyncSaverOptions {
  // Behaviour.

  // One thread keeps a disk busy, since staged tensors are written without another copy. With two threads, training
  // that uses all cores lost twice as much time.
  SaveOptions save = {.io_threads = 1};

  // Each save links the files that are unchanged since the one before: save.base is set to its path.
  bool incremental = false;

  // Called by the background thread of rank 0 with the path of each checkpoint once it is committed; for retention. If
  // it fails, the save fails with its error, on every rank.
  std::function<absl::Status(const std::string& path)> committed = {};

  // Performance.

  // Bytes of the arena; 0: the size of the first state. With a smaller arena the caller is blocked longer, or, on a
  // GPU, each save pins additional memory while it runs.
  int64_t staging_bytes = 0;

  // Threads that copy a state in host memory.
  int copy_threads = 2;

  // Niceness (nice(1), 0 to 19) of the threads that digest and write; 0: the niceness of the thread that calls Create.
  // When a caller waits for the save, additional threads with the caller's niceness take over the remaining work.
  int nice = 14;

  // Upper bound on the share of one core's time that each writing thread takes, in (0, 1]. 0 chooses: 1 on a GPU; for a
  // group that computes on the host, 0.03 divided by the number of writing threads on all ranks. The bound is lifted
  // when a caller waits for the save, or after a quarter of the group's timeout; it is doubled each time Save had to
  // wait. Ranks wait for each other in every collective, so training during a save is slower by about the sum of all
  // shares. With 0.03, 2 GB, which take at most a second of processor time, take up to 33 seconds.
  double processor_share = 0;
};

struct AsyncSaveReport {
  absl::Duration blocked;      // for how long Save blocked the caller
  absl::Duration waited;       // the part of it spent waiting for the save before
  int64_t staged_bytes = 0;    // copied into the arena
  int64_t unstaged_bytes = 0;  // written from the caller's tensors, since the arena was too small
  std::string note;            // a sentence about back-pressure; empty without it
  Event copied;                // the state may change immediately, or after its stream has waited for this
};

class AsyncSaver {
 public:
  // Saves below `root`. Collective: splits a group of its own from `group`, whose device holds the states.
  static absl::StatusOr<std::unique_ptr<AsyncSaver>> Create(std::string root, ProcessGroup& group,
                                                            const AsyncSaverOptions& options = {});

  // Blocks until the save in progress has ended, and discards its error: call Wait before.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Starts to save `state`, in host memory or on the group's GPU, as SaveCheckpoint would save it as `step`. All ranks
  // call it. If the save before has failed, returns its error, on every rank, and starts nothing.
  //
  // Without `computed`, `state` may change as soon as this returns. With `computed`, the stream whose work so far
  // produces a state on a GPU, this returns before the copy is made, and `state` may change only after
  // AsyncSaveReport::copied. In both cases the caller may drop its references to the tensors.
  absl::StatusOr<AsyncSaveReport> Save(const StateDict& state, int64_t step, Stream* computed = nullptr);

  // Blocks until no save is in progress, and ends the throttling of the one that is. Returns the path of the last
  // checkpoint, "" when there was no save; or the error of a save, if no call has returned it yet.
  absl::StatusOr<std::string> Wait();

 private:
  // A save in progress: Save fills it and hands it to the worker, which owns it until the save has ended.
  struct Pending {
    // In the arena. Tensors that do not fit stay in the caller's memory, or on a GPU go to more pinned memory.
    StateDict state;
    StateDict source;  // on a GPU: keeps the memory alive from which `state` is copied, until `copied`
    Event copied;
    int64_t step = 0;
    double processor_share = 1;  // before BackgroundOptionsOf divides it
  };

  AsyncSaver(std::string root, std::unique_ptr<ProcessGroup> group, std::shared_ptr<Device> device,
             const AsyncSaverOptions& options);

  // A state dict with `state`'s tensors in the arena, as far as it is large enough. Fills copies_ and small_, but
  // copies nothing yet.
  absl::StatusOr<StateDict> Stage(const StateDict& state, AsyncSaveReport& report);
  absl::StatusOr<Buffer> Place(int64_t nbytes, int64_t& used);
  bool IsInArena(const Buffer& place) const;
  void AddCopies(const Tensor& source, const Buffer& place);
  absl::Status CopyOnHost();
  absl::Status CopyFromGpu(Stream* computed, AsyncSaveReport& report);
  bool on_gpu() const { return device_->type() != DeviceType::kCpu; }
  void Work();
  absl::StatusOr<std::string> SavePending(Pending& pending);
  ThreadPool::BackgroundOptions BackgroundOptionsOf(const Pending& pending) const;
  void SetWriters(ThreadPool* writers);

  const std::string root_;
  const std::unique_ptr<ProcessGroup> group_;  // for the control plane
  const std::shared_ptr<Device> device_;
  const AsyncSaverOptions options_;
  double processor_share_;  // of the next save, before BackgroundOptionsOf divides it; used only by the caller
  std::unique_ptr<ThreadPool> copiers_;
  Buffer arena_;
  std::unique_ptr<PackedCopies> packed_;  // on a GPU; created by the first save, as copying_, which it uses
  std::unique_ptr<Stream> copying_;

  struct Copy {
    std::byte* to;
    const std::byte* from;
    int64_t nbytes;
  };
  std::vector<Copy> copies_;
  // A tensor of a GPU that travels with others, and its place in the arena.
  struct SmallCopy {
    Tensor from;
    int64_t to;
  };
  std::vector<SmallCopy> small_;

  std::string base_;  // the path of the last checkpoint, for `incremental`; used only by worker_

  // mutex_ guards the members below, but not the Pending that pending_ points to, which the worker owns.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Pending> pending_;  // the save in progress; null without one
  absl::StatusOr<std::string> last_ = std::string();
  ThreadPool* writers_ = nullptr;  // the threads of the save in progress, until a waiting caller has called Boost
  bool closing_ = false;

  std::thread worker_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_ASYNC_SAVER_H_
