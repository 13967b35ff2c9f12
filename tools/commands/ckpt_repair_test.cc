// SPDX-License-Identifier: Apache-2.0
//
// The output and exit status of ckpt repair; checkpoint/native/repair/repair_test.cc tests which damage can be
// repaired.
#include <filesystem>
#include <numeric>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

using Json = nlohmann::json;

constexpr char kRankFile[] = "a/rank-00001-of-00003.h5";

class CkptRepairTest : public CkptTest {
 protected:
  // Path("a"): three rank files and one of parity.
  void MakeCheckpoint() {
    StateDict state;
    ShardedTensor tensor;
    tensor.shape = {30, 100};
    state.Set(StateKey::Model("w"), tensor);
    const PayloadReader numbers = [](const StateKey&, const Interval& interval, void* out) {
      std::iota(static_cast<float*>(out), static_cast<float*>(out) + interval.size(),
                static_cast<float>(interval.begin));
      return absl::OkStatus();
    };
    CheckpointDirectoryOptions options;
    options.type = StateDictType::kSharded;
    options.world_size = 3;
    options.parity = 1;
    ASSERT_OK(WriteCheckpointDirectory(Path("a"), state, numbers, options));
    MustCkpt({"convert", Path("a"), Path("whole.safetensors")});
  }
};

TEST_F(CkptRepairTest, ALostRankFileComesBackByteForByte) {
  MakeCheckpoint();
  const std::string lost = ReadFile(Path(kRankFile));
  fs::remove(Path(kRankFile));
  EXPECT_EQ(Ckpt({"verify", Path("a")}).status, 1);
  const std::string planned = MustCkpt({"repair", Path("a"), "--dry_run"});
  EXPECT_THAT(planned, HasSubstr("would repair: "));
  EXPECT_THAT(planned, HasSubstr("rank-00001-of-00003.h5"));
  EXPECT_FALSE(fs::exists(Path(kRankFile)));
  EXPECT_THAT(MustCkpt({"repair", Path("a")}), HasSubstr(Path("a") + ": it is whole"));
  EXPECT_EQ(ReadFile(Path(kRankFile)), lost);
  MustCkpt({"verify", Path("a")});
  EXPECT_THAT(MustCkpt({"repair", Path("a")}), HasSubstr("nothing is damaged"));
}

TEST_F(CkptRepairTest, ALostManifestIsMadeFromTheRecords) {
  MakeCheckpoint();
  fs::remove(Path("a/manifest.json"));
  const Json json = Json::parse(MustCkpt({"repair", Path("a"), "--json"}));
  EXPECT_EQ(json["whole"], true);
  EXPECT_EQ(json["repaired"].size(), 1);
  MustCkpt({"verify", Path("a")});
  MustCkpt({"diff", Path("a"), Path("whole.safetensors"), "--model_only"});
}

TEST_F(CkptRepairTest, ACheckpointThatCannotBeRepairedExitsWithOne) {
  MakeCheckpoint();
  fs::remove(Path(kRankFile));
  fs::remove(Path("a/rank-00002-of-00003.h5"));
  const Outcome outcome = Ckpt({"repair", Path("a"), "--json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(Json::parse(outcome.out)["whole"], false);
  EXPECT_THAT(outcome.err, HasSubstr(Path("a") + " stays damaged: "));
  const Outcome none = Ckpt({"repair", Path("none"), "--json"});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(std::string(Json::parse(none.out)["problem"]), HasSubstr("none"));
}

TEST_F(CkptRepairTest, ACheckpointOfAnotherFormatIsRefusedByWhatItIs) {
  MakeCheckpoint();
  for (const std::string& path : {Path("whole.safetensors"), TestData("hf_sharded")}) {
    const Outcome outcome = Ckpt({"repair", path, "--json"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(std::string(Json::parse(outcome.out)["problem"]),
                HasSubstr(path + " is a model in safetensors, expected a checkpoint of this project"));
  }
}

}  // namespace
}  // namespace fsdp
