// SPDX-License-Identifier: Apache-2.0
//
// Settings, found by measuring, unless the environment has them (UCX_NET_DEVICES, UCX_RNDV_THRESH, UCX_TLS):
//   - If TCP is the only network, one interface: UCX listens at a port of each interface that it may use, including
//     loopback, and prefers any that it considers fast, such as a bridge of containers that leads to no other host.
//   - If TCP is the only network, no rendezvous: its control messages queue behind the bulk of the other direction, and
//     an exchange of 16 MiB takes 76 ms instead of 36.
//   - No shared memory between the processes of a host. They have backend shm, which leaves no files behind when a
//     process is killed. TCP notices a death immediately, UCX's shared memory after many seconds.
#include "fsdp/collectives/net/ucx_worker.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/net/network_interfaces.h"

namespace fsdp {
namespace {

// The longest time that closing waits for peers to take the data that was sent to them.
constexpr absl::Duration kClosing = absl::Seconds(1);

// Calls of Progress after which UCX has accepted the connections that it was given.
constexpr int kAccepts = 64;

absl::Status ToStatus(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("UCX: ", std::string(what), ": ", UcxReason(status)));
}

bool HasRdma() {
  std::error_code error;
  return !std::filesystem::is_empty("/sys/class/infiniband", error) && !error;
}

void ModifyUnlessSet(const UcpFunctions& ucp, ucp_config_t* config, const std::string& name, const char* value) {
  // Not setenv: the setting is for our context only, not for another user of UCX in this process.
  if (getenv(absl::StrCat("UCX_", name).c_str()) == nullptr) ucp.config_modify(config, name.c_str(), value);
}

void SendDone(void*, ucs_status_t status, void* user_data) {
  auto& message = *static_cast<UcxMessage*>(user_data);
  message.done = true;
  message.status = status;
}

void ReceiveDone(void*, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user_data) {
  auto& message = *static_cast<UcxMessage*>(user_data);
  message.done = true;
  message.status = status;
  message.received = status == UCS_OK ? info->length : 0;
}

}  // namespace

// The statuses with which a broken network ends; ucs_status_string is in libucs, whose ABI changes.
std::string UcxReason(ucs_status_t status) {
  const auto text = [&] {
    switch (status) {
      case UCS_ERR_CONNECTION_RESET:
        return "connection reset by the peer";
      case UCS_ERR_ENDPOINT_TIMEOUT:
        return "the peer does not answer";
      case UCS_ERR_UNREACHABLE:
        return "no network of UCX_NET_DEVICES and UCX_TLS reaches the peer";
      case UCS_ERR_NO_DEVICE:
        return "no network device of UCX_NET_DEVICES";
      case UCS_ERR_NOT_CONNECTED:
        return "not connected";
      case UCS_ERR_CANCELED:
        return "cancelled";
      case UCS_ERR_NO_MEMORY:
        return "out of memory";
      default:
        return "failed";
    }
  }();
  return absl::StrCat(text, " (UCX status ", static_cast<int>(status), ")");
}

absl::StatusOr<std::shared_ptr<UcxContext>> UcxContext::Create(const std::string& interface) {
  FSDP_ASSIGN_OR_RETURN(const UcpFunctions* ucp, LoadUcp());
  ucp_config_t* config = nullptr;
  FSDP_RETURN_IF_ERROR(ToStatus(ucp->config_read(nullptr, nullptr, &config), "ucp_config_read"));
  const bool tcp_alone = !HasRdma();
  if (tcp_alone) ModifyUnlessSet(*ucp, config, "RNDV_THRESH", "inf");
  if (tcp_alone && !interface.empty()) ModifyUnlessSet(*ucp, config, "NET_DEVICES", interface.c_str());
  ModifyUnlessSet(*ucp, config, "TLS", "^sm");
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  // WAKEUP gives the worker a descriptor, on which Await sleeps.
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  ucp_context_h handle = nullptr;
  const ucs_status_t status = ucp->init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &handle);
  ucp->config_release(config);
  FSDP_RETURN_IF_ERROR(ToStatus(status, "ucp_init"));
  const char* const chosen = getenv("UCX_NET_DEVICES");
  return std::shared_ptr<UcxContext>(
      new UcxContext(ucp, handle, DescribeNetworks(chosen != nullptr ? chosen : tcp_alone ? interface : "")));
}

