// SPDX-License-Identifier: Apache-2.0
//
// Which of FSDP's streams are urgent: the streams that the next compute waits for.
#include "fsdp/tensor/stream_priority.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/forwarding_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/manual_units.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::UnorderedElementsAre;

// A device whose streams have priorities: wraps another one, and logs the requests.
class PriorityLog final : public Device, public PriorityDevice {
 public:
  explicit PriorityLog(std::shared_ptr<Device> inner) : inner_(std::move(inner)) {}

  DeviceType type() const override { return inner_->type(); }
  std::string name() const override { return inner_->name(); }
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return inner_->Allocate(nbytes); }
  absl::StatusOr<Buffer> AllocatePinned(int64_t nbytes) override { return inner_->AllocatePinned(nbytes); }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(std::string name) override {
    return CreateStreamOf(StreamPriority::kNormal, std::move(name));
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStreamOf(StreamPriority priority, std::string name) override {
    (priority == StreamPriority::kHigh ? urgent_ : others_).push_back(name);
    return inner_->CreateStream(std::move(name));
  }
  const TensorOps& ops() const override { return inner_->ops(); }
  int64_t allocated_bytes() const override { return inner_->allocated_bytes(); }
  int64_t peak_allocated_bytes() const override { return inner_->peak_allocated_bytes(); }
  void ResetPeak() override { inner_->ResetPeak(); }
  void RecordAllocation(int64_t nbytes) override { inner_->RecordAllocation(nbytes); }

  const std::vector<std::string>& urgent() const { return urgent_; }
  const std::vector<std::string>& others() const { return others_; }

 private:
  const std::shared_ptr<Device> inner_;
  std::vector<std::string> urgent_, others_;
};

class OnPriorityLog final : public ForwardingProcessGroup {
 public:
  explicit OnPriorityLog(std::shared_ptr<ProcessGroup> inner)
      : ForwardingProcessGroup(inner), log_(std::make_shared<PriorityLog>(inner->device())), device_(log_) {}
  const std::shared_ptr<Device>& device() const override { return device_; }
  const PriorityLog& log() const { return *log_; }

 private:
  const std::shared_ptr<PriorityLog> log_;
  const std::shared_ptr<Device> device_;
};

TEST(StreamPriorityTest, AllGathersAndReduceScattersAreUrgentAndNothingElseIs) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> inner) -> absl::Status {
    const auto group = std::make_shared<OnPriorityLog>(std::move(inner));
    FSDP_ASSIGN_OR_RETURN(const auto units, ManualUnits::Create(std::shared_ptr<ProcessGroup>(group),
                                                                {{"one", {{"w", {7}}}}}, /*units_at_once=*/1));
    EXPECT_THAT(group->log().urgent(), UnorderedElementsAre("unshard", "post_backward"));
    EXPECT_THAT(group->log().others(), testing::IsSupersetOf({"compute", "all_reduce"}));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
