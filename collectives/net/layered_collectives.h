// SPDX-License-Identifier: Apache-2.0
//
// LayeredCollectives: the BlockingCollectives of several hosts with several ranks each: shared memory inside a host,
// messages between hosts. The .cc file begins with the algorithms.
#ifndef FSDP_COLLECTIVES_NET_LAYERED_COLLECTIVES_H_
#define FSDP_COLLECTIVES_NET_LAYERED_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/collectives/host/blocking_collectives.h"
#include "fsdp/collectives/host/host_collectives.h"
#include "fsdp/collectives/net/column_meeting.h"
#include "fsdp/collectives/net/host_layout.h"
#include "fsdp/collectives/net/net_collectives.h"
#include "fsdp/collectives/net/reduction_route.h"

namespace fsdp {

class LayeredCollectives final : public BlockingCollectives {
 public:
  // `net`: all ranks; `host`: the ranks of this rank's host, ascending. `route`: for reductions; by default the one
  // with the less busy links. All ranks must pass the same.
  LayeredCollectives(std::unique_ptr<NetCollectives> net, std::unique_ptr<HostCollectives> host, HostLayout layout,
                     std::optional<ReductionRoute> route = std::nullopt);

  std::string_view backend() const override { return net_->backend(); }
  int rank() const override { return net_->rank(); }
  int size() const override { return net_->size(); }
  const std::shared_ptr<Device>& device() const override { return host_->device(); }
  absl::Duration timeout() const override { return net_->timeout(); }
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return host_->Allocate(nbytes); }

  absl::Status Run(uint64_t sequence, const Collective& collective) override;
  absl::StatusOr<std::vector<std::string>> AllGatherObject(uint64_t sequence, std::string_view blob) override;
  // Ranks of one host get collectives of backend "shm".
  absl::StatusOr<std::unique_ptr<BlockingCollectives>> Split(const std::vector<int>& members,
                                                             const BlobGather& gather) override;

  void GiveUp(const absl::Status& reason) override;
  void AwaitReaders() override;
  void Depart() override;
  int first_rank_to_give_up() const override { return net_->first_rank_to_give_up(); }

 private:
  // True if the algorithms of this class help after the meeting. If not, the data move as if every rank were on its own
  // host.
  bool IsLayered(const CollectiveSpec& spec) const;
  absl::Status MoveLayered(uint64_t sequence, const Collective& collective);
  absl::Status AllGather(uint64_t sequence, const Collective& collective);
  absl::Status Broadcast(uint64_t sequence, const Collective& collective);
  absl::Status AllReduce(uint64_t sequence, const Collective& collective);
  // reduce_scatter by the chain of hosts, or the mixed route.
  absl::Status ReduceScatter(uint64_t sequence, const Collective& collective);
  // The pieces of blocks that are at each stage of the chain at one time.
  struct ChainStep;
  ReductionRoute RouteOf(DType dtype) const;
  absl::Status ReduceItem(uint64_t sequence, const Collective& collective, const ChainStep& step);
  absl::Status ReduceDirect(uint64_t sequence, const Collective& collective, const ChainStep& step);
  Messages PassItems(const Collective& collective, const ChainStep& step) const;
  void PassDirect(const Collective& collective, const ChainStep& step, Messages& messages) const;

  const std::unique_ptr<NetCollectives> net_;
  const std::unique_ptr<HostCollectives> host_;
  const HostLayout layout_;
  const std::optional<ReductionRoute> route_;
  std::optional<ColumnMeeting> meeting_;  // none if the layout is not regular

  // For a chain, for each step that is under way: the sum that came from the host before, and this host's sum.
  std::vector<std::byte> sum_before_;
  std::vector<std::byte> sum_;
  std::vector<std::byte> direct_;  // for the mixed route: a row of each rank of the other host
};

// Returns `net` itself if no host of `layout` has several ranks; else layered collectives, with shared memory that is
// created here. `gather` gathers over all ranks, which call this at the same time. kUnavailable if a rank of this host
// ended meanwhile.
absl::StatusOr<std::unique_ptr<BlockingCollectives>> CreateLayeredCollectives(
    std::unique_ptr<NetCollectives> net, const HostLayout& layout, const BlobGather& gather,
    std::optional<ReductionRoute> route = std::nullopt);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_LAYERED_COLLECTIVES_H_
