// SPDX-License-Identifier: Apache-2.0
//
// HostProcessGroup: a ProcessGroup of ranks whose tensors are in host memory: backends "local", "shm" and "net". It
// puts blocking collectives onto streams in the order of issue, and keeps the group broken after its first error.
//
//   ProcessGroup calls -> tickets (ticket_line.h) -> streams -> BlockingCollectives
#ifndef FSDP_COLLECTIVES_HOST_HOST_PROCESS_GROUP_H_
#define FSDP_COLLECTIVES_HOST_HOST_PROCESS_GROUP_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/collectives/host/blocking_collectives.h"
#include "fsdp/collectives/host/ticket_line.h"

namespace fsdp {

class HostProcessGroup final : public ProcessGroup {
 public:
  explicit HostProcessGroup(std::unique_ptr<BlockingCollectives> collectives);

  // Peers may finish collectives already issued; any later collective fails and names this rank.
  ~HostProcessGroup() override;

  // The collectives know rank, size and device; the group adds order and errors.
  int rank() const override { return collectives_->rank(); }
  int size() const override { return collectives_->size(); }
  std::string_view backend() const override { return collectives_->backend(); }
  const std::shared_ptr<Device>& device() const override { return collectives_->device(); }
  absl::Duration timeout() const override { return collectives_->timeout(); }

  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return collectives_->Allocate(nbytes); }
  // Contracts as in ProcessGroup. Streams must be of host devices, else the stream fails with kUnimplemented. Wrong
  // arguments fail the stream and break the group.
  void AllGather(const Tensor& input, const Tensor& output, Stream& stream) override;
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream) override;
  void AllReduce(const Tensor& t, ReduceOp op, Stream& stream) override;
  void Broadcast(const Tensor& t, int root, Stream& stream) override;
  void Barrier(Stream& stream) override;
  // AllGatherObject and Split wait for their turn among the collectives that were issued before, then block until all
  // ranks have called.
  absl::StatusOr<std::vector<std::string>> AllGatherObject(std::string_view blob) override;
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) override;
  // Only the first call has an effect. Any thread.
  void Abort(const absl::Status& reason) override { collectives_->GiveUp(reason); }

  // The first rank that gave up or called Abort; -1 while no rank has. Any thread.
  int first_rank_to_give_up() const { return collectives_->first_rank_to_give_up(); }

 private:
  // A call as it was issued. The tensors keep their memory alive until the call has run.
  struct Issued {
    CollectiveSpec spec;
    Tensor input = {};
    Tensor output = {};
  };

  // Issue puts a call on its stream; RunInTurn runs it there. Fail breaks the group and returns the error.
  void Issue(const absl::Status& arguments, const Issued& issued, Stream& stream);
  // `ticket` is also the number of the call in errors.
  absl::Status RunInTurn(uint64_t ticket, const absl::Status& so_far, const Issued& issued);
  absl::Status Fail(absl::Status error);
  // The error of a call after the first error, which it quotes.
  absl::Status BrokenError(uint64_t ticket, CollectiveOp op) const;

  const int creator_pid_;  // a forked child that destroys its copy of the group must not depart in the rank's name
  const std::unique_ptr<BlockingCollectives> collectives_;
  TicketLine line_;
  absl::Status broken_;  // the first error; read and written only inside line_.Serve
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_HOST_PROCESS_GROUP_H_
