// SPDX-License-Identifier: Apache-2.0
//
// StoreServer: serves a job's Store on its own thread, on any number of listening sockets. It does not trust clients:
// it closes a connection that violates the protocol, and it limits the memory and the connections that clients can make
// it hold. After a connected rank is gone without Leave, every wait for a key that is not set fails: the missing rank
// might have been the one to set it.
//
// Ranks that keep their connection as a JobWatch (job_watch.h) receive the first loss (watch_roster.h).
#ifndef FSDP_COLLECTIVES_JOB_STORE_SERVER_H_
#define FSDP_COLLECTIVES_JOB_STORE_SERVER_H_

#include <poll.h>

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/collectives/job/store_connection.h"
#include "fsdp/collectives/job/store_contents.h"
#include "fsdp/collectives/job/store_frame.h"
#include "fsdp/collectives/job/store_member.h"
#include "fsdp/collectives/job/watch_roster.h"

namespace fsdp {

class StoreServer {
 public:
  // Starts serving the job of `self`, the rank that serves, to self.world_size ranks. The listeners must be
  // non-blocking. kResourceExhausted if there is no descriptor left.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(std::vector<FileDescriptor> listeners, StoreMember self);

  // Stops the thread and closes all sockets. Clients that wait get kUnavailable. Clients that watch are first informed,
  // for at most half a second, that rank 0 has left; if it has not, they lose it. After rank 0 has left, the server
  // waits at most 5 seconds for ranks that have neither left nor begun to watch.
  ~StoreServer();

  // Blocks until every rank that ever connected has called Store::Leave. kUnavailable if one is gone without it;
  // kDeadlineExceeded. Any thread.
  absl::Status AwaitLeave(absl::Time deadline);

 private:
  // A Get whose key is not set yet, or a gather that is not complete.
  struct Wait {
    bool is_gather = false;
    std::string key;
    absl::Time deadline;
  };

  // A client. All fields belong to the thread.
  struct Connection {
    StoreConnection stream;
    int rank = -1;                  // -1 until its hello was accepted
    bool has_left = false;          // kLeave was received
    std::optional<Wait> wait = {};  // while set, later requests stay in `stream`, so that replies keep their order

    // For a connection that watches.
    absl::Duration interval = absl::InfiniteDuration();  // of heartbeats; infinite if it does not watch
    absl::Time next_beat = absl::InfiniteFuture();
    bool was_told = false;  // the verdict was sent

    bool is_watching() const { return interval != absl::InfiniteDuration(); }
  };

  StoreServer(std::vector<FileDescriptor> listeners, FileDescriptor stop, FileDescriptor spare, StoreMember self);

  // All of the following runs on the thread. Read and HandleInput return false if the connection must be dropped. The
  // poll loop: read, accept, answer, write, until stop_ is readable.
  void Serve();
  std::vector<pollfd> Poll() const;

  // Input and output. ReadFrom takes the connections' entries of Poll, in the order of connections_.
  void ReadFrom(absl::Span<const pollfd> polled);
  void WriteAll();
  // Accepts a connection. If there are too many, or no descriptor is left, closes the oldest one without a rank.
  void Accept(int listener);
  FileDescriptor TakeConnection(int listener);
  // Closes the oldest connection without a rank; false if every connection has one.
  bool DropStranger();
  // Receives, and handles complete frames.
  bool Read(Connection& connection);
  bool HandleInput(Connection& connection);

  // Starts a Get or a gather, whose reply may have to wait; false if it is neither.
  bool StartWait(Connection& connection, const StoreFrame& request);

  // Handles a frame of a connection that watches. Sends no reply.
  void HandleWatching(Connection& connection, const StoreFrame& frame);
  // Sends heartbeats and the verdict to the connections that watch.
  void TellWatching();
  // Whether rank 0 has left, and another connected rank has neither left nor begun to watch.
  bool HasStragglers() const;
  // The last step of the thread; see the destructor.
  void SayFarewell();

  // The replies to requests; one function for each StoreRequest that is answered immediately.
  StoreFrame Answer(Connection& connection, const StoreFrame& request);
  // The server's member without the token: the client may be any process.
  StoreFrame Introduction() const;
  // Refuses another job, another token, another world size, a rank out of range, and a rank that is connected already
  // (store.h).
  StoreFrame AnswerHello(Connection& connection, const StoreFrame& request);
  StoreFrame AnswerSet(const StoreFrame& request);
  StoreFrame AnswerAdd(const StoreFrame& request);
  StoreFrame AnswerLeave(Connection& connection);
  // kInvalidArgument if interval or silence are out of range.
  StoreFrame AnswerWatch(Connection& connection, const StoreFrame& request);

  // Answers gets and gathers that wait: for a key, for all blobs, for the failure of a rank, or for their deadline.
  // Returns true if an answer may have ended further waits: call it again.
  bool AnswerWaits();
  // Null while the wait continues. A value has precedence over a rank that is gone, and that over a deadline.
  StoreMessage ReplyToWait(const Connection& connection);

  // Closes a connection; a rank that has not left counts as gone.
  void Drop(std::list<Connection>::iterator connection);
  // The time at which the next wait expires, or a heartbeat or a check of the roster is due; else never.
  absl::Time NextDeadline() const;
  // The first rank that is gone, or -1.
  int GoneRank() const;

  const std::vector<FileDescriptor> listeners_;
  const FileDescriptor stop_;  // an eventfd; readable when the thread must end
  const StoreMember self_;

  // Used by the thread only.
  FileDescriptor spare_;  // any; closed for a moment when no other descriptor is left
  std::list<Connection> connections_;
  StoreContents contents_;
  std::vector<std::optional<StoreMember>> seen_ranks_;  // by rank: the client whose hello was accepted
  WatchRoster roster_;
  absl::Duration shortest_silence_ = absl::InfiniteDuration();  // of all connections that watch
  absl::Time turn_ = absl::InfiniteFuture();                    // when the loop's last turn began
  bool self_has_left_ = false;
  absl::Time end_ = absl::InfiniteFuture();  // the loop ends at the latest; infinite until the destructor runs

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int seen_ = 0;        // ranks whose hello was accepted; guarded by mutex_
  int left_ = 0;        // ranks that left; guarded by mutex_
  int gone_rank_ = -1;  // the first rank whose connection ended without Leave; guarded by mutex_

  std::thread thread_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_STORE_SERVER_H_
