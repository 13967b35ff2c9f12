// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/store_connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <string_view>

#include "fsdp/collectives/job/socket.h"

namespace fsdp {

StoreMessage MakeStoreMessage(const StoreFrame& frame) {
  return std::make_shared<const std::string>(EncodeStoreFrame(frame));
}

bool StoreConnection::Receive() {
  char bytes[1 << 16];
  const ssize_t n = recv(socket_.get(), bytes, sizeof(bytes), 0);
  if (n <= 0) {
    is_silent_ = n < 0 && IsSilence(errno);
    return n < 0 && (errno == EAGAIN || errno == EINTR);
  }
  input_.append(bytes, static_cast<size_t>(n));
  return true;
}

bool StoreConnection::holds_too_much() const {
  return input_.size() > kStoreHeaderBytes + kMaxStoreKeyBytes + kMaxStoreValueBytes;
}

bool StoreConnection::Flush() {
  while (!output_.empty()) {
    const std::string_view rest = std::string_view(*output_.front()).substr(sent_);
    const ssize_t n = send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n < 0) {
      is_silent_ = IsSilence(errno);
      return errno == EAGAIN || errno == EINTR;
    }
    sent_ += static_cast<size_t>(n);
    if (sent_ == output_.front()->size()) {
      output_.pop_front();
      sent_ = 0;
    }
  }
  return true;
}

}  // namespace fsdp