UcxContext::~UcxContext() { ucp_->cleanup(handle_); }

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(std::shared_ptr<UcxContext> context) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // several threads, one at a time
  // One at a time, so that no other worker's ports count as those of this one.
  static std::mutex creating;
  const std::lock_guard<std::mutex> lock(creating);
  WorkerPorts ports;
  ucp_worker_h handle = nullptr;
  FSDP_RETURN_IF_ERROR(
      ToStatus(context->ucp().worker_create(context->handle(), &params, &handle), "ucp_worker_create"));
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::unique_ptr<UcxWorker> worker(new UcxWorker(std::move(context), handle, std::move(ports), wake_fd));
  FSDP_RETURN_IF_ERROR(worker->Open());
  return worker;
}

UcxWorker::UcxWorker(std::shared_ptr<UcxContext> context, ucp_worker_h worker, WorkerPorts ports, int wake_fd)
    : context_(std::move(context)), worker_(worker), ports_(std::move(ports)), wake_fd_(wake_fd) {}

absl::Status UcxWorker::Open() {
  if (wake_fd_ < 0) return absl::ResourceExhaustedError("no descriptor is left for an eventfd");
  FSDP_RETURN_IF_ERROR(ToStatus(context_->ucp().worker_get_efd(worker_, &event_fd_), "ucp_worker_get_efd"));
  ucp_address_t* address = nullptr;
  size_t length = 0;
  FSDP_RETURN_IF_ERROR(
      ToStatus(context_->ucp().worker_get_address(worker_, &address, &length), "ucp_worker_get_address"));
  address_.assign(reinterpret_cast<const char*>(address), length);
  context_->ucp().worker_release_address(worker_, address);
  ports_.Find(address_);
  return absl::OkStatus();
}

UcxWorker::~UcxWorker() {
  CloseAll();
  if (wake_fd_ >= 0) close(wake_fd_);
}

void UcxWorker::CloseAll() {
  if (worker_ == nullptr) return;
  std::vector<void*> closing;
  for (const auto& endpoint : endpoints_) {
    // A broken endpoint is closed by force: flushing it would wait for a peer that does not answer.
    void* const request = Close(*endpoint, endpoint->broken);
    if (request != nullptr) closing.push_back(request);
  }
  const absl::Time end = SteadyNow() + kClosing;
  for (void* request : closing) {
    while (context_->ucp().request_check_status(request) == UCS_INPROGRESS && SteadyNow() < end) {
      if (!Progress() && Arm()) Await(absl::Milliseconds(10));
    }
    // A request that is still in progress at the deadline may be freed: UCP then completes it without us.
    context_->ucp().request_free(request);
  }
  context_->ucp().worker_destroy(worker_);
  worker_ = nullptr;
}

void UcxWorker::End() {
  // Forced, because a flush could wait for the message that made End necessary.
  for (const auto& endpoint : endpoints_) CloseNow(endpoint->peer);
  CloseAll();
  event_fd_ = -1;  // was the worker's
}

absl::Status UcxWorker::Connect(const std::vector<std::string>& addresses, OnBroken on_broken) {
  // By peer, so there is also an entry, without a handle, for this rank.
  on_broken_ = std::move(on_broken);
  peers_ = addresses;
  for (size_t peer = 0; peer < addresses.size(); ++peer) {
    endpoints_.push_back(std::make_unique<Endpoint>(Endpoint{.worker = this, .peer = static_cast<int>(peer)}));
    if (addresses[peer].empty()) continue;
    ucp_ep_params_t params = {};
    params.field_mask =
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(addresses[peer].data());
    // PEER mode makes UCP report a dead peer through Broke, instead of leaving requests in progress.
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {.cb = Broke, .arg = endpoints_.back().get()};
    FSDP_RETURN_IF_ERROR(ToStatus(context_->ucp().ep_create(worker_, &params, &endpoints_.back()->handle),
                                  absl::StrCat("an endpoint to rank ", peer)));
  }
  return absl::OkStatus();
}

