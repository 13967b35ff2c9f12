// SPDX-License-Identifier: Apache-2.0
//
// A message is found by its tag: | 40 bits of the nonce | 8 bits: kind | 16 bits: rank of the sender |. All 64 bits are
// compared, so a message to a worker's address from a stranger, or from a rank of another job or of an earlier group,
// does not match any receive. Messages with one tag arrive in the order in which they were sent. A message that is
// longer than kPieceBytes is sent in pieces, so that other messages can be sent in between.
//
// A rank waits by advancing the worker until there is nothing to do, and then sleeps on its descriptor. The mutex
// guards all but the sleep. A notice (peer_states.h) has its own receive, which is posted from the beginning.
#include "fsdp/collectives/net/ucx_exchange.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"

namespace fsdp {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;
// The longest sleep, after which deadlines are checked; events end it earlier.
constexpr absl::Duration kSlice = absl::Milliseconds(50);

// How often the worker is advanced between two checks of the messages, of which there may be thousands.
constexpr int kAdvances = 64;

// How long a notice, and abandoned messages, may take.
constexpr absl::Duration kLastWords = absl::Milliseconds(200);

// The longest time for connections that carry no message yet.
constexpr absl::Duration kConnecting = absl::Seconds(10);

uint64_t TagOf(const Nonce& nonce, UcxMessageKind kind, int sender) {
  uint64_t bits = 0;
  std::memcpy(&bits, nonce.data(), sizeof(bits));
  return bits << 24 | static_cast<uint64_t>(kind) << 16 | static_cast<uint64_t>(sender);
}

}  // namespace

UcxExchange::UcxExchange(int rank, const Nonce& nonce, UcxTransportOptions options, std::vector<std::string> names)
    : rank_(rank),
      nonce_(nonce),
      options_(std::move(options)),
      creator_pid_(getpid()),
      states_(rank, std::move(names)),
      notices_(static_cast<size_t>(states_.size())) {}

absl::Status UcxExchange::Connect(std::unique_ptr<UcxWorker> worker, const std::vector<std::string>& addresses) {
  worker_ = std::move(worker);
  FSDP_RETURN_IF_ERROR(
      worker_->Connect(addresses, [this](int peer, std::string_view reason) { states_.MarkLost(peer, reason); }));
  std::vector<Nonce> theirs(addresses.size());
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    IncomingNotice& notice = notices_[r];
    notice.message.peer = r;
    worker_->Receive(notice.bytes.data(), Notice::kMaxBytes, TagOf(nonce_, UcxMessageKind::kNotice, r), notice.message);
    sends.push_back({r, reinterpret_cast<const std::byte*>(nonce_.data()), sizeof(Nonce)});
    receives.push_back({r, reinterpret_cast<std::byte*>(theirs[r].data()), sizeof(Nonce)});
  }
  FSDP_RETURN_IF_ERROR(Annotate(ExchangeAs(UcxMessageKind::kHello, sends, receives,
                                           {.op = CollectiveOp::kBarrier, .sequence = 0}, options_.timeout),
                                "the first messages between the hosts"));
  for (int r = 0; r < size(); ++r) {
    if (r != rank_ && theirs[r] != nonce_) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", r, " is of another job"));
    }
  }
  // A second network's connection may be slower than the first messages.
  const std::lock_guard<std::mutex> lock(mutex_);
  ProgressUntil([&] { return !worker_->IsConnecting(); }, kConnecting);
  return absl::OkStatus();
}

absl::Status UcxExchange::ExchangeAs(UcxMessageKind kind, absl::Span<const Send> sends,
                                     absl::Span<const Receive> receives, const CollectiveId& what,
                                     absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::deque<UnderWay> messages(1);
  Start(kind, sends, receives, messages.front());
  absl::Status status = AwaitAll(lock, messages.front(), what, timeout);
  if (!status.ok()) Abandon(std::move(messages));
  return status;
}

absl::Status UcxExchange::ExchangeInSteps(const Pipeline& pipeline, const CollectiveId& what, absl::Duration timeout) {
  std::deque<UnderWay> steps;  // begun and not ended
  const auto run = [&]() -> absl::Status {
    int64_t begun = 0;
    for (int64_t step = 0; step < pipeline.steps; ++step) {
      for (; begun < std::min(pipeline.steps, step + kStepsUnderWay); ++begun) {
        FSDP_ASSIGN_OR_RETURN(const Messages messages, pipeline.begin(begun));
        // `begin` runs without the lock: it computes, and Tell must not wait for it.
        const std::lock_guard<std::mutex> lock(mutex_);
        Start(UcxMessageKind::kData, messages.sends, messages.receives, steps.emplace_back());
      }
      {
        std::unique_lock<std::mutex> lock(mutex_);
        FSDP_RETURN_IF_ERROR(AwaitAll(lock, steps.front(), what, timeout));
      }
      steps.pop_front();
      FSDP_RETURN_IF_ERROR(pipeline.end(step));
    }
    return absl::OkStatus();
  };
  absl::Status status = run();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!status.ok()) Abandon(std::move(steps));
  return status;
}

