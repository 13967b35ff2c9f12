// SPDX-License-Identifier: Apache-2.0
//
// StoreServer: serves a job's Store on a thread, on any number of listening sockets at once. It trusts nothing that it
// reads: a connection that sends something else than the protocol is closed, and what it may make the server hold is
// limited. A rank that was connected and is gone makes every wait fail, since nobody is going to set what it waits for.
#ifndef FSDP_COLLECTIVES_JOB_STORE_SERVER_H_
#define FSDP_COLLECTIVES_JOB_STORE_SERVER_H_

#include <poll.h>

#include <condition_variable>
#include <list>
#include <map>
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
#include "fsdp/collectives/job/store_frame.h"

namespace fsdp {

class StoreServer {
 public:
  // Starts serving job `job` of `world_size` ranks. The listeners must not block.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(std::vector<FileDescriptor> listeners, std::string job,
                                                            int world_size);

  // Stops, and closes all sockets.
  ~StoreServer();

  // Blocks until every rank that ever connected has left (Store::Leave). kUnavailable when one is gone without;
  // kDeadlineExceeded.
  absl::Status AwaitLeave(absl::Time deadline);

 private:
  struct Wait {
    std::string key;
    absl::Time deadline;
  };

  struct Connection {
    FileDescriptor socket;
    int rank = -1;  // until it said hello
    bool left = false;
    std::string input = {};
    std::string output = {};
    std::optional<Wait> wait = {};  // for the key of a Get; requests that follow stay in `input`
  };

  StoreServer(std::vector<FileDescriptor> listeners, FileDescriptor stop, std::string job, int world_size);

  // All of the following runs on the thread.
  void Serve();
  std::vector<pollfd> Poll() const;
  void ReadFrom(absl::Span<const pollfd> polled);
  void WriteAll();
  void Accept(int listener);
  bool Read(Connection& connection);
  bool Write(Connection& connection);
  bool HandleInput(Connection& connection);
  StoreFrame Answer(Connection& connection, const StoreFrame& request);
  StoreFrame AnswerHello(Connection& connection, const StoreFrame& request);
  StoreFrame AnswerSet(const StoreFrame& request);
  StoreFrame AnswerAdd(const StoreFrame& request);
  StoreFrame AnswerLeave(Connection& connection);
  bool AnswerWaits();
  std::optional<StoreFrame> ReplyToWait(const Connection& connection) const;
  void Drop(std::list<Connection>::iterator connection);
  absl::Time NextDeadline() const;
  int GoneRank() const;

  const std::vector<FileDescriptor> listeners_;
  const FileDescriptor stop_;  // an eventfd
  const std::string job_;
  const int world_size_;

  // Of the thread.
  std::list<Connection> connections_;
  std::map<std::string, std::string> values_;
  size_t value_bytes_ = 0;        // of keys and values
  std::vector<bool> seen_ranks_;  // that said hello

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int seen_ = 0;        // ranks that said hello; guarded by mutex_
  int left_ = 0;        // ranks that left; guarded by mutex_
  int gone_rank_ = -1;  // the first that said hello and went without leaving; guarded by mutex_

  std::thread thread_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_STORE_SERVER_H_
