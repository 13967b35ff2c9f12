// SPDX-License-Identifier: Apache-2.0
//
// The output and exit status of ckpt diff; checkpoint/diff_test.cc tests the search for differences.
#include <algorithm>
#include <filesystem>
#include <string>

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
using testing::Not;

using Json = nlohmann::json;
using CkptDiffTest = CkptTest;

TEST_F(CkptDiffTest, EqualCheckpointsOfOtherFormatsExitWithZero) {
  const std::string model = TestData("all_dtypes.safetensors");
  MustCkpt({"convert", model, Path("full")});
  MustCkpt({"convert", model, Path("sharded"), "--state_dict_type=sharded", "--world_size=3"});
  EXPECT_THAT(MustCkpt({"diff", Path("full"), Path("sharded")}),
              AllOf(HasSubstr("A: " + Path("full") + ", full, an unknown step, world size 1"),
                    HasSubstr("equal: 15 tensors, "), HasSubstr("every value is equal")));
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

TEST_F(CkptDiffTest, TheKindOfDifferenceComesFirst) {
  const std::string model = TestData("hf_sharded");
  MustCkpt({"convert", model, Path("half.safetensors"), "--dtype=bfloat16"});
  MustCkpt({"convert", model, Path("named.safetensors"), "--rename=^=module."});
  EXPECT_THAT(
      Ckpt({"diff", model, Path("half.safetensors")}).out,
      AllOf(HasSubstr("difference: dtypes only\ndtypes: "), HasSubstr(" are float32 in A, bfloat16 in B; every")));
  const Outcome named = Ckpt({"diff", model, Path("named.safetensors")});
  EXPECT_EQ(named.status, 1);
  EXPECT_THAT(named.out, AllOf(HasSubstr("difference: names only\nnames: 12 tensors have no prefix in A, the prefix "
                                         "\"module.\" in B; all are equal but for that\n"),
                               HasSubstr("different: 0 of 12 tensors that both have, 0 only in A, 0 only in B, 12 "
                                         "under another prefix\n"),
                               Not(HasSubstr("only in A: "))));
  const Json json = Json::parse(Ckpt({"diff", model, Path("named.safetensors"), "--json"}).out);
  EXPECT_EQ(json["kinds"], Json({"names"}));
  EXPECT_EQ(json["renamed"]["prefix"], Json({"", "module."}));
  EXPECT_EQ(json["renamed"]["tensors"].size(), 12);
  EXPECT_EQ(json["only_in_b"].size(), 12);
  EXPECT_THAT(json["tensors"], IsEmpty());
}

TEST_F(CkptDiffTest, TheLargestDifferencesAreShownAndTopSaysHowMany) {
  MustCkpt({"convert", TestData("hf_sharded"), Path("a.safetensors")});
  std::string bytes = ReadFile(Path("a.safetensors"));
  // The lowest bit of the last byte of every float of the last 16 kB: of several tensors.
  for (size_t i = bytes.size() - 16384 + 3; i < bytes.size(); i += 4) bytes[i] ^= 1;
  WriteFile(Path("b.safetensors"), bytes);
  const Json json = Json::parse(Ckpt({"diff", Path("a.safetensors"), Path("b.safetensors"), "--json", "--top=1"}).out);
  ASSERT_EQ(json["largest"].size(), 1);
  double largest = 0;
  for (const Json& tensor : json["tensors"]) largest = std::max(largest, tensor["values"]["max_abs"].get<double>());
  EXPECT_EQ(json["total"]["max_abs"], largest);
  const std::string text = Ckpt({"diff", Path("a.safetensors"), Path("b.safetensors"), "--top=1"}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("difference: values only\nvalues: "),
                          HasSubstr(json["largest"][0].get<std::string>()), HasSubstr(" more (--top=1; ")));
  const Outcome refused = Ckpt({"diff", Path("a.safetensors"), Path("b.safetensors"), "--top=-1"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--top=-1, expected 0 or more"));
}

TEST_F(CkptDiffTest, AnUnreadableSideIsAProblem) {
  const Outcome outcome = Ckpt({"diff", TestData("hf_sharded"), Path("none"), "--json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(Json::parse(outcome.out)["problem"], Path("none") + " does not exist");
  EXPECT_THAT(outcome.err, HasSubstr("ckpt diff: " + Path("none") + " does not exist"));
}

}  // namespace
}  // namespace fsdp
