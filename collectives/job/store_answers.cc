// SPDX-License-Identifier: Apache-2.0
//
// What StoreServer answers to each request. A Get whose key is not set, and a gather that lacks blobs, wait.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/job/store_server.h"

namespace fsdp {
namespace {

// Bounds the silence that a client may request with kWatch.
constexpr int64_t kMaxSilenceMs = 24 * 60 * 60 * 1000;

StoreFrame Error(absl::StatusCode code, std::string message) {
  return {.kind = static_cast<uint32_t>(code), .value = std::move(message)};
}

StoreFrame Error(const absl::Status& status) { return Error(status.code(), std::string(status.message())); }

}  // namespace

bool StoreServer::StartWait(Connection& connection, const StoreFrame& request) {
  const bool is_gather = request.kind == static_cast<uint32_t>(StoreRequest::kGather);
  if (connection.rank < 0 || (!is_gather && request.kind != static_cast<uint32_t>(StoreRequest::kGet))) {
    return false;
  }
  if (is_gather) {
    if (const absl::Status added = contents_.AddBlob(request.key, connection.rank, request.value); !added.ok()) {
      connection.stream.Send(Error(added));
      return true;
    }
  }
  const absl::Time deadline =
      request.number < 0 ? absl::InfiniteFuture() : SteadyNow() + absl::Milliseconds(request.number);
  connection.wait = {.is_gather = is_gather, .key = request.key, .deadline = deadline};
  return true;
}

StoreFrame StoreServer::Answer(Connection& connection, const StoreFrame& request) {
  if (request.kind == static_cast<uint32_t>(StoreRequest::kHello)) {
    return AnswerHello(connection, request);
  }
  if (request.kind == static_cast<uint32_t>(StoreRequest::kWho)) {
    return Introduction();
  }
  if (connection.rank < 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "the first request must be a hello");
  }
  switch (static_cast<StoreRequest>(request.kind)) {
    case StoreRequest::kSet:
      return AnswerSet(request);
    case StoreRequest::kAdd:
      return AnswerAdd(request);
    case StoreRequest::kLeave:
      return AnswerLeave(connection);
    case StoreRequest::kWatch:
      return AnswerWatch(connection, request);
    default:
      return Error(absl::StatusCode::kInvalidArgument, absl::StrCat("unknown request ", request.kind));
  }
}

// The job's name is compared first: a client that reaches the port of another job must learn that, and not that its
// world size is wrong.
StoreFrame StoreServer::AnswerHello(Connection& connection, const StoreFrame& request) {
  const absl::StatusOr<StoreMember> client = StoreMember::FromFrame(request);
  if (!client.ok()) {
    return Error(client.status());
  }
  if (client->job != self_.job) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 absl::StrCat("this is job \"", self_.job, "\" (", self_.ToString(), "), not \"", client->job, "\""));
  }
  if (client->token_digest != self_.token_digest) {
    return Error(absl::StatusCode::kUnauthenticated,
                 absl::StrCat(client->ToString(), " has ", client->token_digest.empty() ? "no" : "another",
                              " FSDP_JOB_TOKEN, unlike ", self_.ToString()));
  }
  if (client->world_size != self_.world_size) {
    return Error(absl::StatusCode::kInvalidArgument, absl::StrCat("rank 0 has world size ", self_.world_size, ", rank ",
                                                                  client->rank, " has ", client->world_size));
  }
  if (client->rank >= self_.world_size || connection.rank >= 0) {
    return Error(absl::StatusCode::kFailedPrecondition, absl::StrCat("rank ", client->rank, " is not expected"));
  }
  std::optional<StoreMember>& seen = seen_ranks_[client->rank];
  if (seen.has_value()) {
    // The same process connects again if it forms a new group before rank 0 has closed this store.
    return Error(
        seen->IsSameProcess(*client) ? absl::StatusCode::kUnavailable : absl::StatusCode::kAlreadyExists,
        absl::StrCat("rank ", client->rank, " is here already: ", seen->ToString(), ", and not ", client->ToString()));
  }
  connection.rank = client->rank;
  seen = *client;
  roster_.Join(*client);
  const std::lock_guard<std::mutex> lock(mutex_);
  ++seen_;
  return Introduction();
}

StoreFrame StoreServer::Introduction() const {
  StoreMember self = self_;
  self.token_digest.clear();
  return self.ToFrame(/*kind=*/0);
}

StoreFrame StoreServer::AnswerSet(const StoreFrame& request) {
  const absl::Status set = contents_.Set(request.key, request.value);
  return set.ok() ? StoreFrame() : Error(set);
}

StoreFrame StoreServer::AnswerAdd(const StoreFrame& request) {
  const absl::StatusOr<int64_t> sum = contents_.Add(request.key, request.number);
  return sum.ok() ? StoreFrame{.number = *sum} : Error(sum.status());
}

StoreFrame StoreServer::AnswerLeave(Connection& connection) {
  if (!connection.has_left) {
    connection.has_left = true;
    roster_.Leave(connection.rank);
    self_has_left_ |= connection.rank == self_.rank;
    const std::lock_guard<std::mutex> lock(mutex_);
    ++left_;
    changed_.notify_all();
  }
  return {};
}

StoreFrame StoreServer::AnswerWatch(Connection& connection, const StoreFrame& request) {
  int64_t silence_ms = 0;
  if (!absl::SimpleAtoi(request.value, &silence_ms) || request.number < 1 || silence_ms <= request.number ||
      silence_ms > kMaxSilenceMs) {
    return Error(absl::StatusCode::kInvalidArgument, "a watch needs an interval, and a silence that is longer");
  }
  const absl::Time now = SteadyNow();
  const absl::Duration silence = absl::Milliseconds(silence_ms);
  connection.interval = absl::Milliseconds(request.number);
  connection.next_beat = now + connection.interval;
  shortest_silence_ = std::min(shortest_silence_, silence);
  roster_.Watch(connection.rank, connection.interval, silence, now);
  return {};
}

// Answers the waits that are over. Returns true if requests that had queued up behind them were handled: those may end
// waits that this pass has already checked.
bool StoreServer::AnswerWaits() {
  bool more = false;
  for (auto next = connections_.begin(); next != connections_.end();) {
    const auto connection = next++;
    StoreMessage reply = ReplyToWait(*connection);
    if (reply == nullptr) {
      continue;
    }
    connection->wait.reset();
    connection->stream.Send(std::move(reply));
    more |= connection->stream.has_input();
    if (!HandleInput(*connection)) {
      Drop(connection);
    }
  }
  return more;
}

StoreMessage StoreServer::ReplyToWait(const Connection& connection) {
  if (!connection.wait.has_value()) {
    return nullptr;
  }
  const Wait& wait = *connection.wait;
  if (StoreMessage reply = wait.is_gather ? contents_.Blobs(wait.key) : contents_.Value(wait.key); reply != nullptr) {
    return reply;
  }
  const auto error = [](absl::StatusCode code, std::string message) {
    return MakeStoreMessage(Error(code, std::move(message)));
  };
  if (const int gone = GoneRank(); gone >= 0) {
    return error(absl::StatusCode::kUnavailable, absl::StrCat("rank ", gone, " of ", self_.world_size, " has gone"));
  }
  if (SteadyNow() < wait.deadline) {
    return nullptr;
  }
  return error(absl::StatusCode::kDeadlineExceeded,
               wait.is_gather ? absl::StrCat("missing ranks: ", absl::StrJoin(contents_.MissingRanks(wait.key), ", "))
                              : absl::StrCat("\"", wait.key, "\" is not set"));
}

}  // namespace fsdp
