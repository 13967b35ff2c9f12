// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint that is whole and a process that cannot read it, in every format: the report names what this machine
// lacks, in text and JSON, and never speaks of damage.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/source/zero_payload_testutil.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

using Json = nlohmann::json;

// The program has so many descriptors, three of which are standard input, output and errors.
constexpr int kLimits[] = {4, 5, 6, 7, 8, 10, 16};

class CkptUnreadTest : public CkptTest {
 protected:
  // Path("root/step-00000003"): three rank files and one of parity; and Path(NAME) in every other format.
  void MakeEveryFormat() {
    StateDict state;
    ShardedTensor tensor;
    tensor.shape = {300, 100};
    for (const char* name : {"a.weight", "b.weight", "c.weight"}) state.Set(StateKey::Model(name), tensor);
    const std::string step = Path("root/step-00000003");
    fs::create_directories(Path("root"));
    ASSERT_OK(WriteCheckpointDirectory(step, state, ZeroPayload(),
                                       {.type = StateDictType::kSharded, .world_size = 3, .step = 3, .parity = 1}));
    MustCkpt({"convert", step, Path("full")});
    fs::copy_file(Path("full/checkpoint.h5"), Path("plain.h5"));
    MustCkpt({"convert", step, Path("dcp"), "--to=dcp", "--world_size=3"});
    MustCkpt({"convert", step, Path("hub"), "--to=safetensors", "--max_shard_size=150KB"});
    for (const char* name : {"one.safetensors", "model.pt", "model.npz"}) MustCkpt({"convert", step, Path(name)});
  }
};

constexpr const char* kNames[] = {"root", "full", "plain.h5", "dcp", "hub", "one.safetensors", "model.pt", "model.npz"};

TEST_F(CkptUnreadTest, TooFewDescriptorsAreNamedAndNoDamage) {
  MakeEveryFormat();
  int refusals = 0;
  for (const char* name : kNames) {
    MustCkpt({"verify", Path(name)});
    for (const int limit : kLimits) {
      SCOPED_TRACE(absl::StrCat(name, " with ", limit, " descriptors"));
      const std::string ulimit = absl::StrCat("-n ", limit);
      const Outcome text = CkptWithin(ulimit, {"verify", Path(name)});
      ASSERT_THAT(text.status, AnyOf(0, 1)) << text.err;
      EXPECT_THAT(text.out + text.err, Not(HasSubstr("damaged")));
      if (text.status == 0) continue;
      ++refusals;
      EXPECT_THAT(text.out + text.err, AnyOf(HasSubstr("Too many open files"), HasSubstr("cannot confine a process")));
      const Outcome outcome = CkptWithin(ulimit, {"verify", Path(name), "--json"});
      const Json json = Json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(json.is_object()) << outcome.out;
      EXPECT_EQ(json["ok"], outcome.status == 0);
      EXPECT_EQ(json["unread"], json["problems"]);
      EXPECT_TRUE(json["damage"].empty());
    }
  }
  EXPECT_GT(refusals, 5);
}

// The repaired file would be right too; but a user who reads of a repair replaces a disk that is good.
TEST_F(CkptUnreadTest, TooFewDescriptorsAreNoReasonToRepair) {
  MakeEveryFormat();
  const std::string step = Path("root/step-00000003");
  for (const int limit : kLimits) {
    const Outcome outcome = CkptWithin(absl::StrCat("-n ", limit), {"repair", step, "--dry_run"});
    EXPECT_THAT(outcome.out + outcome.err, Not(HasSubstr("would repair"))) << limit;
    EXPECT_THAT(outcome.out + outcome.err, AnyOf(HasSubstr("nothing is damaged"), HasSubstr("Too many open files")))
        << limit;
  }
}

TEST_F(CkptUnreadTest, ACodecThatIsNotReadIsNoDamage) {
  fs::create_directories(Path("zarr/w"));
  std::ofstream(Path("zarr/w/.zarray")) << R"({"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<f4",
      "order": "C", "fill_value": 0, "filters": null, "compressor": {"id": "bz2", "level": 1}})";
  std::ofstream(Path("zarr/w/0")) << "BZh1";
  const Outcome outcome = Ckpt({"verify", Path("zarr")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("compressor \"bz2\" is not read, expected zstd, gzip, zlib or blosc"));
  EXPECT_THAT(outcome.out + outcome.err, Not(HasSubstr("damaged")));
}

TEST_F(CkptUnreadTest, DamageBesideWhatCannotBeReadIsNamedAsDamage) {
  MakeEveryFormat();
  fs::remove(Path("root/step-00000003/rank-00001-of-00003.h5"));
  const Outcome outcome = CkptWithin("-n 4", {"verify", Path("root")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("damaged: rank-00001-of-00003.h5: the file is missing"));
  EXPECT_THAT(outcome.out, HasSubstr("not read: "));
  EXPECT_THAT(outcome.err, HasSubstr("is damaged: 1 problem, and was not wholly read: "));
}

}  // namespace
}  // namespace fsdp
