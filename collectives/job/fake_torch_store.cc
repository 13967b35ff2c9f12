// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/fake_torch_store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/time/time.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/socket.h"

namespace fsdp {
namespace {

// Reads the parts of a request from its bytes. After one part is missing, all further parts are.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}

  template <typename Integer>
  Integer Number() {
    Integer number = 0;
    if (Has(sizeof(number))) {
      std::memcpy(&number, bytes_.data() + at_, sizeof(number));
      at_ += sizeof(number);
    }
    return number;
  }

  std::string Text() {
    // Compared with the rest before it is added, so a size near 2^64 cannot overflow.
    const uint64_t size = Number<uint64_t>();
    if (!Has(size)) return "";
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }

  bool is_whole() const { return is_whole_; }
  size_t at() const { return at_; }

 private:
  bool Has(uint64_t size) {
    is_whole_ = is_whole_ && size <= bytes_.size() - at_;
    return is_whole_;
  }

  const std::string& bytes_;
  size_t at_ = 0;
  bool is_whole_ = true;
};

void Send(const FileDescriptor& socket, const std::string& bytes) {
  SendAll(socket.get(), bytes, SteadyNow() + absl::Seconds(20)).IgnoreError();
}

}  // namespace

FakeTorchStore::FakeTorchStore(const std::string& host, int port)
    : listener_(ListenTcp(host, port).value()),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      // Last member: the thread uses all others.
      port_(ListeningPort(listener_.get()).value()),
      thread_([this] { Serve(); }) {}

FakeTorchStore::~FakeTorchStore() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void FakeTorchStore::Set(const std::string& key, const std::string& value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  values_[key] = value;
}

std::string FakeTorchStore::Get(const std::string& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = values_.find(key);
  return it == values_.end() ? "" : it->second;
}

void FakeTorchStore::Serve() {
  while (true) {
    // The first two entries are fixed; entry i + 2 is connection i of the list, which only this thread changes.
    std::vector<pollfd> polled = {{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                                  {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_) {
      polled.push_back({.fd = connection.socket.get(), .events = POLLIN, .revents = 0});
    }
    constexpr int kLookAtSetMs = 10;  // Set comes from another thread
    poll(polled.data(), polled.size(), kLookAtSetMs);
    if (polled[0].revents != 0) return;
    // Before accept: a connection that accept appends has no entry in `polled`.
    auto next = connections_.begin();
    for (size_t i = 2; i < polled.size(); ++i) {
      const auto connection = next++;
      if (polled[i].revents != 0 && !Read(*connection)) connections_.erase(connection);
    }
    if (polled[1].revents != 0) {
      connections_.push_back({.socket = FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC))});
    }
    AnswerWaits();
  }
}

bool FakeTorchStore::Read(Connection& connection) {
  char bytes[1 << 12];
  const ssize_t n = recv(connection.socket.get(), bytes, sizeof(bytes), 0);
  if (n <= 0) return false;
  connection.input.append(bytes, static_cast<size_t>(n));
  bool handled = true;
  // A recv may return several requests, or the beginning of one.
  while (handled) {
    if (!HandleRequest(connection, &handled)) return false;
  }
  return true;
}

bool FakeTorchStore::HandleRequest(Connection& connection, bool* handled) {
  Reader reader(connection.input);
  const uint8_t kind = reader.Number<uint8_t>();
  const bool is_validation = kind == 0 && reader.Number<uint32_t>() == 0x3C85F7CE;
  std::string key;
  std::string value;
  switch (kind) {
    case 0:
      break;
    case 1:
      key = reader.Text();
      value = reader.Text();
      break;
    case 3:
      key = reader.Text();
      break;
    case 6:
      if (reader.Number<uint64_t>() > 1) return false;  // of one key only
      key = reader.Text();
      break;
    default:
      return false;
  }
  *handled = reader.is_whole();
  if (!*handled) return true;
  // Only a whole request is removed; a partial one is parsed again from its start when more bytes arrive.
  connection.input.erase(0, reader.at());
  if (!connection.is_validated) {
    connection.is_validated = is_validation;
    return is_validation;
  }
  if (kind == 1) Set(key, value);
  if (kind == 6) connection.waits.push_back(key);
  if (kind == 3) {
    value = Get(key);
    const uint64_t size = value.size();
    Send(connection.socket, std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + value);
  }
  return true;
}

void FakeTorchStore::AnswerWaits() {
  // Called each turn, because Set may come from a test's thread, which does not wake the poll.
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Connection& connection : connections_) {
    std::vector<std::string> waits = std::exchange(connection.waits, {});
    for (std::string& key : waits) {
      if (values_.count(key) > 0) {
        Send(connection.socket, std::string(1, '\0'));
      } else {
        connection.waits.push_back(std::move(key));
      }
    }
  }
}

}  // namespace fsdp
