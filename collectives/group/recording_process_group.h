// SPDX-License-Identifier: Apache-2.0
//
// RecordingProcessGroup, for tests: forwards every collective and records it when it is issued, under the group's
// label, in a log that several groups of one rank may share. So a test can check the order of collectives across
// groups. Calls of the control plane are not recorded. The log has no lock: one thread uses all groups that share it.
#ifndef FSDP_COLLECTIVES_GROUP_RECORDING_PROCESS_GROUP_H_
#define FSDP_COLLECTIVES_GROUP_RECORDING_PROCESS_GROUP_H_

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/forwarding_process_group.h"

namespace fsdp {

// Barriers are forwarded without an entry.
class RecordingProcessGroup final : public ForwardingProcessGroup {
 public:
  // Entries in the order of issue.
  using Log = std::vector<std::string>;

  // Entries read "all_gather world float32[12]": the operation, the label, and the contribution of each rank. `log`
  // must not be null; it may have entries already.
  RecordingProcessGroup(std::shared_ptr<ProcessGroup> inner, std::string label, std::shared_ptr<Log> log)
      : ForwardingProcessGroup(std::move(inner)), label_(std::move(label)), log_(std::move(log)) {}

  // Each override records before it forwards the call, so that a call that fails is in the log too.
  void AllGather(const Tensor& input, const Tensor& output, Stream& stream) override {
    Record("all_gather", input);
    inner().AllGather(input, output, stream);
  }
  // A reduction by kAvg has its own word, because tests count averages and sums separately; min and max read as sums.
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream) override {
    Record(op == ReduceOp::kAvg ? "reduce_scatter avg" : "reduce_scatter", output);
    inner().ReduceScatter(input, output, op, stream);
  }
  void AllReduce(const Tensor& t, ReduceOp op, Stream& stream) override {
    Record(op == ReduceOp::kAvg ? "all_reduce avg" : "all_reduce", t);
    inner().AllReduce(t, op, stream);
  }
  // The root is not part of the entry.
  void Broadcast(const Tensor& t, int root, Stream& stream) override {
    Record("broadcast", t);
    inner().Broadcast(t, root, stream);
  }

  // The part's label is this label and the part's size: "world/2".
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) override {
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> part, inner().Split(color, key));
    std::string label = absl::StrCat(label_, "/", part->size());
    return std::make_unique<RecordingProcessGroup>(std::move(part), std::move(label), log_);
  }

 private:
  // Appends an entry. `t` is the tensor of one rank, not the whole.
  void Record(const char* operation, const Tensor& t) {
    log_->push_back(absl::StrCat(operation, " ", label_, " ", std::string(DTypeName(t.dtype())), "[", t.numel(), "]"));
  }

  // The name of the group in the entries, and the log that groups of this rank share.
  const std::string label_;
  const std::shared_ptr<Log> log_;
};

// The number of entries that begin with `prefix`, such as "all_gather world". O(entries).
inline int CountEntries(const RecordingProcessGroup::Log& log, std::string_view prefix) {
  return static_cast<int>(
      std::count_if(log.begin(), log.end(), [&](const std::string& entry) { return entry.rfind(prefix, 0) == 0; }));
}

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_RECORDING_PROCESS_GROUP_H_
