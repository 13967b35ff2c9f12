// SPDX-License-Identifier: Apache-2.0
//
// AsyncSaver: SaveCheckpoint in the background. The caller is blocked only while its state is copied into a staging
// arena, which is allocated once (pinned, on a GPU) and used again by every save; a thread then writes and commits.
//
//   step K        |copy|--------- training goes on ---------|copy|----
//   background         |== write, fsync, commit step K ==|       |== ...
//
// On a GPU the caller need not even be blocked for the copy, which the GPU makes beside the next step, up to its
// update:
//
//   compute stream   step K |==== forward, backward ====|wait for copied|update|
//   copying stream          |-- device to pinned --|copied
//
// Threads that digest and write run in the background while training continues, until a caller waits for them.
//
// There is one save at a time: the next one waits for the one before (back-pressure). What does not fit into the arena
// is written from the caller's tensors while it waits. Both are said in the report. Used by one thread of a rank.
#ifndef FSDP_CHECKPOINT_ASYNC_SAVER_H_
#define FSDP_CHECKPOINT_ASYNC_SAVER_H_

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
#include "fsdp/checkpoint/save/save_options.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/state_dict.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

struct AsyncSaverOptions {
  // Behaviour.

  // One thread keeps a disk busy, since what is staged is written from where it lies, and takes time from one core at a
  // time: with two, training that uses all cores lost twice as much.
  SaveOptions save = {.io_threads = 1};

  // Each save links what the one before holds unchanged: save.base is that one's path.
  bool incremental = false;

  // Called by the background thread of rank 0 once a checkpoint is committed, with its path; for retention. Its error
  // is that of the save, on every rank.
  std::function<absl::Status(const std::string& path)> committed = {};

  // Performance.

  // Bytes of the arena; 0: what the first state takes. With a smaller one the caller is blocked longer, or, on a GPU,
  // more is pinned for the time of each save.
  int64_t staging_bytes = 0;

  // Threads that copy, where the state is in host memory.
  int copy_threads = 2;

  // How nice the threads that digest and write are to others on their cores, 0 to 19 as nice(1) has it; 0: as the
  // thread that calls Create. As soon as somebody waits for the save, other threads, as nice as he is, take what is
  // left.
  int nice = 14;

  // What each of these threads takes of one core's time at most, in (0, 1], until somebody waits for the save, or for a
  // quarter of the group's timeout. Ranks wait for each other, so what one of them loses all lose: training beside a
  // save is slower by about the sum of these shares, and a save takes the longer. 0: on a GPU 1; where the group
  // computes on the host 0.03 divided among all threads of all ranks that write, so that 2 GB, which are a second of
  // processor time at most, take up to 33 seconds, whoever holds them. As often as Save has to wait for the save
  // before, the later ones take twice as much.
  double processor_share = 0;
};

struct AsyncSaveReport {
  absl::Duration blocked;      // of the caller, all in all
  absl::Duration waited;       // of that, for the save before
  int64_t staged_bytes = 0;    // copied into the arena
  int64_t unstaged_bytes = 0;  // written from the caller's tensors, since the arena was too small
  std::string note;            // a sentence about back-pressure; empty when there was none
  Event copied;  // when the state may change: at once, or when the stream that changes it has waited for it
};

class AsyncSaver {
 public:
  // Saves below `root`. Collective: takes a group of its own from `group`, whose device says where states are.
  static absl::StatusOr<std::unique_ptr<AsyncSaver>> Create(std::string root, ProcessGroup& group,
                                                            const AsyncSaverOptions& options = {});

  // Waits for the save in progress. Its error is lost: call Wait before.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Starts to save `state` as `step`, as SaveCheckpoint, of host memory or of the group's GPU. All ranks call it. When
  // the save before has failed, returns its error, on every rank, and starts nothing. Once this returns `state` may
  // change; but where it is on a GPU and `computed`, the stream whose work so far makes it, is given, only after
  // AsyncSaveReport::copied. It may go in any case.
  absl::StatusOr<AsyncSaveReport> Save(const StateDict& state, int64_t step, Stream* computed = nullptr);

  // Blocks until no save is in progress, and boosts the one that is. The path of the last checkpoint, empty when there
  // was no save; or the error of a save that no call has returned yet.
  absl::StatusOr<std::string> Wait();

 private:
  // A save in progress: Save fills it and hands it to the worker, which owns it until the save has ended.
  struct Pending {
    StateDict state;   // in the arena, and in the caller's memory as far as the arena is too small
    StateDict source;  // on a GPU: keeps the memory alive from which `state` is copied, until `copied`
    Event copied;
    int64_t step = 0;
    double processor_share = 1;  // before BackgroundOptionsOf divides it
  };

  AsyncSaver(std::string root, std::unique_ptr<ProcessGroup> group, std::shared_ptr<Device> device,
             const AsyncSaverOptions& options);

  // Copies of `state`'s tensors in the arena, as far as it reaches.
  absl::StatusOr<StateDict> Stage(const StateDict& state, AsyncSaveReport& report);
  absl::StatusOr<Buffer> Place(int64_t nbytes, int64_t& used);
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
  double processor_share_;  // of the next save, before BackgroundOptionsOf divides it; used by the caller alone
  std::unique_ptr<ThreadPool> copiers_;
  Buffer arena_;
  std::unique_ptr<Stream> copying_;  // of a GPU; from the first save on

  struct Copy {
    std::byte* to;
    const std::byte* from;
    int64_t nbytes;
  };
  std::vector<Copy> copies_;

  std::string base_;  // the path of the last checkpoint, for `incremental`; used by worker_ alone

  // mutex_ guards the members from here on, but not the Pending that pending_ points to: that is the worker's.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Pending> pending_;  // the save in progress; null when there is none
  absl::StatusOr<std::string> last_ = std::string();
  ThreadPool* writers_ = nullptr;  // the threads of the save in progress, until a waiting caller has called Boost
  bool closing_ = false;

  std::thread worker_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_ASYNC_SAVER_H_
