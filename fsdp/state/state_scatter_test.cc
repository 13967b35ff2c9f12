// SPDX-License-Identifier: Apache-2.0
//
// A load issues independent exchanges as one; state_dict_load_test.cc tests the values that it loads.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/coalesced_calls.h"
#include "fsdp/collectives/group/forwarding_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::Each;
using testing::Ge;
using testing::SizeIs;

constexpr int kRanks = 2;

// Counts the all-gathers and broadcasts of each group of coalesced calls, and those outside.
class CoalescingCounter final : public ForwardingProcessGroup, public CoalescingGroup {
 public:
  using ForwardingProcessGroup::ForwardingProcessGroup;

  void BeginCoalescing() override { groups_.push_back(0), coalescing_ = true; }
  void EndCoalescing() override { coalescing_ = false; }
  void AllGather(const Tensor& input, const Tensor& output, Stream& stream) override {
    ++(coalescing_ ? groups_.back() : alone_);
    inner().AllGather(input, output, stream);
  }
  void Broadcast(const Tensor& t, int root, Stream& stream) override {
    ++(coalescing_ ? groups_.back() : alone_);
    inner().Broadcast(t, root, stream);
  }

  void Reset() { groups_.clear(), alone_ = 0; }
  const std::vector<int>& groups() const { return groups_; }
  int alone() const { return alone_; }

 private:
  std::vector<int> groups_;
  int alone_ = 0;
  bool coalescing_ = false;
};

struct Loaded {
  std::vector<int> model, optimizer;  // exchanges of each group
};

// Loads the state that `settings` made into a model of other values, which then has the same values.
absl::StatusOr<Loaded> LoadWith(std::shared_ptr<ProcessGroup> meeting, const StateDictSettings& settings,
                                const LoadStateDictOptions& options, StateCollector& saved, StateCollector& loaded) {
  const auto counter = std::make_shared<CoalescingCounter>(std::move(meeting));
  FSDP_ASSIGN_OR_RETURN(TestModel from, MakeTestModel(std::shared_ptr<ProcessGroup>(counter), BlockOptions()));
  FSDP_RETURN_IF_ERROR(from.Train(0));
  FsdpOptions others = BlockOptions();
  others.init_seed = 12;
  FSDP_ASSIGN_OR_RETURN(TestModel to, MakeTestModel(std::shared_ptr<ProcessGroup>(counter), others));
  const StateDictTypeGuard guard(*from.model, settings), other_guard(*to.model, settings);
  FSDP_ASSIGN_OR_RETURN(const StateDict state, from.AllState());
  saved.Add(state);

  Loaded result;
  counter->Reset();
  FSDP_RETURN_IF_ERROR(to.model->LoadStateDict(state, options).status());
  result.model = counter->groups();
  if (counter->alone() != 0) return absl::InternalError("the model's exchanges are not all coalesced");
  counter->Reset();
  FSDP_RETURN_IF_ERROR(to.model->LoadOptimStateDict(state, *to.optimizer, options).status());
  result.optimizer = counter->groups();
  if (counter->alone() != 0) return absl::InternalError("the optimizer's exchanges are not all coalesced");
  FSDP_ASSIGN_OR_RETURN(const StateDict again, to.AllState());
  loaded.Add(again);
  return result;
}

int Sum(const std::vector<int>& counts) {
  int sum = 0;
  for (const int count : counts) sum += count;
  return sum;
}

class StateScatterTest : public testing::Test {
 protected:
  void LoadOnRanks(const StateDictSettings& settings, const LoadStateDictOptions& options) {
    ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      const int rank = group->rank();
      FSDP_ASSIGN_OR_RETURN(const Loaded result, LoadWith(std::move(group), settings, options, saved_, loaded_));
      if (rank == 0) result_ = result;
      return absl::OkStatus();
    }));
    ExpectSame(saved_, loaded_);
  }

  StateCollector saved_, loaded_;
  Loaded result_;  // rank 0's
};

constexpr int kParameters = 28;  // of the test model: two blocks of 12, and the root's 4

TEST_F(StateScatterTest, ChunksOfABatchOfTensorsAreGatheredAsOne) {
  LoadOnRanks(ShardedStateDictConfig{}, {});
  EXPECT_EQ(Sum(result_.model), kParameters);
  EXPECT_EQ(Sum(result_.optimizer), 2 * kParameters);
  // No batch is larger than the largest unit, so there is about one for each unit and state.
  EXPECT_THAT(result_.model, SizeIs(testing::AllOf(Ge(3u), testing::Le(4u))));
  EXPECT_THAT(result_.optimizer, SizeIs(testing::Le(8u)));
}

TEST_F(StateScatterTest, WholeTensorsOfRankZeroAreBroadcastAsOne) {
  LoadOnRanks(FullStateDictConfig{}, {.broadcast_from_rank0 = true});
  EXPECT_EQ(Sum(result_.model), kParameters);
  EXPECT_EQ(Sum(result_.optimizer), 2 * kParameters);
  EXPECT_THAT(result_.model, SizeIs(testing::Le(4u)));
  EXPECT_THAT(result_.model, Each(Ge(1)));
}

TEST_F(StateScatterTest, ValuesThatEveryRankHasAreNotExchanged) {
  LoadOnRanks(FullStateDictConfig{}, {});
  EXPECT_EQ(Sum(result_.model), 0);
  EXPECT_EQ(Sum(result_.optimizer), 0);
}

}  // namespace
}  // namespace fsdp
