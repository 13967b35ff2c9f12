// SPDX-License-Identifier: Apache-2.0
//
// How ranks meet:
//   1. Initialise MPI, and gather all ranks' offers (offer.h). An offer's address is the rank in MPI_COMM_WORLD and its
//      size, which shows ranks that are not in one MPI job: each may be in an MPI_COMM_WORLD of one rank.
//   2. Create a communicator of them, in the order of the job, from MPI_COMM_WORLD, or from the group's if they are a
//      part of one. The program's communicators are not used, and MPI_COMM_WORLD's error handler is not changed.
//
// The messages of exchanges have tag 1, and arrive in the order in which they were sent. A notice (peer_states.h) is
// the last message of a communicator (mpi_communicator.h), received from any rank at any time.
//
// The mutex guards all but the sleeps of a wait.
#include "fsdp/collectives/mpi/mpi_transport.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/mpi/mpi_communicator.h"
#include "fsdp/collectives/mpi/mpi_functions.h"
#include "fsdp/collectives/mpi/mpi_library.h"
#include "fsdp/collectives/mpi/mpi_pauses.h"
#include "fsdp/collectives/net/offer.h"
#include "fsdp/collectives/net/peer_wait.h"

namespace fsdp {
namespace {

constexpr int kMessageTag = 1;

// How long a notice, and abandoned messages, may take.
constexpr absl::Duration kLastWords = absl::Milliseconds(200);

// How often a wait checks for other reasons to end.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(5);

// From this size on a message is long: MPI sends it in parts, and each part waits for a call of MPI.
constexpr int64_t kLongBytes = 64 << 10;

struct Message {
  int peer = 0;
  int64_t wanted = 0;  // bytes of a receive; 0 for a send
};

// Messages under way; a request that is done is FSDP_MPI_NO_REQUEST.
struct Messages {
  std::vector<MpiHandle> requests = {};
  std::vector<Message> messages = {};  // in the same order
  size_t first = 0;                    // all before this one are done
  int64_t longest = 0;                 // bytes
  std::set<int> failed = {};           // peers with a message that ended with an error

  MpiHandle* Add(const Message& message, int64_t nbytes) {
    messages.push_back(message);
    longest = std::max(longest, nbytes);
    return &requests.emplace_back(FSDP_MPI_NO_REQUEST);
  }

  // The peers of messages that are not done or have failed, each once.
  std::vector<int> Missing() const {
    std::set<int> missing = failed;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i] != FSDP_MPI_NO_REQUEST) missing.insert(messages[i].peer);
    }
    return {missing.begin(), missing.end()};
  }
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(int rank, GroupOffers offers, MpiTransportOptions options, std::unique_ptr<MpiCommunicator> communicator)
      : rank_(rank),
        options_(std::move(options)),
        creator_pid_(getpid()),
        states_(rank, std::move(offers.names)),
        communicator_(std::move(communicator)) {}
  ~MpiTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return states_.size(); }
  absl::Status Exchange(absl::Span<const Send> sends, absl::Span<const Receive> receives, const CollectiveId& what,
                        absl::Duration timeout) override;
  void AwaitSends() override;
  void Tell(const Notice& notice) override;
  absl::Status CheckNobodyGaveUp(const CollectiveId& what) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return states_.CheckNobodyGaveUp(what);
  }
  int first_rank_to_give_up() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return states_.first_rank_to_give_up();
  }
  absl::StatusOr<std::unique_ptr<Transport>> Split(const std::vector<int>& members, const BlobGather& gather) override;

 private:
  // Adds one message, in pieces if it is long.
  void Start(const Send& send, Messages& messages);
  void Start(const Receive& receive, Messages& messages);
  absl::Status AwaitAll(std::unique_lock<std::mutex>& lock, Messages& messages, const CollectiveId& what,
                        absl::Duration timeout);
  void Started(Messages& messages, int error);
  void RecordFailure(Messages& messages, const Message& message, int error);
  // Test message `i`, or the first messages until one is not done: kDataLoss for a message of another size. MPI
  // advances the others too.
  absl::Status Test(Messages& messages, size_t i, const PeerWait& wait);
  absl::Status TestFirst(Messages& messages, const PeerWait& wait);
  void ReadNotices();
  void Abandon(Messages& messages);

  const int rank_;
  const MpiTransportOptions options_;
  const int creator_pid_;  // a forked child must not call MPI

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  PeerStates states_;
  bool has_told_ = false;
  Messages abandoned_;  // from a failed Exchange; their memory is the caller's
  std::unique_ptr<MpiCommunicator> communicator_;
};

