// SPDX-License-Identifier: Apache-2.0
//
// Store: a key/value store that the ranks of a job reach before they have a process group: rank 0's process serves it
// (store_server.h), all ranks, 0 included, are clients. For small things, some kilobytes; a group's GatherBlobs takes
// over once there is one. Nothing is authenticated beyond the user on local sockets: it belongs on a trusted network.
// Thread-safe; calls of one Store run one after the other.
#ifndef FSDP_COLLECTIVES_JOB_STORE_H_
#define FSDP_COLLECTIVES_JOB_STORE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/collectives/job/store_frame.h"

namespace fsdp {

// Which rank of which job a client is. The server takes each rank of its job once.
struct StoreMember {
  std::string job;
  int rank = 0;
  int world_size = 1;
};

class Store {
 public:
  // Introduces `member` on a connected socket. kInvalidArgument when the server has another world size for this job;
  // kFailedPrecondition when it serves another job, or had this rank before; kUnavailable or kDeadlineExceeded when it
  // is no store.
  static absl::StatusOr<std::unique_ptr<Store>> Connect(FileDescriptor socket, const StoreMember& member,
                                                        absl::Time deadline);

  // Every call: kUnavailable when the server is gone; kInvalidArgument for a key or value beyond the limits.

  // Sets, or replaces, and wakes those that wait for it.
  absl::Status Set(const std::string& key, const std::string& value);

  // The value, once it is set. kDeadlineExceeded when it is not by the deadline; kUnavailable when it is not and a rank
  // that was connected has gone.
  absl::StatusOr<std::string> Get(const std::string& key, absl::Time deadline);

  // Adds to the number at `key`, 0 when unset, and returns the sum.
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t delta);

  // Tells the server that this rank is done with it, so that its going is no failure.
  absl::Status Leave();

 private:
  explicit Store(FileDescriptor socket) : socket_(std::move(socket)) {}

  absl::StatusOr<StoreFrame> Call(StoreFrame request, absl::Time deadline);
  absl::StatusOr<StoreFrame> Receive(absl::Time deadline);

  std::mutex mutex_;  // one request and its reply at a time
  FileDescriptor socket_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_STORE_H_
