// SPDX-License-Identifier: Apache-2.0
//
// MpiCommunicator: a communicator that this library creates, and its end.
//
// MPI reuses the context of a freed communicator. A message that is still under way in the old one is then received in
// the new one, or ends the process (Open MPI 4.1 takes its sender for a rank of the new one). So every rank sends each
// other one a last message, and frees the communicator only after it has received the last messages of all others.
// Until then it is closing, while the process continues. A communicator in which something failed is never freed.
//
// Not thread-safe; any thread may call Create, Close and FreeClosed.
#ifndef FSDP_COLLECTIVES_MPI_MPI_COMMUNICATOR_H_
#define FSDP_COLLECTIVES_MPI_MPI_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/mpi/mpi_functions.h"
#include "fsdp/collectives/mpi/mpi_library.h"

namespace fsdp {

// Advances the requests until all are done, or for `most`. True if all are done or have failed.
bool AwaitRequests(std::vector<MpiHandle>& requests, absl::Duration most);

struct MpiLastMessage {
  int peer = 0;
  std::string text = {};
};

class MpiCommunicator {
 public:
  // A communicator of these ranks of `parent`, in this order; every one of them calls it at the same time. Blocks
  // without a deadline. MPI returns errors in it instead of ending the process. kUnavailable if MPI fails.
  static absl::StatusOr<std::unique_ptr<MpiCommunicator>> Create(MpiHandle parent, const std::vector<int>& ranks);

  // Does not free any MPI object.
  ~MpiCommunicator() = default;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  MpiHandle handle() const { return handle_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  // The longest last message.
  static constexpr int64_t kMaxBytes = 2048;

  // Sends `text` to all others as this rank's last message in the communicator. Call it once. Waits for up to 200 ms
  // until MPI has taken it.
  void SendLast(std::string text);

  // The next last message of another rank, if one has come.
  std::optional<MpiLastMessage> ReceiveLast();

  // Call it if an operation in the communicator may never end.
  void Fail();
  bool has_failed() const { return has_failed_; }

  // Ends the use of a communicator, after SendLast. Does not wait.
  static void Close(std::unique_ptr<MpiCommunicator> communicator);

  // Frees the closing communicators whose last messages have all come, as Create and Close do. True if none is left.
  static bool FreeClosed();

 private:
  explicit MpiCommunicator(MpiHandle handle);
  // Starts to receive the next last message, if one is missing.
  void Expect();
  // True if no more messages will come, and all sends are done.
  bool IsOver();

  std::optional<MpiUse> use_{std::in_place};  // reset when it is closing
  MpiHandle handle_;
  int rank_ = 0;
  int size_ = 1;
  bool has_failed_ = false;
  int missing_ = 0;  // ranks whose last message has not come
  std::vector<char> incoming_;
  MpiHandle incoming_request_ = FSDP_MPI_NO_REQUEST;
  std::string outgoing_;
  std::vector<MpiHandle> outgoing_requests_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_MPI_MPI_COMMUNICATOR_H_
