// SPDX-License-Identifier: Apache-2.0
//
// CountingProcessGroup: counts the calls of a group and forwards them, for tests of how much communication an operation
// needs. The counters may be read on any thread. Groups that Split returns are not counted.
#ifndef FSDP_COLLECTIVES_GROUP_COUNTING_PROCESS_GROUP_H_
#define FSDP_COLLECTIVES_GROUP_COUNTING_PROCESS_GROUP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/collectives/group/forwarding_process_group.h"

namespace fsdp {

// A call is counted when it is issued, before it can fail. Coalesced calls are counted one by one.
class CountingProcessGroup final : public ForwardingProcessGroup {
 public:
  // `inner`, the group to count, must not be null.
  using ForwardingProcessGroup::ForwardingProcessGroup;

  // Since the last Reset: collectives that were issued; calls of AllGatherObject and Split; bytes that this rank passed
  // to AllGatherObject.
  int collectives() const { return collectives_; }
  int control_calls() const { return control_calls_; }
  int64_t gathered_bytes() const { return gathered_bytes_; }
  // Not atomic: no other thread may be in a call.
  void Reset() { collectives_ = control_calls_ = 0, gathered_bytes_ = 0; }

  // The five collectives: each adds 1 and is forwarded unchanged.
  void AllGather(const Tensor& input, const Tensor& output, Stream& stream) override {
    ++collectives_;
    inner().AllGather(input, output, stream);
  }
  // Whether a collective succeeds is known only later, from its stream, and does not matter to the count.
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream) override {
    ++collectives_;
    inner().ReduceScatter(input, output, op, stream);
  }
  void AllReduce(const Tensor& t, ReduceOp op, Stream& stream) override {
    ++collectives_;
    inner().AllReduce(t, op, stream);
  }
  void Broadcast(const Tensor& t, int root, Stream& stream) override {
    ++collectives_;
    inner().Broadcast(t, root, stream);
  }
  // A barrier is a collective too.
  void Barrier(Stream& stream) override {
    ++collectives_;
    inner().Barrier(stream);
  }
  // The control plane. Abort is forwarded without being counted.
  absl::StatusOr<std::vector<std::string>> AllGatherObject(std::string_view blob) override {
    ++control_calls_;
    // Counts this rank's blob only, not the blobs that it receives.
    gathered_bytes_ += static_cast<int64_t>(blob.size());
    return inner().AllGatherObject(blob);
  }
  // Counts as AllGatherObject.
  absl::StatusOr<std::vector<std::string>> AllGatherObjectUnordered(std::string_view blob) override {
    ++control_calls_;
    gathered_bytes_ += static_cast<int64_t>(blob.size());
    return inner().AllGatherObjectUnordered(blob);
  }
  // A split counts as a single control call, however many messages the group exchanges for it.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) override {
    ++control_calls_;
    return inner().Split(color, key);
  }

 private:
  // Atomic, because a test may read them while the rank's thread issues collectives.
  std::atomic<int> collectives_{0};
  std::atomic<int> control_calls_{0};
  std::atomic<int64_t> gathered_bytes_{0};
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_COUNTING_PROCESS_GROUP_H_
