// SPDX-License-Identifier: Apache-2.0
//
// Ranks with different settings: each of them would train without an error, or wait for ever.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// Each Block a unit, with these differences from the root's options.
WrapPolicy BlocksWith(const UnitOverrides& overrides) {
  return CustomWrapPolicy([overrides](Module& module) -> std::optional<UnitOverrides> {
    if (module.type_name() != "Block") return std::nullopt;
    return overrides;
  });
}

// Ranks whose models differ get an error that names the first difference, both values and both ranks.
class RanksDifferTest : public testing::Test {
 protected:
  // The error of three ranks, of which the last wraps the model that `change` makes.
  std::string ErrorOf(const std::function<void(std::unique_ptr<Module>& module, FsdpOptions& options)>& change) {
    return std::string(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
                         std::unique_ptr<Module> module = MakeTestBlocks();
                         FsdpOptions options;
                         options.auto_wrap_policy = BlocksWith({});
                         if (group->rank() == 2) change(module, options);
                         return FullyShardedDataParallel::Wrap(std::move(module), group, options).status();
                       }).message());
  }
};

TEST_F(RanksDifferTest, InAShape) {
  EXPECT_THAT(ErrorOf([](std::unique_ptr<Module>& module, FsdpOptions&) {
                auto other = std::make_unique<TestSequence>();
                TestSequence* block = other->AddSequence("Block");
                block->AddLinear(3, 5);
                block->AddLinear(5, 5);
                // As many elements as 5 x 4 + 4.
                other->AddSequence("Block")->AddLinear(2, 8);
                other->AddLinear(4, 7);
                module = std::move(other);
              }),
              HasSubstr("ranks wrap different models: parameter \"1.0.weight\" is float32 [5, 4] on rank 0 and float32 "
                        "[2, 8] on rank 2: expected the same on all ranks"));
}

TEST_F(RanksDifferTest, InAName) {
  EXPECT_THAT(ErrorOf([](std::unique_ptr<Module>& module, FsdpOptions&) {
                auto other = std::make_unique<TestSequence>();
                TestSequence* block = other->AddSequence("Block");
                block->AddLinear(3, 5);
                block->AddSequence()->AddLinear(5, 5);
                other->AddSequence("Block")->AddLinear(5, 4);
                other->AddLinear(4, 7);
                module = std::move(other);
              }),
              HasSubstr("rank 0 has parameter \"0.1.weight\" (float32 [5, 5]) and rank 2 has parameter "
                        "\"0.1.0.weight\" (float32 [5, 5])"));
}

TEST_F(RanksDifferTest, InAFrozenParameter) {
  EXPECT_THAT(ErrorOf([](std::unique_ptr<Module>& module, FsdpOptions&) {
                for (const auto& [name, parameter] : module->NamedParameters()) parameter->requires_grad = false;
              }),
              HasSubstr("is float32 [4, 7] on rank 0 and float32 [4, 7], frozen on rank 2"));
}

TEST_F(RanksDifferTest, InPrefetch) {
  EXPECT_THAT(ErrorOf([](std::unique_ptr<Module>&, FsdpOptions& options) {
                options.backward_prefetch = BackwardPrefetch::kBackwardPost;
              }),
              HasSubstr("backward_prefetch is pre on rank 0 and post on rank 2"));
  EXPECT_THAT(ErrorOf([](std::unique_ptr<Module>&, FsdpOptions& options) { options.forward_prefetch = true; }),
              HasSubstr("forward_prefetch is false on rank 0 and true on rank 2"));
}

TEST_F(RanksDifferTest, InWhatAUnitDoes) {
  EXPECT_THAT(
      ErrorOf([](std::unique_ptr<Module>&, FsdpOptions& options) { options.cpu_offload.offload_params = true; }),
      HasSubstr("offload of unit root is none on rank 0 and pinned on rank 2"));
  EXPECT_THAT(ErrorOf([](std::unique_ptr<Module>&, FsdpOptions& options) {
                options.auto_wrap_policy = BlocksWith({.activation_checkpointing = true});
              }),
              HasSubstr("activation_checkpointing of unit 0 is false on rank 0 and true on rank 2"));
  EXPECT_THAT(ErrorOf([](std::unique_ptr<Module>&, FsdpOptions& options) { options.use_orig_params = true; }),
              HasSubstr("layout of unit root is flat on rank 0 and flat_aligned on rank 2"));
}

TEST_F(RanksDifferTest, InTheSeed) {
  EXPECT_THAT(ErrorOf([](std::unique_ptr<Module>&, FsdpOptions& options) { options.init_seed = 3; }),
              HasSubstr("init_seed is 0 on rank 0 and 3 on rank 2"));
}

TEST_F(RanksDifferTest, InFsdp2sPrefetchLists) {
  const absl::Status status = RunFullyShard(2, {}, [](TestFullyShard& test) -> absl::Status {
    if (test.group->rank() == 1) {
      FSDP_RETURN_IF_ERROR(test.root->set_modules_to_forward_prefetch({test.blocks[1], test.blocks[0]}));
    }
    return test.root->NewTape().status();
  });
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("modules_to_forward_prefetch of module root is default on rank 0 and [1, 0] on rank 1"));
}

TEST_F(RanksDifferTest, InFsdp2sReshardAfterForward) {
  const absl::Status status = RunFullyShard(2, {}, [](TestFullyShard& test) -> absl::Status {
    if (test.group->rank() == 1) {
      FSDP_RETURN_IF_ERROR(test.blocks[0]->set_reshard_after_forward(false, Recurse::kNo));
    }
    return test.root->NewTape().status();
  });
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("reshard_after_forward of module 0 is default on rank 0 and false on rank 1"));
}

}  // namespace
}  // namespace fsdp
