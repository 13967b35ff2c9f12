// SPDX-License-Identifier: Apache-2.0
//
// JobWatch: reports the first lost rank of a job to all of its ranks. Each rank keeps its connection to the job's
// store. A thread sends a heartbeat on it each second and receives the heartbeats of rank 0, which serves the store.
// Rank 0's process reports to all ranks the first loss that it learns of:
//
//   rank 3 (host-b, pid 123) is gone            its process has ended; reported within 1 s
//   host-b (ranks 2, 3) is gone                 all processes on its host have ended
//   host-b (ranks 2, 3) does not answer         no heartbeats, or the network is cut; reported within 12 s
//   rank 1 (host-a, pid 77) gave up: REASON     GiveUp
//
// Each rank notices by itself when rank 0 is lost: "rank 0 (host-a, pid 4), which serves the job's store, is gone". A
// process that is stopped (SIGSTOP) does not answer either. A pause of a whole machine or of all ranks does not count
// as silence.
//
// A collective that fails on one rank requests the verdict before it reports its error, because a rank that has lost a
// peer ends too, and its other peers see only that:
//
//   if (absl::Status verdict = watch->Verdict(absl::Milliseconds(250)); !verdict.ok()) return verdict;
//
// Thread-safe.
#ifndef FSDP_COLLECTIVES_JOB_JOB_WATCH_H_
#define FSDP_COLLECTIVES_JOB_JOB_WATCH_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/collectives/job/store.h"
#include "fsdp/collectives/job/store_frame.h"
#include "fsdp/collectives/job/store_server.h"

namespace fsdp {

// Use the defaults in production; all ranks of a job should have the same values.
struct WatchOptions {
  absl::Duration interval = absl::Seconds(1);  // between two heartbeats, in both directions; at least 1 ms
  absl::Duration silence = absl::Seconds(10);  // an end that is silent for so long is lost; longer than `interval`
};

class JobWatch {
 public:
  // Takes over a store's connection and, on rank 0, its server, which serves as long as this object exists. Blocks
  // until the server has agreed, at most 5 seconds. Same errors as Store::Watch.
  static absl::StatusOr<std::unique_ptr<JobWatch>> Start(std::unique_ptr<Store> store,
                                                         std::unique_ptr<StoreServer> server,
                                                         const WatchOptions& options = {});

  // Ends the watch; blocks for at most 2 seconds, normally for milliseconds. Without Leave, the other ranks see this
  // rank as gone, which is right for a rank that ends with an error.
  ~JobWatch();

  // OK if no rank is known to be lost; else kUnavailable with the message above. Waits for up to `wait` for a loss to
  // become known. The first loss stays the verdict.
  absl::Status Verdict(absl::Duration wait);

  // Reports to all ranks why this one is about to end. Does not block. No effect if a loss is known already, or after
  // Leave. At most 1024 bytes of `reason` are sent.
  void GiveUp(std::string_view reason);

  // This rank is done: its end is not a loss. After rank 0 has left, no rank is watched. Does not block.
  void Leave();

 private:
  JobWatch(FileDescriptor socket, FileDescriptor wake, StoreMember server_member, std::unique_ptr<StoreServer> server,
           const WatchOptions& options);

  // All of the following runs on the thread.
  void Run();
  // Returns when data arrived, or when a heartbeat or the end of the server's silence is due.
  void AwaitEvent(absl::Time next_beat);
  // Returns false at the end of the connection.
  bool Read();
  void Handle(const StoreFrame& frame);
  // Sends as much of the queue as the socket takes.
  void Write();
  // Ends this side of the connection, and waits until rank 0's process has read all of it.
  void HangUp();

  void LoseServer(const std::string& what);
  // Queues `frame` for the thread.
  void Queue(const StoreFrame& frame);

  const WatchOptions options_;
  const StoreMember server_member_;
  const FileDescriptor wake_;  // an eventfd

  // Used by the thread only.
  FileDescriptor socket_;
  std::string input_;
  absl::Time heard_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string output_;      // bytes to send; guarded by mutex_
  std::string verdict_;     // guarded by mutex_
  bool has_ended_ = false;  // this rank or rank 0 has left; guarded by mutex_
  bool is_ending_ = false;  // the destructor has begun; guarded by mutex_

  std::unique_ptr<StoreServer> server_;  // rank 0 only
  std::thread thread_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_JOB_WATCH_H_
