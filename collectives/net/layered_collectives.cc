// SPDX-License-Identifier: Apache-2.0
//
// H hosts with L consecutive ranks each; rank (h, l) is the l-th of host h, and a column is the ranks with one l.
// Traffic between hosts stays in columns: L flows join each two hosts, and no rank is a leader.
//
//   all_gather   own shard to the column, straight into place in the output; then the ranks of each host all-gather the
//                block of each host in place. S (H-1)/H bytes come to a host, the minimum: every byte once. In pieces,
//                so that the ranks of a host copy one while the next ones arrive.
//   broadcast    the root's tensor to its column, then from each rank of the column to its host.
//   reduce_scatter, if reduction_route.h selects chain or mixed: for the block of slices of each host, rank (0, l) adds
//                the l-th slices of host 0's ranks in order and sends the sum to (1, l), which adds its host's to it,
//                and so on; the last host divides and rounds, and sends the result to its owner.
//   all_reduce   a chain of n equal slices, if that is the route, then an all_gather of them; the remainder of the
//                division by n is less than n elements, and flat.
//
// A chain is a pipeline: its items are pieces of blocks, and in step s host h adds item s - 2h. A step is that sum, and
// then an exchange of the column, which ends while the host adds in the next step (Pipeline of transport.h): the sum
// goes to the next host, which adds to it two steps later; a result goes from the last host to its owner.
//
//   step         0   1   2   3   4   ...
//   host 0     add0 add1 add2 add3 add4
//   host 1               add0 add1 add2
//   host 2                         add0      -> results to the owners of items 0, 1, 2
//
// On the mixed route of two hosts, every rank of host 1 sends rows of the first elements of host 0's slices directly to
// their owners, which add them to the rows of host 0. The chain begins with the other elements of these slices, whose
// results are sent back. The slices of host 1 follow, whose results stay there, with a direct piece next to each item.
// So a step sends about as much in one direction as in the other.
//
// Every collective begins with a meeting of columns (column_meeting.h), which moves the data too if they are small. All
// other cases are flat (net_collectives.h). If hosts have different numbers of ranks or ranks that alternate,
// everything is flat, including the meeting.
#include "fsdp/collectives/net/layered_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/host/reduce_rows.h"
#include "fsdp/collectives/host/shm_fabric.h"
#include "fsdp/collectives/net/chain_plan.h"
#include "fsdp/collectives/net/meeting.h"

