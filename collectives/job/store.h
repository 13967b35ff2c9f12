// SPDX-License-Identifier: Apache-2.0
//
// Store: a key/value store that the ranks of a job use before they have a process group, as torch.distributed's
// TCPStore. Rank 0's process serves it (store_server.h); all ranks, including rank 0, are clients. For values of some
// kilobytes; after a group exists, use its AllGatherObject. On local sockets the server checks the user of a client; on
// TCP it does not authenticate clients: use it on trusted networks only. Thread-safe; calls of one Store run one after
// the other.
#ifndef FSDP_COLLECTIVES_JOB_STORE_H_
#define FSDP_COLLECTIVES_JOB_STORE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/collectives/job/store_frame.h"
#include "fsdp/collectives/job/store_member.h"

namespace fsdp {

class Store {
 public:
  // Introduces `member` on a connected socket; blocks for at most 5 seconds. kFailedPrecondition if the server serves
  // another job, which the message names with its process; kUnauthenticated if its token differs; kInvalidArgument if
  // it has another world size for this job; kAlreadyExists if another process is this rank; kUnavailable if this
  // process is, in a group that is not closed yet; kPermissionDenied if the server belongs to another user;
  // kUnavailable or kDeadlineExceeded if the other end is not a store.
  static absl::StatusOr<std::unique_ptr<Store>> Connect(FileDescriptor socket, const StoreMember& member,
                                                        absl::Time deadline);

  // The member that serves at a connected socket: rank 0 of the store's job. `asker` introduces this process, and does
  // not join. Errors if the other end is not a store.
  static absl::StatusOr<StoreMember> WhoServes(FileDescriptor socket, const StoreMember& asker, absl::Time deadline);

  // Errors of every call: kUnavailable if the server is gone; kDeadlineExceeded if it does not answer within 5 seconds,
  // after which the Store is unusable; kInvalidArgument for a key or value beyond the limits of store_frame.h.

  // Sets or replaces a value, and wakes the clients that wait for it.
  absl::Status Set(const std::string& key, const std::string& value);

  // Blocks until the value is set. kDeadlineExceeded if it is not set by the deadline; kUnavailable if it is not set
  // and a rank that was connected is gone, because that rank might have been the one to set it.
  absl::StatusOr<std::string> Get(const std::string& key, absl::Time deadline);

  // Adds to the number at `key`, 0 if unset, and returns the sum. Atomic among all clients; wraps on overflow.
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t delta);

  // Every rank's blob, by rank, in one exchange; `key` must be new for each gather of the job. Blocks until all ranks
  // have called it. kDeadlineExceeded, "missing ranks: 2, 3", if some have not by the deadline; kUnavailable if a rank
  // that was connected is gone; kResourceExhausted if all blobs together exceed kMaxStoreGatherBytes.
  absl::StatusOr<std::vector<std::string>> Gather(const std::string& key, std::string_view blob, absl::Time deadline);

  // The member that serves: rank 0 of the job.
  const StoreMember& server() const { return server_; }

  // Turns the connection into one of heartbeats (kWatch of store_frame.h) and returns it; the Store is unusable
  // afterwards. kInvalidArgument for an interval below 1 ms or a silence that is not longer than the interval.
  absl::StatusOr<FileDescriptor> Watch(absl::Duration interval, absl::Duration silence);

  // Announces that this rank does not need the store any more, so that the end of its connection is not a failure.
  absl::Status Leave();

 private:
  explicit Store(FileDescriptor socket) : socket_(std::move(socket)) {}

  // Sends a request and waits for its reply. Closes the socket on any error except an error that the server replied.
  absl::StatusOr<StoreFrame> Call(StoreFrame request, absl::Time deadline);
  absl::StatusOr<StoreFrame> Receive(size_t max_value_bytes, absl::Time deadline);

  std::mutex mutex_;  // one request and its reply at a time
  FileDescriptor socket_;
  StoreMember server_;  // set by Connect
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_STORE_H_
