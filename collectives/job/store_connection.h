// SPDX-License-Identifier: Apache-2.0
//
// StoreConnection: the bytes of one connection of a store's server. Frames are queued and sent as the socket takes
// them; received bytes are kept until they are a whole frame. Nothing blocks. Used by one thread.
#ifndef FSDP_COLLECTIVES_JOB_STORE_CONNECTION_H_
#define FSDP_COLLECTIVES_JOB_STORE_CONNECTION_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/collectives/job/store_frame.h"

namespace fsdp {

// An encoded frame. Connections share the message if it goes to many of them.
using StoreMessage = std::shared_ptr<const std::string>;

StoreMessage MakeStoreMessage(const StoreFrame& frame);

class StoreConnection {
 public:
  // `socket` must be non-blocking.
  explicit StoreConnection(FileDescriptor socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  // Takes at most 64 KiB, so that no client holds up the others. Returns false at the end of the connection.
  bool Receive();

  // The next complete frame; nullopt before it is complete. kInvalidArgument if the bytes are not a frame of this
  // protocol.
  absl::StatusOr<std::optional<StoreFrame>> TakeFrame() { return TakeStoreFrame(input_); }
  bool has_input() const { return !input_.empty(); }

  // Whether more bytes were received, and not taken, than the longest request has: a client sends its next request only
  // after a reply.
  bool holds_too_much() const;

  void Send(StoreMessage message) { output_.push_back(std::move(message)); }
  void Send(const StoreFrame& frame) { Send(MakeStoreMessage(frame)); }
  bool has_output() const { return !output_.empty(); }

  // Sends what the socket takes. Returns false if the connection has ended.
  bool Flush();

  // After Receive or Flush returned false: true if the other end does not answer, false if it is gone.
  bool is_silent() const { return is_silent_; }

 private:
  FileDescriptor socket_;
  std::string input_;
  std::deque<StoreMessage> output_;
  size_t sent_ = 0;  // bytes of output_.front()
  bool is_silent_ = false;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_STORE_CONNECTION_H_
