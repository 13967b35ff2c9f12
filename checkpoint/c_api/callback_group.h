// SPDX-License-Identifier: Apache-2.0
//
// CallbackGroup: the ranks of a program in another language as a ProcessGroup. The program provides rank, size and the
// gathering of blobs, which is all that saving needs; collectives on tensors are kUnimplemented.
#ifndef FSDP_CHECKPOINT_C_API_CALLBACK_GROUP_H_
#define FSDP_CHECKPOINT_C_API_CALLBACK_GROUP_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

class CallbackGroup final : public ProcessGroup {
 public:
  // Null means one rank. kInvalidArgument for a rank outside of the group, and for several ranks without `gather`.
  static absl::StatusOr<std::unique_ptr<CallbackGroup>> Create(const fsdp_group* group);

  int rank() const override { return group_.rank; }
  int size() const override { return group_.world_size; }
  std::string_view backend() const override { return "callback"; }
  const std::shared_ptr<Device>& device() const override { return device_; }
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return device_->Allocate(nbytes); }
  void AllGather(const Tensor&, const Tensor&, Stream& stream) override { Refuse(stream); }
  void ReduceScatter(const Tensor&, const Tensor&, ReduceOp, Stream& stream) override { Refuse(stream); }
  void AllReduce(const Tensor&, ReduceOp, Stream& stream) override { Refuse(stream); }
  void Broadcast(const Tensor&, int, Stream& stream) override { Refuse(stream); }
  void Barrier(Stream& stream) override { Refuse(stream); }

  // kUnavailable when the program's function fails; kInternal when it does not give every rank's blob exactly once.
  absl::StatusOr<std::vector<std::string>> AllGatherObject(std::string_view blob) override;

  // For a saver, which needs all ranks in their order; kUnimplemented otherwise. The new group has the same callback.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) override;

  // Does nothing: the program's ranks notice when their next save fails, or from their own communication.
  void Abort(const absl::Status&) override {}
  absl::Duration timeout() const override { return absl::InfiniteDuration(); }

 private:
  explicit CallbackGroup(const fsdp_group& group);
  static void Refuse(Stream& stream);

  const fsdp_group group_;
  const std::shared_ptr<Device> device_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_C_API_CALLBACK_GROUP_H_
