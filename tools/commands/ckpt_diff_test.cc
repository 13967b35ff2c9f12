// SPDX-License-Identifier: Apache-2.0
//
// The output and exit status of ckpt diff; checkpoint/diff_test.cc tests the search for differences.
#include <filesystem>

#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

using Json = nlohmann::json;
using CkptDiffTest = CkptTest;

TEST_F(CkptDiffTest, EqualCheckpointsOfOtherFormatsExitWithZero) {
  const std::string model = TestData("all_dtypes.safetensors");
  MustCkpt({"convert", model, Path("full")});
  MustCkpt({"convert", model, Path("sharded"), "--state_dict_type=sharded", "--world_size=3"});
  EXPECT_THAT(MustCkpt({"diff", Path("full"), Path("sharded")}),
              AllOf(HasSubstr("A: " + Path("full") + ", full, step 0, world size 1"), HasSubstr("equal: 15 tensors, "),
                    HasSubstr("every value is equal")));
  MustCkpt({"diff", model, Path("sharded"), "--model_only"});
  EXPECT_THAT(MustCkpt({"diff", TestData("hf_sharded"), TestData("hf_sharded")}), HasSubstr("equal: 12 tensors"));
}

TEST_F(CkptDiffTest, AChangedValueExitsWithOneAndIsShown) {
  const std::string model = TestData("hf_sharded");
  MustCkpt({"convert", model, Path("a.safetensors")});
  std::string bytes = ReadFile(Path("a.safetensors"));
  bytes.back() ^= 0x40;  // the highest exponent bit of the last float
  WriteFile(Path("b.safetensors"), bytes);
  Outcome outcome = Ckpt({"diff", Path("a.safetensors"), Path("b.safetensors")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("max abs"), HasSubstr("all tensors"),
                                 HasSubstr("different: 1 of 12 tensors that both have, 0 only in A, 0 only in B")));
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(MustCkpt({"diff", Path("a.safetensors"), Path("b.safetensors"), "--atol=1e39"}),
              AllOf(HasSubstr("within the tolerance"), HasSubstr("equal: 12 tensors")));

  outcome = Ckpt({"diff", Path("a.safetensors"), Path("b.safetensors"), "--json"});
  EXPECT_EQ(outcome.status, 1);
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["total"]["changed"], 1);
  EXPECT_EQ(json["total"]["max_ulps"], 1 << 30);
  EXPECT_EQ(json["tensors"].size(), 12);
  EXPECT_EQ(json["tensors"][0]["values"]["changed"], 0);
  EXPECT_EQ(json["tensors"][11]["equal"], false);
}

TEST_F(CkptDiffTest, StructureIsShown) {
  const std::string model = TestData("hf_sharded");
  MustCkpt({"convert", model, Path("b"), "--dtype=bfloat16", "--exclude=bias"});
  const Outcome outcome = Ckpt({"diff", model, Path("b")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("only in A: model/"), HasSubstr("float32 in A, bfloat16 in B")));
}

TEST_F(CkptDiffTest, AnUnreadableSideIsAProblem) {
  const Outcome outcome = Ckpt({"diff", TestData("hf_sharded"), Path("none"), "--json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(Json::parse(outcome.out)["problem"], Path("none") + " does not exist");
  EXPECT_THAT(outcome.err, HasSubstr("ckpt diff: " + Path("none") + " does not exist"));
}

}  // namespace
}  // namespace fsdp