namespace fsdp {
namespace {

// The bytes of a rank's shard that an all_gather sends at a time. Large enough that two meetings of the host's ranks
// cost little compared with its transfer, small enough that little is left to copy when the last piece has arrived.
constexpr int64_t kGatherBytes = 4 << 20;

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
                                       HostLayout layout, std::optional<ReductionRoute> route)
    : net_(std::move(net)), host_(std::move(host)), layout_(std::move(layout)), route_(route) {
  if (layout_.is_regular()) meeting_.emplace(*net_, *host_, layout_);
}

absl::Status LayeredCollectives::Run(uint64_t sequence, const Collective& collective) {
  if (!meeting_) return net_->Run(sequence, collective);
  if (meeting_->IsSmall(collective.spec)) {
    FSDP_RETURN_IF_ERROR(meeting_->RunSmall(sequence, collective));
  } else {
    FSDP_RETURN_IF_ERROR(meeting_->Meet(sequence, collective.spec));
    FSDP_RETURN_IF_ERROR(IsLayered(collective.spec) ? MoveLayered(sequence, collective) : net_->Move(collective));
  }
  net_->Complete();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> LayeredCollectives::AllGatherObject(uint64_t sequence, std::string_view blob) {
  if (!meeting_) return net_->AllGatherObject(sequence, blob);
  const CollectiveSpec spec = {.op = CollectiveOp::kAllGatherObject, .count = static_cast<int64_t>(blob.size())};
  FSDP_RETURN_IF_ERROR(meeting_->Meet(sequence, spec));
  return net_->MoveBlobs(blob);
}

bool LayeredCollectives::IsLayered(const CollectiveSpec& spec) const {
  const int64_t nbytes = spec.count * SizeOf(spec.dtype);
  const auto has_chain = [&] { return RouteOf(spec.dtype) != ReductionRoute::kFlat; };
  switch (spec.op) {
    case CollectiveOp::kAllGather:
      return nbytes * size() > kEagerBytes;
    case CollectiveOp::kBroadcast:
      return nbytes > kEagerBytes;
    case CollectiveOp::kReduceScatter:
      return nbytes * size() > kEagerBytes && has_chain();
    case CollectiveOp::kAllReduce:
      return nbytes > kEagerBytes && spec.count >= size() && has_chain();  // a slice has at least one element
    default:
      return false;
  }
}

ReductionRoute LayeredCollectives::RouteOf(DType dtype) const {
  return route_.value_or(ChooseReductionRoute(layout_.hosts(), layout_.ranks_per_host(), dtype));
}

absl::Status LayeredCollectives::MoveLayered(uint64_t sequence, const Collective& collective) {
  switch (collective.spec.op) {
    case CollectiveOp::kAllGather:
      return AllGather(sequence, collective);
    case CollectiveOp::kBroadcast:
      return Broadcast(sequence, collective);
    case CollectiveOp::kReduceScatter:
      return ReduceScatter(sequence, collective);
    default:
      return AllReduce(sequence, collective);
  }
}

absl::Status LayeredCollectives::AllGather(uint64_t sequence, const Collective& collective) {
  const int64_t nbytes = collective.spec.count * SizeOf(collective.spec.dtype);
  const auto shard = [&](int r) { return collective.output + r * nbytes; };
  if (collective.input != shard(rank())) {
    std::memcpy(shard(rank()), collective.input, static_cast<size_t>(nbytes));
  }
  const std::vector<int> column = layout_.Column(rank());
  const int64_t width = SizeOf(collective.spec.dtype);
  const int64_t piece = kGatherBytes / width;
  const auto count = [&](int64_t step) { return std::min(piece, collective.spec.count - step * piece); };
  const auto begin = [&](int64_t step) {
    Messages messages;
    const int64_t offset = step * piece * width;
    for (int i = 1; i < layout_.hosts(); ++i) {  // not all send to one at a time
      const int peer = column[(layout_.host_of(rank()) + i) % layout_.hosts()];
      messages.sends.push_back({peer, shard(rank()) + offset, count(step) * width});
      messages.receives.push_back({peer, shard(peer) + offset, count(step) * width});
    }
    return messages;
  };
  const auto end = [&](int64_t step) -> absl::Status {
    for (const int of_host : column) {
      const int first = layout_.ranks_on(layout_.host_of(of_host)).front();
      FSDP_RETURN_IF_ERROR(host_->RunPart(sequence,
                                          {.spec = collective.spec, .input = shard(of_host), .output = shard(first)},
                                          step * piece, count(step)));
    }
    return absl::OkStatus();
  };
  return net_->ExchangeInSteps({.steps = (collective.spec.count + piece - 1) / piece, .begin = begin, .end = end});
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

// A step, with its half of sum_before_ and sum_: the item that this host adds, the item that the host before has added
// and sends for the step after the next, the item that the last host has added and therefore sends to its owner, and a
// direct piece of the slices of host 0 with its half of direct_.
struct LayeredCollectives::ChainStep {
  std::byte* sum_before = nullptr;
  std::byte* sum = nullptr;
  ChainItem added;
  ChainItem next;
  ChainItem finished;
  ChainItem direct;
  std::byte* direct_rows = nullptr;  // from host 1's ranks, in their order
};

absl::Status LayeredCollectives::ReduceScatter(uint64_t sequence, const Collective& collective) {
  const CollectiveSpec& spec = collective.spec;
  const int host = layout_.host_of(rank());
  const int last = layout_.hosts() - 1;
  const bool is_mixed = RouteOf(spec.dtype) == ReductionRoute::kMixed;
  const ChainPlan plan(spec, layout_.hosts(),
                       is_mixed ? DirectCount(layout_.hosts(), layout_.ranks_per_host(), spec.dtype, spec.count) : 0);
  const int64_t direct_bytes = plan.piece * SizeOf(spec.dtype) * layout_.ranks_per_host();
  sum_before_.resize(kStepsUnderWay * kChainItemBytes);
  sum_.resize(kStepsUnderWay * kChainItemBytes);
  direct_.resize(kStepsUnderWay * direct_bytes);
  const auto added_by = [&](int64_t step, int of) { return plan.ItemAt(step - kStepsUnderWay * of); };
  const auto step_at = [&](int64_t step) -> ChainStep {
    const int64_t half = step % kStepsUnderWay;
    return {.sum_before = sum_before_.data() + half * kChainItemBytes,
            .sum = sum_.data() + half * kChainItemBytes,
            .added = added_by(step, host),
            .next = host == 0 ? ChainItem() : added_by(step, host - 1),
            .finished = added_by(step, last),
            .direct = plan.DirectWithItem(step),
            .direct_rows = direct_.data() + half * direct_bytes};
  };
  const auto begin = [&](int64_t step) -> absl::StatusOr<Messages> {
    const ChainStep now = step_at(step);
    FSDP_RETURN_IF_ERROR(ReduceItem(sequence, collective, now));
    Messages messages = PassItems(collective, now);
    PassDirect(collective, now, messages);
    return messages;
  };
  const auto end = [&](int64_t step) { return ReduceDirect(sequence, collective, step_at(step)); };
  return net_->ExchangeInSteps({.steps = plan.items + kStepsUnderWay * last, .begin = begin, .end = end});
}

absl::Status LayeredCollectives::ReduceItem(uint64_t sequence, const Collective& collective, const ChainStep& step) {
  const ChainItem& item = step.added;
  if (item.count == 0) return absl::OkStatus();
  const int host = layout_.host_of(rank());
  const bool is_last = host + 1 == layout_.hosts();
  const int64_t width = SizeOf(collective.spec.dtype);
  // The last host writes its own results directly into their place.
  std::byte* const own = collective.output + item.begin * width;
  const int64_t first = item.block * layout_.ranks_per_host() * collective.spec.count;
  return host_->RunHostSum(sequence, {.spec = collective.spec, .input = collective.input + first * width},
                           {.begin = item.begin,
                            .count = item.count,
                            .sum_before = host == 0 ? nullptr : step.sum_before,
                            .destination = is_last && item.block == host ? own : step.sum,
                            .is_continued = !is_last,
                            .ranks_in_all = size()});
}

Messages LayeredCollectives::PassItems(const Collective& collective, const ChainStep& step) const {
  const std::vector<int> column = layout_.Column(rank());
  const int host = layout_.host_of(rank());
  const int last = layout_.hosts() - 1;
  const int64_t width = SizeOf(collective.spec.dtype);
  const int64_t sum_width = SumSizeOf(collective.spec.dtype);
  Messages messages;
  if (host < last && step.added.count > 0) {
    messages.sends.push_back({column[host + 1], step.sum, step.added.count * sum_width});
  }
  if (step.next.count > 0) {
    messages.receives.push_back({column[host - 1], step.sum_before, step.next.count * sum_width});
  }
  const ChainItem& finished = step.finished;
  if (finished.count > 0 && finished.block != last) {
    if (host == last) {
      messages.sends.push_back({column[finished.block], step.sum, finished.count * width});
    } else if (host == finished.block) {
      messages.receives.push_back({column[last], collective.output + finished.begin * width, finished.count * width});
    }
  }
  return messages;
}

// Queued after the results of the same step, on both sides, because messages between two ranks are matched in order.
void LayeredCollectives::PassDirect(const Collective& collective, const ChainStep& step, Messages& messages) const {
  if (step.direct.count == 0) return;
  const int64_t width = SizeOf(collective.spec.dtype);
  const int64_t nbytes = step.direct.count * width;
  const int each = layout_.ranks_per_host();
  for (int i = 0; i < each; ++i) {  // starts with the rank's own column, so that not all send to one at the same time
    const int place = (rank() + i) % each;
    if (layout_.host_of(rank()) == 0) {
      messages.receives.push_back({each + place, step.direct_rows + place * nbytes, nbytes});
    } else {
      const int64_t offset = (place * collective.spec.count + step.direct.begin) * width;
      messages.sends.push_back({place, collective.input + offset, nbytes});
    }
  }
}

absl::Status LayeredCollectives::ReduceDirect(uint64_t sequence, const Collective& collective, const ChainStep& step) {
  const ChainItem& piece = step.direct;
  if (piece.count == 0 || layout_.host_of(rank()) != 0) return absl::OkStatus();
  const int64_t width = SizeOf(collective.spec.dtype);
  std::vector<const std::byte*> rows;
  for (int i = 0; i < layout_.ranks_per_host(); ++i) rows.push_back(step.direct_rows + i * piece.count * width);
  return host_->RunHostSum(sequence, {.spec = collective.spec, .input = collective.input},
                           {.begin = piece.begin,
                            .count = piece.count,
                            .destination = collective.output + piece.begin * width,
                            .ranks_in_all = size(),
                            .rows_after = rows});
}

absl::Status LayeredCollectives::AllReduce(uint64_t sequence, const Collective& collective) {
  const int64_t width = SizeOf(collective.spec.dtype);
  const int64_t each = collective.spec.count / size();
  std::byte* const t = collective.output;
  Collective part = {.spec = collective.spec, .input = t, .output = t + rank() * each * width};
  part.spec.op = CollectiveOp::kReduceScatter;
  part.spec.count = each;
  FSDP_RETURN_IF_ERROR(ReduceScatter(sequence, part));
  part.spec.op = CollectiveOp::kAllGather;
  part.input = part.output;
  part.output = t;
  FSDP_RETURN_IF_ERROR(AllGather(sequence, part));
  Collective rest = collective;
  rest.spec.count = collective.spec.count - each * size();
  rest.input = rest.output = t + each * size() * width;
  return net_->Move(rest);
}

// Every rank takes part in the same gathers, for any kind of part.
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
  return std::make_unique<LayeredCollectives>(std::move(net), std::move(host), part, route_);
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
                                                                              const BlobGather& gather,
                                                                              std::optional<ReductionRoute> route) {
  if (layout.hosts() == layout.size()) return net;
  const std::vector<int>& here = layout.ranks_on(layout.host_of(net->rank()));
  const auto local_rank = std::find(here.begin(), here.end(), net->rank()) - here.begin();
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric,
                        CreateShmFabric(static_cast<int>(local_rank), static_cast<int>(here.size()), net->device(),
                                        GatherOn(here, gather)));
  auto host = std::make_unique<HostCollectives>(std::move(fabric), net->timeout(),
                                                RankNames{.numbers = here, .group_size = layout.size()}, net->watch());
  return std::make_unique<LayeredCollectives>(std::move(net), std::move(host), layout, route);
}

}  // namespace fsdp
