// SPDX-License-Identifier: Apache-2.0
//
// JobWatch: who of a job is lost, told to all of its ranks. Each rank keeps its connection to the job's store, on which
// a thread of its own sends a heartbeat each second and hears those of rank 0, which serves the store. Rank 0's process
// tells all ranks the first loss that it learns of:
//
//   rank 3 (host-b, pid 123) is gone            its process has ended; told within 1 s
//   host-b (ranks 2, 3) is gone                 so have all on its host
//   host-b (ranks 2, 3) does not answer         no heartbeats, or the network is cut; told within 12 s
//   rank 1 (host-a, pid 77) gave up: REASON     GiveUp
//
// and each rank notices by itself when rank 0 is lost: "rank 0 (host-a, pid 4), which serves the job's store, is gone".
// A process that is stopped (SIGSTOP) does not answer either; a pause of a whole machine or of all ranks is no silence.
//
// A collective that fails on one rank asks for the verdict before it reports its error, because a rank that has lost a
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

// For production the defaults; all ranks of a job should have the same.
struct WatchOptions {
  absl::Duration interval = absl::Seconds(1);  // between two heartbeats, in both directions; at least 1 ms
  absl::Duration silence = absl::Seconds(10);  // after which an end is lost; longer than `interval`
};

class JobWatch {
 public:
  // Takes over a store's connection and, on rank 0, its server, which serves as long as this exists. Blocks until the
  // server has agreed, at most 5 seconds. Errors as those of Store::Watch.
  static absl::StatusOr<std::unique_ptr<JobWatch>> Start(std::unique_ptr<Store> store,
                                                         std::unique_ptr<StoreServer> server,
                                                         const WatchOptions& options = {});

  // Ends the watch; blocks for at most 2 seconds, normally for milliseconds. Without Leave, this rank is gone for the
  // others, which is right for one that ends with an error.
  ~JobWatch();

  // OK if nobody is known to be lost; else kUnavailable with the message above. Waits for up to `wait` for a loss to
  // become known. The first loss stays the verdict.
  absl::Status Verdict(absl::Duration wait);

  // Tells all ranks why this one is about to end. Does not block. Without effect if a loss is known already, or after
  // Leave. At most 1024 bytes of `reason` are told.
  void GiveUp(std::string_view reason);

  // This rank is done: its end is no loss. When rank 0 has left, nobody is watched any more. Does not block.
  void Leave();

 private:
  JobWatch(FileDescriptor socket, FileDescriptor wake, StoreMember server_member, std::unique_ptr<StoreServer> server,
           const WatchOptions& options);

  // All of the following runs on the thread.
  void Run();
  // Returns when something arrived, or it is time for a heartbeat or for the end of the server's silence.
  void AwaitEvent(absl::Time next_beat);
  // False at the end of the connection.
  bool Read();
  void Handle(const StoreFrame& frame);
  // Sends what is queued, as much as the socket takes.
  void Write();
  // Says the last, and waits until rank 0's process has read it.
  void HangUp();

  void LoseServer(const std::string& what);
  // Hands `frame` to the thread.
  void Queue(const StoreFrame& frame);

  const WatchOptions options_;
  const StoreMember server_member_;
  const FileDescriptor wake_;  // an eventfd

  // The thread's.
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