absl::Status MpiTransport::Exchange(absl::Span<const Send> sends, absl::Span<const Receive> receives,
                                    const CollectiveId& what, absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  Messages messages;
  // Receives come first, so that arriving data has a destination.
  for (const Receive& receive : receives) Start(receive, messages);
  for (const Send& send : sends) Start(send, messages);
  absl::Status status = AwaitAll(lock, messages, what, timeout);
  if (!status.ok()) Abandon(messages);
  return status;
}

void MpiTransport::Start(const Receive& receive, Messages& messages) {
  for (int64_t begin = 0; begin < receive.nbytes; begin += options_.piece_bytes) {
    const int64_t nbytes = std::min(options_.piece_bytes, receive.nbytes - begin);
    MpiHandle* const request = messages.Add({.peer = receive.peer, .wanted = nbytes}, nbytes);
    Started(messages, Mpi().receive(receive.data + begin, static_cast<int>(nbytes), receive.peer, kMessageTag,
                                    communicator_->handle(), request));
  }
}

void MpiTransport::Start(const Send& send, Messages& messages) {
  for (int64_t begin = 0; begin < send.nbytes; begin += options_.piece_bytes) {
    const int64_t nbytes = std::min(options_.piece_bytes, send.nbytes - begin);
    MpiHandle* const request = messages.Add({.peer = send.peer}, nbytes);
    Started(messages, Mpi().send(send.data + begin, static_cast<int>(nbytes), send.peer, kMessageTag,
                                 communicator_->handle(), request));
  }
}

void MpiTransport::Started(Messages& messages, int error) {
  if (error != 0) RecordFailure(messages, messages.messages.back(), error);
}

// A send to a rank that left may fail without harm: if this rank needs a message from it, the receive fails.
void MpiTransport::RecordFailure(Messages& messages, const Message& message, int error) {
  if (message.wanted == 0 && states_.has_left(message.peer)) return;
  states_.MarkLost(message.peer, MpiReason(error));
  messages.failed.insert(message.peer);
}

// All messages have to come, so it is enough to test the first unfinished one, until it is known that some are missing.
absl::Status MpiTransport::AwaitAll(std::unique_lock<std::mutex>& lock, Messages& messages, const CollectiveId& what,
                                    absl::Duration timeout) {
  PeerWait wait(states_, what, timeout, options_.watch);
  MpiPauses pauses(messages.longest >= kLongBytes);
  absl::Time next_check = SteadyNow();
  while (true) {
    const size_t first = messages.first;
    FSDP_RETURN_IF_ERROR(TestFirst(messages, wait));
    ReadNotices();
    if (messages.first == messages.requests.size() && messages.failed.empty()) return absl::OkStatus();
    if (messages.first > first) pauses.Restart();
    const absl::Duration nap = pauses.Next();
    if (nap == absl::ZeroDuration()) {
      // A peer on this host may need the core to send.
      sched_yield();
      continue;
    }
    if (SteadyNow() >= next_check) {
      // Before an error names peers, every message is tested: later ones may be done although the first is not.
      for (size_t i = messages.first; i < messages.requests.size(); ++i) {
        FSDP_RETURN_IF_ERROR(Test(messages, i, wait));
      }
      const std::vector<int> missing = messages.Missing();
      if (missing.empty()) continue;
      FSDP_RETURN_IF_ERROR(wait.Check(missing));
      next_check = SteadyNow() + kCheckInterval;
    }
    lock.unlock();
    absl::SleepFor(nap);
    lock.lock();
  }
}

absl::Status MpiTransport::TestFirst(Messages& messages, const PeerWait& wait) {
  for (; messages.first < messages.requests.size(); ++messages.first) {
    FSDP_RETURN_IF_ERROR(Test(messages, messages.first, wait));
    if (messages.requests[messages.first] != FSDP_MPI_NO_REQUEST) break;
  }
  return absl::OkStatus();
}

