// SPDX-License-Identifier: Apache-2.0
//
// One mutex and one condition variable for the whole network: these are tests, with a handful of ranks. A message is
// copied when it is sent, so sends never wait.
#include "fsdp/collectives/net/thread_transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/steady_clock.h"

namespace fsdp {

class ThreadNetwork::State {
 public:
  explicit State(int size) : size(size), lost(size), queues(size * size), sent(size * size), cut(size * size) {
    std::vector<std::string> names;
    for (int r = 0; r < size; ++r) names.push_back(absl::StrCat("rank ", r));
    for (int r = 0; r < size; ++r) states.emplace_back(r, names);
  }

  // Row-major in the sender: each ordered pair has its own queue, which keeps the order of its messages.
  size_t Pair(int from, int to) const { return static_cast<size_t>(from * size + to); }

  // The network of the subgroup of these ranks: created for the first member that asks, and removed from the map after
  // the last.
  std::shared_ptr<State> Subgroup(const std::vector<int>& members) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto& [state, taken] = subgroups[members];
    if (state == nullptr) {
      state = std::make_shared<State>(static_cast<int>(members.size()));
      // A weak pointer, so that a subgroup whose members are gone is freed; Lose skips it.
      parts.emplace_back(members, state);
    }
    const std::shared_ptr<State> result = state;
    if (++taken == result->size) subgroups.erase(members);
    return result;
  }

  void Lose(int r) {
    const std::lock_guard<std::mutex> lock(mutex);
    lost[r] = true;
    for (PeerStates& of_peer : states) {
      // The rank itself does not notice, as with a real network that is cut on the way.
      if (of_peer.rank() != r) of_peer.MarkLost(r, "connection reset");
    }
    changed.notify_all();
    for (const auto& [members, weak] : parts) {
      const auto member = std::find(members.begin(), members.end(), r);
      const std::shared_ptr<State> part = weak.lock();
      if (part != nullptr && member != members.end()) part->Lose(static_cast<int>(member - members.begin()));
    }
  }

  const int size;
  mutable std::mutex mutex;  // a subgroup's is locked after its network's, never the other way round
  std::condition_variable changed;
  // All guarded by mutex. The vectors of size * size are indexed by Pair.
  std::vector<bool> lost;  // by rank
  std::vector<std::deque<std::string>> queues;
  std::vector<int64_t> sent;
  std::vector<bool> cut;
  std::vector<PeerStates> states;                                                // by rank: its view of the others
  std::map<std::vector<int>, std::pair<std::shared_ptr<State>, int>> subgroups;  // not all members have it
  std::vector<std::pair<std::vector<int>, std::weak_ptr<State>>> parts;          // all subgroups, with their members
};

class ThreadNetwork::Rank final : public Transport {
 public:
  Rank(std::shared_ptr<State> state, int rank) : state_(std::move(state)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return state_->size; }

  absl::Status Exchange(absl::Span<const Send> sends, absl::Span<const Receive> receives, const CollectiveId& what,
                        absl::Duration timeout) override {
    std::unique_lock<std::mutex> lock(state_->mutex);
    // All sends come first and never wait, so ranks that send to each other cannot deadlock.
    for (const Send& send : sends) {
      Put(send);
    }
    state_->changed.notify_all();
    const absl::Time start = SteadyNow();
    std::vector<Receive> missing(receives.begin(), receives.end());
    while (true) {
      absl::Status damage = Take(missing, what);
      if (!damage.ok() || missing.empty()) return damage;
      std::vector<int> peers;
      for (const Receive& receive : missing) peers.push_back(receive.peer);
      peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
      const absl::Status status = state_->states[rank_].Check(what, peers, SteadyNow() - start, timeout);
      if (!status.ok()) return status;
      const absl::Duration left = start + timeout - SteadyNow();
      state_->changed.wait_for(lock, absl::ToChronoNanoseconds(std::clamp(left, absl::Milliseconds(1), kSlice)));
    }
  }

  void AwaitSends() override {}

  void Tell(const Notice& notice) override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    // A lost rank's notice does not arrive, like a notice over a broken connection.
    if (state_->lost[rank_]) return;
    for (PeerStates& states : state_->states) states.RecordNotice(rank_, notice);
    state_->changed.notify_all();
  }

  absl::Status CheckNobodyGaveUp(const CollectiveId& what) const override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->states[rank_].CheckNobodyGaveUp(what);
  }

  int first_rank_to_give_up() const override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->states[rank_].first_rank_to_give_up();
  }

  absl::StatusOr<std::unique_ptr<Transport>> Split(const std::vector<int>& members, const BlobGather&) override {
    const auto mine = std::find(members.begin(), members.end(), rank_);
    return std::make_unique<Rank>(state_->Subgroup(members), static_cast<int>(mine - members.begin()));
  }

 private:
  static constexpr absl::Duration kSlice = absl::Milliseconds(50);

  void Put(const Send& send) {
    // Counted in full although it is cut: tests compare the bytes that were sent.
    if (state_->lost[rank_]) return;
    const size_t pair = state_->Pair(rank_, send.peer);
    state_->sent[pair] += send.nbytes;
    const int64_t nbytes = send.nbytes - (state_->cut[pair] ? 1 : 0);
    state_->cut[pair] = false;
    state_->queues[pair].emplace_back(reinterpret_cast<const char*>(send.data), static_cast<size_t>(nbytes));
  }

  // Takes the messages that have arrived, and leaves the others in `receives`.
  absl::Status Take(std::vector<Receive>& receives, const CollectiveId& what) {
    std::vector<Receive> missing;
    for (const Receive& receive : receives) {
      std::deque<std::string>& queue = state_->queues[state_->Pair(receive.peer, rank_)];
      if (queue.empty()) {
        missing.push_back(receive);
        continue;
      }
      const std::string message = std::move(queue.front());
      queue.pop_front();
      if (static_cast<int64_t>(message.size()) != receive.nbytes) {
        return absl::DataLossError(absl::StrCat("rank ", rank_, " of ", size(), ": ", what.ToString(), ": rank ",
                                                receive.peer, " sent ", message.size(), " bytes, wanted ",
                                                receive.nbytes));
      }
      std::memcpy(receive.data, message.data(), message.size());
    }
    receives = std::move(missing);
    return absl::OkStatus();
  }

  const std::shared_ptr<State> state_;
  const int rank_;
};

ThreadNetwork::ThreadNetwork(int size) : state_(std::make_shared<State>(size)) {}

ThreadNetwork::~ThreadNetwork() = default;

std::unique_ptr<Transport> ThreadNetwork::Join(int r) { return std::make_unique<Rank>(state_, r); }

void ThreadNetwork::Lose(int r) { state_->Lose(r); }

void ThreadNetwork::CutNextMessage(int from, int to) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->cut[state_->Pair(from, to)] = true;
}

int64_t ThreadNetwork::BytesBetweenHosts(const std::vector<int>& hosts) const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int64_t nbytes = 0;
  for (int from = 0; from < state_->size; ++from) {
    for (int to = 0; to < state_->size; ++to) {
      if (hosts[from] != hosts[to]) nbytes += state_->sent[state_->Pair(from, to)];
    }
  }
  return nbytes;
}

}  // namespace fsdp
