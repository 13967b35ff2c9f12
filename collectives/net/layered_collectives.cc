// SPDX-License-Identifier: Apache-2.0
//
// H hosts with L ranks each, neighbours in rank; rank (h, l) is the l-th of host h, and a column is the ranks with one
// l. What goes between hosts stays in columns: L flows join each two hosts, and no rank is a leader.
//
//   all_gather   own shard to the column, straight into place in the output; then the ranks of each host all-gather the
//                block of each host in place. S (H-1)/H bytes come to a host, the minimum: every byte once.
//   broadcast    the root's tensor to its column, then from each of those to its host.
//
// All else is flat (net_collectives.h), and so is everything small, for which one wait for the network is less than
// several meetings, and everything where hosts have unequally many ranks or ranks that alternate. Every collective
// begins with the flat meeting, whatever its route, so errors are the same.
#include "fsdp/collectives/net/layered_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/host/shm_fabric.h"

namespace fsdp {
namespace {

// Up to here flat. Layered, each host's block is two meetings of its ranks.
constexpr int64_t kEagerBytes = 16 << 10;

// A gather over the ranks of one host: `gather` is over all ranks, `ranks` are that host's.
BlobGather GatherOn(std::vector<int> ranks, const BlobGather& gather) {
  return [ranks = std::move(ranks), gather](std::string_view blob) -> absl::StatusOr<std::vector<std::string>> {
    FSDP_ASSIGN_OR_RETURN(std::vector<std::string> all, gather(blob));
    std::vector<std::string> blobs;
    for (const int rank : ranks) blobs.push_back(std::move(all[rank]));
    return blobs;
  };
}

}  // namespace

LayeredCollectives::LayeredCollectives(std::unique_ptr<NetCollectives> net, std::unique_ptr<HostCollectives> host,
                                       HostLayout layout)
    : net_(std::move(net)), host_(std::move(host)), layout_(std::move(layout)) {}

absl::Status LayeredCollectives::Run(uint64_t sequence, const Collective& collective) {
  FSDP_RETURN_IF_ERROR(net_->Meet(sequence, collective.spec));
  if (!IsLayered(collective.spec)) {
    FSDP_RETURN_IF_ERROR(net_->Move(collective));
  } else if (collective.spec.op == CollectiveOp::kAllGather) {
    FSDP_RETURN_IF_ERROR(AllGather(sequence, collective));
  } else {
    FSDP_RETURN_IF_ERROR(Broadcast(sequence, collective));
  }
  net_->Complete();
  return absl::OkStatus();
}

bool LayeredCollectives::IsLayered(const CollectiveSpec& spec) const {
  const bool gathers = spec.op == CollectiveOp::kAllGather;
  const int64_t nbytes = (gathers ? size() : 1) * spec.count * SizeOf(spec.dtype);
  return layout_.is_regular() && (gathers || spec.op == CollectiveOp::kBroadcast) && nbytes > kEagerBytes;
}

absl::Status LayeredCollectives::AllGather(uint64_t sequence, const Collective& collective) {
  const int64_t nbytes = collective.spec.count * SizeOf(collective.spec.dtype);
  const auto shard = [&](int r) { return collective.output + r * nbytes; };
  if (collective.input != shard(rank())) {
    std::memcpy(shard(rank()), collective.input, static_cast<size_t>(nbytes));
  }
  const std::vector<int> column = layout_.Column(rank());
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int i = 1; i < layout_.hosts(); ++i) {  // from the next host on, so that all do not send to one at once
    const int peer = column[(layout_.host_of(rank()) + i) % layout_.hosts()];
    sends.push_back({peer, shard(rank()), nbytes});
    receives.push_back({peer, shard(peer), nbytes});
  }
  FSDP_RETURN_IF_ERROR(net_->Exchange(sends, receives));
  for (const int of_host : column) {
    const int first = layout_.ranks_on(layout_.host_of(of_host)).front();
    FSDP_RETURN_IF_ERROR(
        host_->Run(sequence, {.spec = collective.spec, .input = shard(of_host), .output = shard(first)}));
  }
  return absl::OkStatus();
}

absl::Status LayeredCollectives::Broadcast(uint64_t sequence, const Collective& collective) {
  const int root = collective.spec.root;
  const int64_t nbytes = collective.spec.count * SizeOf(collective.spec.dtype);
  const std::vector<int> column = layout_.Column(root);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  if (rank() == root) {
    for (const int peer : column) {
      if (peer != root) sends.push_back({peer, collective.input, nbytes});
    }
  } else if (std::find(column.begin(), column.end(), rank()) != column.end()) {
    receives.push_back({root, collective.output, nbytes});
  }
  FSDP_RETURN_IF_ERROR(net_->Exchange(sends, receives));
  Collective inside = collective;
  inside.spec.root = root % layout_.ranks_per_host();
  return host_->Run(sequence, inside);
}

// Every rank takes part in the same gathers, whatever its part looks like.
absl::StatusOr<std::unique_ptr<BlockingCollectives>> LayeredCollectives::Split(const std::vector<int>& members,
                                                                               const BlobGather& gather) {
  const HostLayout part = layout_.Part(members);
  const std::vector<int>& here = layout_.ranks_on(layout_.host_of(rank()));
  std::vector<int> of_host;  // the members on this host, as ranks of host_
  RankNames names = {.group_size = static_cast<int>(members.size())};
  for (size_t i = 0; i < members.size(); ++i) {
    const auto found = std::find(here.begin(), here.end(), members[i]);
    if (found == here.end()) continue;
    of_host.push_back(static_cast<int>(found - here.begin()));
    names.numbers.push_back(static_cast<int>(i));
  }
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<NetCollectives> net, net_->SplitNet(members, gather));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<HostCollectives> host,
                        host_->SplitHost(of_host, GatherOn(here, gather), std::move(names)));
  if (part.hosts() == 1) return host;
  if (part.hosts() == part.size()) return net;
  return std::make_unique<LayeredCollectives>(std::move(net), std::move(host), part);
}

void LayeredCollectives::GiveUp(const absl::Status& reason) {
  net_->GiveUp(reason);
  host_->GiveUp(reason);
}

void LayeredCollectives::AwaitReaders() {
  net_->AwaitReaders();
  host_->AwaitReaders();
}

void LayeredCollectives::Depart() {
  net_->Depart();
  host_->Depart();
}

absl::StatusOr<std::unique_ptr<BlockingCollectives>> CreateLayeredCollectives(std::unique_ptr<NetCollectives> net,
                                                                              const HostLayout& layout,
                                                                              const BlobGather& gather) {
  if (layout.hosts() == layout.size()) return net;
  const std::vector<int>& here = layout.ranks_on(layout.host_of(net->rank()));
  const auto local_rank = std::find(here.begin(), here.end(), net->rank()) - here.begin();
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric,
                        CreateShmFabric(static_cast<int>(local_rank), static_cast<int>(here.size()), net->device(),
                                        GatherOn(here, gather)));
  auto host = std::make_unique<HostCollectives>(std::move(fabric), net->timeout(),
                                                RankNames{.numbers = here, .group_size = layout.size()});
  return std::make_unique<LayeredCollectives>(std::move(net), std::move(host), layout);
}

}  // namespace fsdp