absl::Status MpiTransport::Test(Messages& messages, size_t i, const PeerWait& wait) {
  MpiHandle& request = messages.requests[i];
  const Message& message = messages.messages[i];
  if (request == FSDP_MPI_NO_REQUEST) return absl::OkStatus();
  MpiReceived received = {};
  const int error = Mpi().test(&request, &received);
  if (error != 0) {
    if (Mpi().is_truncation(error) != 0) {
      return wait.WrongSize(message.peer, absl::StrCat("more than ", message.wanted), message.wanted);
    }
    RecordFailure(messages, message, error);
    return absl::OkStatus();
  }
  if (request != FSDP_MPI_NO_REQUEST || message.wanted == 0) return absl::OkStatus();
  return received.nbytes == message.wanted ? absl::OkStatus()
                                           : wait.WrongSize(message.peer, received.nbytes, message.wanted);
}

void MpiTransport::ReadNotices() {
  while (const std::optional<MpiLastMessage> last = communicator_->ReceiveLast()) {
    const absl::StatusOr<Notice> notice = Notice::Parse(last->text);
    if (notice.ok()) {
      states_.RecordNotice(last->peer, *notice);
    } else {
      states_.MarkLost(last->peer, std::string(notice.status().message()));
    }
  }
}

// Receives that have not begun are cancelled. The sends continue until AwaitSends.
void MpiTransport::Abandon(Messages& messages) {
  // Unfinished operations remain, so the communicator is never freed (mpi_communicator.h).
  communicator_->Fail();
  for (size_t i = 0; i < messages.requests.size(); ++i) {
    if (messages.messages[i].wanted > 0 && messages.requests[i] != FSDP_MPI_NO_REQUEST) {
      Mpi().cancel(&messages.requests[i]);
    }
  }
  AwaitRequests(messages.requests, kLastWords);
  abandoned_ = std::move(messages);
}

void MpiTransport::AwaitSends() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (AwaitRequests(abandoned_.requests, kLastWords)) abandoned_ = {};
}

void MpiTransport::Tell(const Notice& notice) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (has_told_) return;
  has_told_ = true;
  if (notice.kind == Notice::Kind::kGaveUp) {
    states_.RecordNotice(rank_, notice);
    communicator_->Fail();
  }
  communicator_->SendLast(notice.ToBytes());
}

// A communicator ends after this rank's last message; an owner that has not sent one leaves now.
MpiTransport::~MpiTransport() {
  if (getpid() == creator_pid_ && CanCallMpi()) {
    AwaitSends();
    Tell({.kind = Notice::Kind::kLeft});
  }
  MpiCommunicator::Close(std::move(communicator_));
}

// The MPI ranks in the members' offers. kFailedPrecondition unless all are in one world, each once.
absl::StatusOr<std::vector<int>> MpiRanksOf(const std::vector<std::string>& addresses) {
  const auto size = static_cast<int>(addresses.size());
  std::vector<int> ranks;
  std::vector<int> sizes;
  for (const std::string& address : addresses) {
    const std::vector<std::string> parts = absl::StrSplit(address, " of ");
    int rank = 0;
    int world = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &rank) || !absl::SimpleAtoi(parts[1], &world)) {
      return absl::DataLossError(absl::StrCat("rank ", ranks.size(), " is not an MPI rank, or is another version"));
    }
    ranks.push_back(rank);
    sizes.push_back(world);
  }
  std::string fault;
  for (int r = 0; r < size && fault.empty(); ++r) {
    const auto twin = static_cast<int>(std::find(ranks.begin(), ranks.begin() + r, ranks[r]) - ranks.begin());
    if (sizes[r] < size) {
      fault = absl::StrCat("rank ", r, " of ", size, " is in an MPI_COMM_WORLD of ", sizes[r],
                           sizes[r] == 1 ? " rank" : " ranks", ", wanted one of at least ", size);
    } else if (sizes[r] != sizes[0]) {
      fault = absl::StrCat("rank ", r, " of ", size, " is in an MPI_COMM_WORLD of ", sizes[r],
                           " ranks, rank 0 in one of ", sizes[0]);
    } else if (twin < r) {
      fault = absl::StrCat("ranks ", twin, " and ", r, " of ", size, " are both rank ", ranks[r], " of MPI_COMM_WORLD");
    }
  }
  if (fault.empty()) return ranks;
  return absl::FailedPreconditionError(absl::StrCat(
      "backend mpi: ", fault, ": start all ranks by one launcher that belongs to the MPI of this program, ",
      MpiVersion(), ": its mpirun or mpiexec, or srun with the --mpi that it was built for"));
}