// Receives come first, so that arriving data has a destination.
void UcxExchange::Start(UcxMessageKind kind, absl::Span<const Send> sends, absl::Span<const Receive> receives,
                        UnderWay& messages) {
  for (const Receive& receive : receives) {
    for (int64_t begin = 0; begin < receive.nbytes; begin += kPieceBytes) {
      messages.push_back({.peer = receive.peer});
      worker_->Receive(receive.data + begin, std::min(kPieceBytes, receive.nbytes - begin),
                       TagOf(nonce_, kind, receive.peer), messages.back());
    }
  }
  for (const Send& send : sends) {
    for (int64_t begin = 0; begin < send.nbytes; begin += kPieceBytes) {
      messages.push_back({.peer = send.peer});
      worker_->Send(send.data + begin, std::min(kPieceBytes, send.nbytes - begin), TagOf(nonce_, kind, rank_),
                    messages.back());
    }
  }
}

absl::Status UcxExchange::AwaitAll(std::unique_lock<std::mutex>& lock, UnderWay& messages, const CollectiveId& what,
                                   absl::Duration timeout) {
  PeerWait wait(states_, what, timeout, options_.watch);
  absl::Time next_check = SteadyNow() + kSlice;
  while (true) {
    int advances = 0;
    while (advances < kAdvances && worker_->Progress()) ++advances;
    ReadNotices();
    std::vector<int> missing;
    FSDP_RETURN_IF_ERROR(Settle(messages, wait, missing));
    if (missing.empty()) return absl::OkStatus();
    // There may be more to do, so no sleep yet. Other messages must not keep a wait from its end.
    const absl::Time now = SteadyNow();
    if (advances == kAdvances && now < next_check) continue;
    next_check = now + kSlice;
    FSDP_RETURN_IF_ERROR(wait.Check(missing));
    if (advances == kAdvances) continue;
    // Arm fails if an event has arrived since the last Progress: sleeping would miss it.
    if (!worker_->Arm()) continue;
    lock.unlock();
    worker_->Await(wait.Sleep(kSlice));
    lock.lock();
  }
}

absl::Status UcxExchange::Settle(UnderWay& messages, const PeerWait& wait, std::vector<int>& missing) {
  for (UcxMessage& message : messages) {
    if (!message.done) {
      missing.push_back(message.peer);
      continue;
    }
    const bool is_receive = message.wanted > 0;
    if (message.status == UCS_ERR_MESSAGE_TRUNCATED ||
        (is_receive && message.status == UCS_OK && message.received != message.wanted)) {
      return wait.WrongSize(message.peer, message.received, static_cast<int64_t>(message.wanted));
    }
    // A send to a rank that left may fail without harm: if this rank needs a message from it, the receive fails.
    if (message.status != UCS_OK && !(states_.has_left(message.peer) && !is_receive)) {
      states_.MarkLost(message.peer, UcxReason(message.status));
      missing.push_back(message.peer);
    }
  }
  if (missing.empty()) DropDone(messages);
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return absl::OkStatus();
}

void UcxExchange::ReadNotices() {
  for (IncomingNotice& notice : notices_) {
    if (!notice.message.done || notice.is_read) continue;
    notice.is_read = true;
    Free(notice.message);
    if (notice.message.status != UCS_OK) continue;
    const absl::StatusOr<Notice> parsed =
        Notice::Parse({reinterpret_cast<const char*>(notice.bytes.data()), notice.message.received});
    if (parsed.ok()) {
      states_.RecordNotice(notice.message.peer, *parsed);
    } else {
      states_.MarkLost(notice.message.peer, std::string(parsed.status().message()));
    }
  }
}

