// SPDX-License-Identifier: Apache-2.0
//
// CountingGroup: a process group that counts what is asked of it and passes it on; for tests that say which
// communication something costs.
#ifndef FSDP_FSDP_COUNTING_GROUP_H_
#define FSDP_FSDP_COUNTING_GROUP_H_

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/process_group.h"

namespace fsdp {

class CountingGroup final : public ProcessGroup {
 public:
  explicit CountingGroup(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  // Collectives and control-plane calls since the last Reset.
  int count() const { return count_; }
  void Reset() { count_ = 0; }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string_view backend() const override { return group_->backend(); }
  const std::shared_ptr<Device>& device() const override { return group_->device(); }
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return group_->Allocate(nbytes); }
  absl::Duration timeout() const override { return group_->timeout(); }
  void Abort(const absl::Status& reason) override { group_->Abort(reason); }

  void AllGather(const Tensor& input, const Tensor& output, Stream& stream) override {
    ++count_;
    group_->AllGather(input, output, stream);
  }
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream) override {
    ++count_;
    group_->ReduceScatter(input, output, op, stream);
  }
  void AllReduce(const Tensor& t, ReduceOp op, Stream& stream) override {
    ++count_;
    group_->AllReduce(t, op, stream);
  }
  void Broadcast(const Tensor& t, int root, Stream& stream) override {
    ++count_;
    group_->Broadcast(t, root, stream);
  }
  void Barrier(Stream& stream) override {
    ++count_;
    group_->Barrier(stream);
  }
  absl::StatusOr<std::vector<std::string>> GatherBlobs(std::string_view blob) override {
    ++count_;
    return group_->GatherBlobs(blob);
  }
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) override {
    ++count_;
    return group_->Split(color, key);
  }

 private:
  const std::shared_ptr<ProcessGroup> group_;
  std::atomic<int> count_{0};
};

}  // namespace fsdp

#endif  // FSDP_FSDP_COUNTING_GROUP_H_