// `parent`: of a group that is split; null: MPI_COMM_WORLD. `members`: the ranks of `gather` that are the new group, in
// its order. A rank that fails still takes part in both gathers, so that no rank waits for it.
absl::StatusOr<std::unique_ptr<Transport>> Join(const MpiCommunicator* parent, const std::vector<int>& members,
                                                int rank_of_gather, const MpiTransportOptions& options,
                                                const BlobGather& gather) {
  const absl::StatusOr<MpiPlace> place = StartMpi();
  const auto make_offer = [&]() -> absl::StatusOr<Offer> {
    FSDP_RETURN_IF_ERROR(place.status());
    return Offer::Make(options.place, /*networks=*/"", absl::StrCat(place->rank, " of ", place->size));
  };
  const absl::StatusOr<Offer> mine = make_offer();
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, gather(mine.ok() ? mine->ToBlob() : ""));
  const auto parse = [&]() -> absl::StatusOr<std::pair<GroupOffers, std::vector<int>>> {
    FSDP_RETURN_IF_ERROR(mine.status());
    FSDP_ASSIGN_OR_RETURN(GroupOffers offers, ParseOffers(blobs, members));
    FSDP_ASSIGN_OR_RETURN(std::vector<int> mpi_ranks, MpiRanksOf(offers.addresses));
    return std::make_pair(std::move(offers), std::move(mpi_ranks));
  };
  absl::StatusOr<std::pair<GroupOffers, std::vector<int>>> parsed = parse();
  // From here on all members create the communicator, or none does.
  FSDP_RETURN_IF_ERROR(AllReduceStatus(gather, parsed.status()));
  auto& [offers, mpi_ranks] = *parsed;
  absl::StatusOr<std::unique_ptr<MpiCommunicator>> communicator =
      parent == nullptr ? MpiCommunicator::Create(Mpi().world(), mpi_ranks)
                        : MpiCommunicator::Create(parent->handle(), members);
  FSDP_RETURN_IF_ERROR(AllReduceStatus(gather, communicator.status()));
  const auto rank = static_cast<int>(std::find(members.begin(), members.end(), rank_of_gather) - members.begin());
  return std::make_unique<MpiTransport>(rank, std::move(offers), options, *std::move(communicator));
}

absl::StatusOr<std::unique_ptr<Transport>> MpiTransport::Split(const std::vector<int>& members,
                                                               const BlobGather& gather) {
  return Join(communicator_.get(), members, rank_, options_, gather);
}

// The longest address, including the terminating zero.
constexpr int kAddressBytes = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateMpiTransport(int rank, int size, const MpiTransportOptions& options,
                                                              const BlobGather& gather) {
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return Join(nullptr, members, rank, options, gather);
}

absl::StatusOr<std::string> AddressOverMpi(int rank, int size, const std::string& address) {
  FSDP_ASSIGN_OR_RETURN(const MpiPlace place, StartMpi());
  if (place.size != size) return MpiRanksOf(std::vector<std::string>(size, absl::StrCat("0 of ", place.size))).status();
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<MpiCommunicator> communicator, MpiCommunicator::Create(Mpi().world(), all));
  // The root is a rank of MPI, which only rank 0 of the job knows: the maximum finds it.
  const int mine = rank == 0 ? place.rank : -1;
  int root = -1;
  std::array<char, kAddressBytes> text = {};
  std::memcpy(text.data(), address.data(), std::min(address.size(), text.size() - 1));
  const MpiHandle handle = communicator->handle();
  FSDP_RETURN_IF_ERROR(MpiStatus(Mpi().max_of_all(mine, &root, handle), "MPI_Allreduce"));
  FSDP_RETURN_IF_ERROR(MpiStatus(Mpi().broadcast(text.data(), kAddressBytes, root, handle), "MPI_Bcast"));
  communicator->SendLast("");
  MpiCommunicator::Close(std::move(communicator));
  return std::string(text.data());
}

}  // namespace fsdp
