// SPDX-License-Identifier: Apache-2.0
//
// A client sends one frame and waits for one frame; there are no tags that match replies to requests. So a request that
// was abandoned at its deadline leaves the connection unusable: its late reply would be taken for the reply to the next
// request. Call then closes the socket.
//
// The server enforces the deadline of a Get: the request carries the milliseconds to wait, the server replies
// kDeadlineExceeded, and the client waits a little longer than that. The client's own deadline passes only if the
// server is stopped.
#include "fsdp/collectives/job/store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/job/store_gather.h"

namespace fsdp {
namespace {

// How late a reply may be. A working server replies within microseconds, and to a Get at the latest when its time is
// over.
constexpr absl::Duration kPatience = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Connect(FileDescriptor socket, const StoreMember& member,
                                                      absl::Time deadline) {
  if (!SameUser(socket.get())) {
    return absl::PermissionDeniedError("the store belongs to another user");
  }
  std::unique_ptr<Store> store(new Store(std::move(socket)));
  FSDP_ASSIGN_OR_RETURN(const StoreFrame reply, store->Call(member.ToFrame(static_cast<uint32_t>(StoreRequest::kHello)),
                                                            std::min(deadline, SteadyNow() + kPatience)));
  FSDP_ASSIGN_OR_RETURN(store->server_, StoreMember::FromFrame(reply));
  const StoreMember& server = store->server_;
  if (server.job == member.job) return store;
  return absl::FailedPreconditionError(
      absl::StrCat("store: this is job \"", server.job, "\" (", server.ToString(), "), not \"", member.job, "\""));
}

absl::StatusOr<StoreMember> Store::WhoServes(FileDescriptor socket, const StoreMember& asker, absl::Time deadline) {
  Store store(std::move(socket));
  StoreMember stranger = asker;
  stranger.token_digest.clear();  // any process may listen there
  FSDP_ASSIGN_OR_RETURN(const StoreFrame reply,
                        store.Call(stranger.ToFrame(static_cast<uint32_t>(StoreRequest::kWho)), deadline));
  return StoreMember::FromFrame(reply);
}

absl::Status Store::Set(const std::string& key, const std::string& value) {
  return Call({.kind = static_cast<uint32_t>(StoreRequest::kSet), .key = key, .value = value}, SteadyNow() + kPatience)
      .status();
}

// The request carries a duration and not a time, because the clocks of two processes may differ; both ends add their
// own.
absl::StatusOr<std::string> Store::Get(const std::string& key, absl::Time deadline) {
  const int64_t wait_ms = PollTimeout(deadline);
  FSDP_ASSIGN_OR_RETURN(StoreFrame reply,
                        Call({.kind = static_cast<uint32_t>(StoreRequest::kGet), .number = wait_ms, .key = key},
                             std::max(deadline, SteadyNow()) + kPatience));
  return std::move(reply.value);
}

absl::StatusOr<int64_t> Store::Add(const std::string& key, int64_t delta) {
  FSDP_ASSIGN_OR_RETURN(
      const StoreFrame reply,
      Call({.kind = static_cast<uint32_t>(StoreRequest::kAdd), .number = delta, .key = key}, SteadyNow() + kPatience));
  return reply.number;
}

absl::StatusOr<std::vector<std::string>> Store::Gather(const std::string& key, std::string_view blob,
                                                       absl::Time deadline) {
  FSDP_ASSIGN_OR_RETURN(const StoreFrame reply, Call({.kind = static_cast<uint32_t>(StoreRequest::kGather),
                                                      .number = PollTimeout(deadline),
                                                      .key = key,
                                                      .value = std::string(blob)},
                                                     std::max(deadline, SteadyNow()) + kPatience));
  return StoreGather::Decode(reply.value, server_.world_size);
}

absl::StatusOr<FileDescriptor> Store::Watch(absl::Duration interval, absl::Duration silence) {
  if (interval < absl::Milliseconds(1) || silence <= interval) {
    return absl::InvalidArgumentError(absl::StrCat("heartbeats each ", absl::FormatDuration(interval),
                                                   " and a silence of ", absl::FormatDuration(silence),
                                                   ", expected at least 1ms and a silence that is longer"));
  }
  FSDP_RETURN_IF_ERROR(Call({.kind = static_cast<uint32_t>(StoreRequest::kWatch),
                             .number = absl::ToInt64Milliseconds(interval),
                             .value = absl::StrCat(absl::ToInt64Milliseconds(silence))},
                            SteadyNow() + kPatience)
                           .status());
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::move(socket_);
}

absl::Status Store::Leave() {
  return Call({.kind = static_cast<uint32_t>(StoreRequest::kLeave)}, SteadyNow() + kPatience).status();
}

absl::StatusOr<StoreFrame> Store::Call(StoreFrame request, absl::Time deadline) {
  if (request.key.size() > kMaxStoreKeyBytes || request.value.size() > kMaxStoreValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("store key of ", request.key.size(), " bytes and value of ",
                                                   request.value.size(), ", at most ", kMaxStoreKeyBytes, " and ",
                                                   kMaxStoreValueBytes));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!socket_.ok()) {
    return absl::UnavailableError("store: the connection is broken");
  }
  absl::StatusOr<StoreFrame> reply = absl::UnknownError("not sent yet");
  if (const absl::Status sent = SendAll(socket_.get(), EncodeStoreFrame(request), deadline); sent.ok()) {
    const bool is_gather = request.kind == static_cast<uint32_t>(StoreRequest::kGather);
    reply = Receive(is_gather ? kMaxStoreGatherBytes : kMaxStoreValueBytes, deadline);
  } else {
    reply = sent;
  }
  if (!reply.ok()) {
    socket_.Close();  // a late reply would be taken for the reply to the next request
    return Annotate(reply.status(), "store");
  }
  if (reply->kind != 0) {
    return absl::Status(static_cast<absl::StatusCode>(reply->kind), absl::StrCat("store: ", reply->value));
  }
  return reply;
}

// Reads the header first: it gives the number of bytes that follow, which is checked against the limits before
// allocation.
absl::StatusOr<StoreFrame> Store::Receive(size_t max_value_bytes, absl::Time deadline) {
  std::string bytes(kStoreHeaderBytes, '\0');
  FSDP_RETURN_IF_ERROR(ReceiveAll(socket_.get(), absl::MakeSpan(bytes), deadline));
  FSDP_ASSIGN_OR_RETURN(const size_t body_bytes, StoreBodyBytes(bytes, max_value_bytes));
  bytes.resize(kStoreHeaderBytes + body_bytes);
  FSDP_RETURN_IF_ERROR(ReceiveAll(socket_.get(), absl::MakeSpan(bytes).subspan(kStoreHeaderBytes), deadline));
  FSDP_ASSIGN_OR_RETURN(std::optional<StoreFrame> frame, TakeStoreFrame(bytes, max_value_bytes));
  Check(frame.has_value(), "a frame of as many bytes as its header says is whole");
  return *std::move(frame);
}

}  // namespace fsdp
