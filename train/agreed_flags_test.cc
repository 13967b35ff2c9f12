// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/agreed_flags.h"

#include <map>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "fsdp/train/train_flags.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::Contains;
using testing::Key;
using testing::Not;
using testing::Pair;

std::map<std::string, std::string> Values() {
  std::map<std::string, std::string> values;
  for (const RankFact& fact : AgreedFlags()) values[fact.subject] = fact.value;
  return values;
}

TEST(AgreedFlagsTest, AFlagOfTheRunIsComparedByItsValue) {
  const absl::FlagSaver saver;
  absl::SetFlag(&FLAGS_async_checkpoint, true);
  absl::SetFlag(&FLAGS_checkpoint_every, 7);
  absl::SetFlag(&FLAGS_state_dict_type, "full");
  absl::SetFlag(&FLAGS_resume, "/mnt/a");
  EXPECT_THAT(Values(), Contains(Pair("--async_checkpoint", "true")));
  EXPECT_THAT(Values(), Contains(Pair("--checkpoint_every", "7")));
  EXPECT_THAT(Values(), Contains(Pair("--state_dict_type", "full")));
  EXPECT_THAT(Values(), Contains(Pair("--resume", "/mnt/a")));
  EXPECT_THAT(Values(), Contains(Pair("--min_lr", "not given")));
}

TEST(AgreedFlagsTest, APathThatHostsMaySpellDifferentlyIsComparedByWhetherItIsGiven) {
  const absl::FlagSaver saver;
  EXPECT_THAT(Values(), Contains(Pair("--init_from", "not given")));
  absl::SetFlag(&FLAGS_init_from, "/mnt/a/m.safetensors");
  EXPECT_THAT(Values(), Contains(Pair("--init_from", "a path")));
}

TEST(AgreedFlagsTest, FlagsOfOneHostAndOfFilesThatAreComparedByContentsAreLeftOut) {
  for (const char* name : {"--nproc", "--run_id", "--backend", "--config", "--tokens", "--flat_layout"}) {
    EXPECT_THAT(Values(), Not(Contains(Key(name)))) << name;
  }
}

TEST(AgreedFlagsTest, FlagsOfOtherLibrariesAreLeftOut) {
  EXPECT_THAT(Values(), Not(Contains(Key("--help"))));
  EXPECT_THAT(Values(), Not(Contains(Key("--flagfile"))));
}

}  // namespace
}  // namespace fsdp