// Receives are ended, so that the caller's memory does not change any more. Sends continue until AwaitSends, because
// their endpoints still have to carry this rank's notice.
void UcxExchange::Abandon(std::deque<UnderWay> exchanges) {
  const auto for_receives = [&](const auto& function) {
    for (UnderWay& messages : exchanges) {
      for (UcxMessage& message : messages) {
        if (message.wanted > 0 && !message.done) function(message);
      }
    }
  };
  const auto is_over = [&] {
    bool over = true;
    for_receives([&](const UcxMessage&) { over = false; });
    return over;
  };
  for_receives([&](UcxMessage& message) { worker_->Cancel(message); });
  ProgressUntil(is_over, kLastWords);
  for_receives([&](UcxMessage& message) { worker_->CloseNow(message.peer); });  // receives that ignore Cancel
  ProgressUntil(is_over, kLastWords);
  abandoned_ = std::move(exchanges);  // moves the deques, not the messages
}

void UcxExchange::AwaitSends() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const UnderWay& messages : abandoned_) {
    for (const UcxMessage& message : messages) {
      if (!message.done) worker_->CloseNow(message.peer);
    }
  }
  const auto is_over = [&] { return std::all_of(abandoned_.begin(), abandoned_.end(), AreDone); };
  ProgressUntil(is_over, kLastWords);
  // If the sender was killed in the middle of a message, nothing else ends its receive.
  if (!is_over()) EndWorker();
  for (UnderWay& messages : abandoned_) DropDone(messages);
  abandoned_.clear();
}

// Afterwards no message is under way, and no notice arrives.
void UcxExchange::EndWorker() {
  std::vector<UcxMessage*> all;
  for (UnderWay& messages : abandoned_) {
    for (UcxMessage& message : messages) all.push_back(&message);
  }
  for (UcxMessage& message : last_messages_) all.push_back(&message);
  for (IncomingNotice& notice : notices_) all.push_back(&notice.message);
  for (UcxMessage* message : all) {
    if (message->done) Free(*message);
  }
  worker_->End();
  for (UcxMessage* message : all) {
    message->request = nullptr;
    if (!message->done) message->status = UCS_ERR_CANCELED;
    message->done = true;
  }
}

void UcxExchange::Tell(const Notice& notice) {
  // Ends the sleep of a thread in AwaitAll, which then checks for notices again.
  worker_->Wake();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (has_told_) return;
  has_told_ = true;
  if (notice.kind == Notice::Kind::kGaveUp) states_.RecordNotice(rank_, notice);
  last_words_ = notice.ToBytes();
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || !states_.is_present(r)) continue;
    last_messages_.push_back({.peer = r});
    worker_->Send(reinterpret_cast<const std::byte*>(last_words_.data()), static_cast<int64_t>(last_words_.size()),
                  TagOf(nonce_, UcxMessageKind::kNotice, rank_), last_messages_.back());
  }
  ProgressUntil([&] { return AreDone(last_messages_); }, kLastWords);
}

template <typename Done>
void UcxExchange::ProgressUntil(const Done& done, absl::Duration most) {
  const absl::Time end = SteadyNow() + most;
  while (!done() && SteadyNow() < end) {
    if (!worker_->Progress() && worker_->Arm()) worker_->Await(absl::Milliseconds(5));
  }
}

bool UcxExchange::AreDone(const UnderWay& messages) {
  return std::all_of(messages.begin(), messages.end(), [](const UcxMessage& message) { return message.done; });
}

void UcxExchange::Free(UcxMessage& message) {
  if (message.request != nullptr) worker_->context()->ucp().request_free(message.request);
  message.request = nullptr;
}

void UcxExchange::DropDone(UnderWay& messages) {
  for (UcxMessage& message : messages) Free(message);
  messages.clear();
}

absl::StatusOr<std::unique_ptr<Transport>> UcxExchange::Split(const std::vector<int>& members,
                                                              const BlobGather& gather) {
  return JoinUcxGroup(worker_->context(), members, rank_, options_, gather);
}

UcxExchange::~UcxExchange() {
  if (getpid() != creator_pid_) {
    // Deliberately leaked: destroying it would close the parent's connections.
    static_cast<void>(worker_.release());
    return;
  }
  if (worker_ == nullptr) return;
  AwaitSends();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const UcxMessage& message : last_messages_) {
    if (!message.done) worker_->CloseNow(message.peer);
  }
  for (IncomingNotice& notice : notices_) {
    if (notice.message.request != nullptr) worker_->Cancel(notice.message);
  }
  const auto is_over = [&] {
    return AreDone(last_messages_) && std::all_of(notices_.begin(), notices_.end(), [](const IncomingNotice& notice) {
             return notice.message.request == nullptr || notice.message.done;
           });
  };
  ProgressUntil(is_over, kLastWords);
  if (!is_over()) EndWorker();
  DropDone(last_messages_);
  for (IncomingNotice& notice : notices_) Free(notice.message);
  worker_.reset();
}

}  // namespace fsdp
