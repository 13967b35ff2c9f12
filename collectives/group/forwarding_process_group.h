// SPDX-License-Identifier: Apache-2.0
//
// ForwardingProcessGroup: forwards every call to another group; the base class of groups that observe or change some of
// the calls. It does not implement the optional interfaces of the other group (CapturingGroup, CoalescingGroup): a test
// through such a group runs collectives one by one, outside of graphs. As thread-safe as the other group.
#ifndef FSDP_COLLECTIVES_GROUP_FORWARDING_PROCESS_GROUP_H_
#define FSDP_COLLECTIVES_GROUP_FORWARDING_PROCESS_GROUP_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

class ForwardingProcessGroup : public ProcessGroup {
 public:
  // `inner` must not be null.
  explicit ForwardingProcessGroup(std::shared_ptr<ProcessGroup> inner) : inner_(std::move(inner)) {}

  // Same contracts and errors as the other group.
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view backend() const override { return inner_->backend(); }
  const std::shared_ptr<Device>& device() const override { return inner_->device(); }
  // The memory is the other group's, so peers reach it as before.
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return inner_->Allocate(nbytes); }
  // Collectives go to the other group with the same tensors and stream; nothing is copied and nothing waits.
  void AllGather(const Tensor& input, const Tensor& output, Stream& stream) override {
    inner_->AllGather(input, output, stream);
  }
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream) override {
    inner_->ReduceScatter(input, output, op, stream);
  }
  void AllReduce(const Tensor& t, ReduceOp op, Stream& stream) override { inner_->AllReduce(t, op, stream); }
  void Broadcast(const Tensor& t, int root, Stream& stream) override { inner_->Broadcast(t, root, stream); }
  void Barrier(Stream& stream) override { inner_->Barrier(stream); }
  // Blocks as the other group does.
  absl::StatusOr<std::vector<std::string>> AllGatherObject(std::string_view blob) override {
    return inner_->AllGatherObject(blob);
  }
  absl::StatusOr<std::vector<std::string>> AllGatherObjectUnordered(std::string_view blob) override {
    return inner_->AllGatherObjectUnordered(blob);
  }

  // The part belongs to the other group: a derived class that observes parts too overrides Split.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) override { return inner_->Split(color, key); }
  // Any thread, as for the other group.
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }
  absl::Duration timeout() const override { return inner_->timeout(); }

 protected:
  // For derived classes, which call the other group after they have observed a call.
  ProcessGroup& inner() const { return *inner_; }

 private:
  // Shared, so that the other group lives at least as long as this one.
  const std::shared_ptr<ProcessGroup> inner_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_FORWARDING_PROCESS_GROUP_H_