void UcxWorker::Broke(void* endpoint, ucp_ep_h, ucs_status_t status) {
  auto& broken = *static_cast<Endpoint*>(endpoint);
  broken.broken = true;
  broken.worker->on_broken_(broken.peer, UcxReason(status));
}

void UcxWorker::ClosePorts() {
  ports_.StopAccepting();
  // UCX's thread notes connections that it finds while another thread uses the worker; Progress accepts them.
  for (int i = 0; i < kAccepts; ++i) Progress();
  ports_.Close();
  const absl::Time end = SteadyNow() + kClosing;
  while (ports_.DropSilent() > 0 && SteadyNow() < end) {
    if (!Progress() && Arm()) Await(absl::Milliseconds(5));
  }
  ports_.FreeReserve();
}

void UcxWorker::Send(const std::byte* data, int64_t nbytes, uint64_t tag, UcxMessage& message) {
  const Endpoint& endpoint = *endpoints_[message.peer];
  if (worker_ == nullptr || endpoint.handle == nullptr) {
    SendDone(nullptr, UCS_ERR_NOT_CONNECTED, &message);
    return;
  }
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = SendDone;
  params.user_data = &message;
  message.request = context_->ucp().tag_send_nbx(endpoint.handle, data, static_cast<size_t>(nbytes), tag, &params);
  if (UCS_PTR_IS_PTR(message.request)) return;
  SendDone(nullptr, UCS_PTR_STATUS(message.request), &message);  // done already, or an error
  message.request = nullptr;
}

void UcxWorker::Receive(std::byte* data, int64_t nbytes, uint64_t tag, UcxMessage& message) {
  message.wanted = static_cast<size_t>(nbytes);
  if (worker_ == nullptr) {
    message.done = true;
    message.status = UCS_ERR_NOT_CONNECTED;
    return;
  }
  ucp_request_param_t params = {};
  // No immediate completion: only the callback receives the number of bytes.
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv = ReceiveDone;
  params.user_data = &message;
  message.request =
      context_->ucp().tag_recv_nbx(worker_, data, static_cast<size_t>(nbytes), tag, ~uint64_t{0}, &params);
  if (UCS_PTR_IS_PTR(message.request)) return;
  message.done = true;
  message.status = UCS_PTR_STATUS(message.request);
  message.request = nullptr;
}

void UcxWorker::Await(absl::Duration most) const {
  pollfd fds[] = {{.fd = event_fd_, .events = POLLIN, .revents = 0}, {.fd = wake_fd_, .events = POLLIN, .revents = 0}};
  if (poll(fds, 2, static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(most), 1))) > 0 &&
      (fds[1].revents & POLLIN) != 0) {
    // Resets the eventfd; the number of wakes does not matter.
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t cleared = read(wake_fd_, &count, sizeof(count));
  }
}

void UcxWorker::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));  // fails only if it is readable anyway
}

void UcxWorker::Cancel(UcxMessage& message) {
  if (!message.done && worker_ != nullptr) context_->ucp().request_cancel(worker_, message.request);
}

void UcxWorker::CloseNow(int peer) {
  void* const request = Close(*endpoints_[peer], true);
  if (request != nullptr) context_->ucp().request_free(request);
}

void* UcxWorker::Close(Endpoint& endpoint, bool at_once) {
  if (endpoint.handle == nullptr) return nullptr;
  // Without FORCE, closing flushes: data that was sent still reaches the peer.
  // FORCE drops unsent data and does not wait for the peer.
  ucp_request_param_t params = {};
  if (at_once) {
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  }
  void* const request = context_->ucp().ep_close_nbx(endpoint.handle, &params);
  endpoint.handle = nullptr;
  return UCS_PTR_IS_PTR(request) ? request : nullptr;
}

}  // namespace fsdp
