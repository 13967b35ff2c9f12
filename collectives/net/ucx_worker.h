// SPDX-License-Identifier: Apache-2.0
//
// UcxWorker: a UCP worker with its endpoints, and tagged messages through them; owns UCP's handles. ucx_transport.h
// decides what to send and when to give up. Not thread-safe, except Await and Wake.
#ifndef FSDP_COLLECTIVES_NET_UCX_WORKER_H_
#define FSDP_COLLECTIVES_NET_UCX_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/net/ucx_library.h"
#include "fsdp/collectives/net/worker_ports.h"

namespace fsdp {

// The UCP state of this process; workers share one.
class UcxContext {
 public:
  // `interface`: the one to use if TCP is the only network, unless UCX_NET_DEVICES is set; empty: all interfaces.
  static absl::StatusOr<std::shared_ptr<UcxContext>> Create(const std::string& interface);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  const UcpFunctions& ucp() const { return *ucp_; }
  ucp_context_h handle() const { return handle_; }
  const std::string& networks() const { return networks_; }  // "eth0 10.77.0.1"; for messages

 private:
  UcxContext(const UcpFunctions* ucp, ucp_context_h handle, std::string networks)
      : ucp_(ucp), handle_(handle), networks_(std::move(networks)) {}

  const UcpFunctions* const ucp_;
  const ucp_context_h handle_;
  const std::string networks_;
};

// A message under way. Must not move until `done`, because UCX writes into it. A failed message is done too.
struct UcxMessage {
  int peer = 0;
  void* request = nullptr;
  bool done = false;
  ucs_status_t status = UCS_OK;  // when done
  size_t received = 0;           // bytes, of a receive that is done
  size_t wanted = 0;             // bytes, of a receive
};

// "connection reset by the peer (UCX status -25)"
std::string UcxReason(ucs_status_t status);

class UcxWorker {
 public:
  // Called from Progress, once for each endpoint that breaks.
  using OnBroken = std::function<void(int peer, std::string_view reason)>;

  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(std::shared_ptr<UcxContext> context);

  // Closes all open endpoints, which takes a second at most if peers do not answer. No message may be under way, unless
  // End was called.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const std::shared_ptr<UcxContext>& context() const { return context_; }
  const std::string& address() const { return address_; }  // opaque bytes

  // Creates endpoints 0, 1, ... to the workers with these addresses, and none for an empty address. Does not wait.
  absl::Status Connect(const std::vector<std::string>& addresses, OnBroken on_broken);

  // When no rank IsConnecting any more, each closes its ports, and the connections that strangers made before
  // (worker_ports.h). Advances the worker, a second at most.
  bool IsConnecting() const { return ports_.IsConnecting(peers_); }
  void ClosePorts();

  // Start a message. `data` is read or written, and `message` written, until message.done.
  void Send(const std::byte* data, int64_t nbytes, uint64_t tag, UcxMessage& message);
  void Receive(std::byte* data, int64_t nbytes, uint64_t tag, UcxMessage& message);

  // Advances all messages; false if there was nothing to do.
  bool Progress() { return worker_ != nullptr && context_->ucp().worker_progress(worker_) != 0; }

  // True if the caller may sleep in Await until there is something to do.
  bool Arm() { return worker_ == nullptr || context_->ucp().worker_arm(worker_) == UCS_OK; }

  // Sleeps until there is something to do, Wake is called, or `most` is over. Call it without the lock that guards the
  // rest.
  void Await(absl::Duration most) const;
  void Wake() const;

  // Requests that a receive end now. It ends in Progress.
  void Cancel(UcxMessage& message);

  // Breaks the endpoint off, which ends sends to it, but not a receive of which a part has arrived.
  void CloseNow(int peer);

  // Breaks everything off, including connections that peers have made: no memory is read or written any more.
  // Unfinished messages will never be done, and all requests are gone: do not free them. Later sends fail as not
  // connected, and there is nothing to do.
  void End();

 private:
  struct Endpoint {
    UcxWorker* worker = nullptr;
    int peer = 0;
    ucp_ep_h handle = nullptr;
    bool broken = false;
  };

  UcxWorker(std::shared_ptr<UcxContext> context, ucp_worker_h worker, WorkerPorts ports, int wake_fd);
  static void Broke(void* endpoint, ucp_ep_h handle, ucs_status_t status);
  absl::Status Open();
  // Closes all open endpoints and destroys the worker.
  void CloseAll();
  // Starts to close; null if it is closed already.
  void* Close(Endpoint& endpoint, bool at_once);

  const std::shared_ptr<UcxContext> context_;
  ucp_worker_h worker_;  // null after End
  WorkerPorts ports_;
  const int wake_fd_;  // an eventfd
  int event_fd_ = -1;  // UCX's, readable when an armed worker has something to do
  std::string address_;
  std::vector<std::string> peers_;  // their addresses
  OnBroken on_broken_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;  // by peer
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_UCX_WORKER_H_
