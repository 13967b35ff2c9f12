// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/options/state_dict_config.h"

#include <type_traits>

#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/state/state_form.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

TEST(StateDictConfigTest, ModelConfigsKeepTensorsOnTheDeviceByDefault) {
  EXPECT_FALSE(FullStateDictConfig().offload_to_cpu);
  EXPECT_FALSE(FullStateDictConfig().rank0_only);
  EXPECT_FALSE(LocalStateDictConfig().offload_to_cpu);
  EXPECT_FALSE(ShardedStateDictConfig().offload_to_cpu);
}

TEST(StateDictConfigTest, OptimizerConfigsOffloadByDefaultButForLocal) {
  EXPECT_TRUE(FullOptimStateDictConfig().offload_to_cpu);
  EXPECT_FALSE(FullOptimStateDictConfig().rank0_only);
  EXPECT_FALSE(LocalOptimStateDictConfig().offload_to_cpu);
  EXPECT_TRUE(ShardedOptimStateDictConfig().offload_to_cpu);
}

TEST(StateDictSettingsTest, TheConfigsTypeIsTheStateDictType) {
  EXPECT_EQ(StateDictSettings().type(), StateDictType::kFull);
  EXPECT_EQ(StateDictSettings(FullStateDictConfig{}).type(), StateDictType::kFull);
  EXPECT_EQ(StateDictSettings(LocalStateDictConfig{}).type(), StateDictType::kLocal);
  EXPECT_EQ(StateDictSettings(ShardedStateDictConfig{}).type(), StateDictType::kSharded);
}

TEST(StateDictSettingsTest, ConfigsOfDifferentTypesDoNotCompile) {
  static_assert(std::is_constructible_v<StateDictSettings, FullStateDictConfig, FullOptimStateDictConfig>);
  static_assert(!std::is_constructible_v<StateDictSettings, FullStateDictConfig, ShardedOptimStateDictConfig>);
  static_assert(!std::is_constructible_v<StateDictSettings, LocalStateDictConfig, FullOptimStateDictConfig>);
  static_assert(!std::is_constructible_v<StateDictSettings, ShardedStateDictConfig, LocalOptimStateDictConfig>);
}

TEST(StateDictSettingsTest, AModelConfigAloneHasItsTypesOptimizerDefaults) {
  for (const StateDictConfig& config : {StateDictConfig(FullStateDictConfig{.offload_to_cpu = true}),
                                        StateDictConfig(LocalStateDictConfig{.offload_to_cpu = true}),
                                        StateDictConfig(ShardedStateDictConfig{.offload_to_cpu = true})}) {
    const StateDictSettings settings = StateDictSettings::For(config);
    EXPECT_TRUE(FormOf(settings.state_dict_config()).offload_to_cpu);
    EXPECT_EQ(settings.optim_state_dict_config().index(), config.index());
    EXPECT_EQ(FormOf(settings.optim_state_dict_config()).offload_to_cpu, settings.type() != StateDictType::kLocal);
  }
}

TEST(StateDictSettingsTest, AConfigOfTheWrongTypeFromFlagsIsNamedWithTheRightOne) {
  EXPECT_THAT(StateDictSettings::Make(StateDictType::kFull, ShardedStateDictConfig{}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected state_dict_config of type full but got one of type sharded")));
  EXPECT_THAT(StateDictSettings::Make(StateDictType::kSharded, ShardedStateDictConfig{}, LocalOptimStateDictConfig{}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected optim_state_dict_config of type sharded but got one of type local")));
  ASSERT_OK_AND_ASSIGN(const StateDictSettings settings,
                       StateDictSettings::Make(StateDictType::kFull, FullStateDictConfig{.rank0_only = true}));
  EXPECT_TRUE(FormOf(settings.state_dict_config()).rank0_only);
  EXPECT_FALSE(FormOf(settings.optim_state_dict_config()).rank0_only);
}

}  // namespace
}  // namespace fsdp
