// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/run_attributes.h"

#include <fstream>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kMiB = size_t{1} << 20;

std::string DigestOfFile(const std::string& bytes) {
  const std::string path = testing::TempDir() + "/tokens.u16";
  std::ofstream(path, std::ios::binary) << bytes;
  TrainOptions options;
  options.tokens = path;
  const absl::StatusOr<TokenData> data = TokenData::FromTokenFile(path);
  EXPECT_OK(data);
  return data.ok() ? std::get<std::string>(DataAttributes(options, *data).at("data.digest")) : "";
}

TEST(DataAttributesTest, TheDigestIsOfAllTokensUpTo64MiB) {
  std::string bytes(64 * kMiB, 'x');
  const std::string before = DigestOfFile(bytes);
  EXPECT_THAT(before, HasSubstr("xxh3-128:"));
  for (const size_t at : {size_t{0}, 3 * kMiB / 2 + 5, bytes.size() - 1}) {
    bytes[at] = 'y';
    EXPECT_NE(DigestOfFile(bytes), before) << at;
    bytes[at] = 'x';
  }
}

TEST(DataAttributesTest, TheDigestOfALongerFileIsCalledASampleAndCoversBothEnds) {
  std::string bytes(192 * kMiB, 'x');
  const std::string before = DigestOfFile(bytes);
  EXPECT_THAT(before, HasSubstr("xxh3-128-of-64-blocks:"));
  for (const size_t at : {size_t{0}, kMiB - 1, bytes.size() - kMiB, bytes.size() - 1}) {
    bytes[at] = 'y';
    EXPECT_NE(DigestOfFile(bytes), before) << at;
    bytes[at] = 'x';
  }
  bytes[2 * kMiB] = 'y';  // between the first block and the second
  EXPECT_EQ(DigestOfFile(bytes), before);
}

TEST(DataAttributesTest, PathSizeAndWidthOfTheTokensAreRecorded) {
  const std::string path = testing::TempDir() + "/\xff.u32";
  std::ofstream(path, std::ios::binary) << std::string(8, 'x');
  TrainOptions options;
  options.tokens = path;
  ASSERT_OK_AND_ASSIGN(const TokenData data, TokenData::FromTokenFile(path));
  const RunMetadata attributes = DataAttributes(options, data);
  EXPECT_EQ(attributes.at("data.bytes"), AttributeValue(8));
  EXPECT_EQ(attributes.at("data.token_bytes"), AttributeValue(4));
  EXPECT_THAT(std::get<std::string>(attributes.at("data.path")), HasSubstr("/\\377.u32"));  // attributes are UTF-8
}

// Runs AgreeOnAttributes on two ranks, with `first` on rank 0 and `second` on rank 1; *agreed is rank 1's result.
absl::Status Agree(const RunMetadata& first, const RunMetadata& second, RunMetadata* agreed = nullptr) {
  return RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    RestoreOptions run;
    run.listed = {{"data.path", "t.u16"}, {"data.digest", "xxh3-128:aa"}};
    for (const auto& [name, value] : group->rank() == 0 ? first : second) run.listed[name] = value;
    FSDP_RETURN_IF_ERROR(AgreeOnAttributes(run, *group));
    if (group->rank() == 1 && agreed != nullptr) *agreed = AllAttributes(run);
    return absl::OkStatus();
  });
}

TEST(AgreeOnAttributesTest, RanksThatReadOtherTokensAreRefused) {
  EXPECT_THAT(Agree({}, {{"data.path", "u.u16"}, {"data.digest", "xxh3-128:bb"}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("data.digest: xxh3-128:aa on rank 0 ("), HasSubstr(", t.u16), xxh3-128:bb on"),
                             HasSubstr("on rank 1 ("), HasSubstr(", u.u16); expected the same on all ranks"))));
}

TEST(AgreeOnAttributesTest, EqualTokensInTwoPlacesAreRecordedWithThePathOfRank0) {
  RunMetadata agreed;
  ASSERT_OK(Agree({{"data.path", "/scratch/rank0/t.u16"}}, {{"data.path", "/scratch/rank1/t.u16"}}, &agreed));
  EXPECT_EQ(agreed.at("data.path"), AttributeValue("/scratch/rank0/t.u16"));
}

TEST(AgreeOnAttributesTest, RanksWithOtherOptionsAreRefusedByName) {
  EXPECT_THAT(Agree({{"options.eps", 0.5}, {"options.lr", 0.25}}, {{"options.eps", 0.5}, {"options.lr", 0.5}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("options.lr: 0.25 on rank 0 ("), HasSubstr("), 0.5 on rank 1 ("))));
}

TEST(OptionAttributesTest, ADefaultHasTheNameThatTheFlagHas) {
  TrainOptions options;
  options.max_grad_norm = 0.1;
  options.fsdp.init_seed = ~uint64_t{0};
  const RunMetadata attributes = OptionAttributes(options, 3, DeviceType::kCpu);
  EXPECT_EQ(attributes.at("options.nproc"), AttributeValue(3));
  EXPECT_EQ(attributes.at("options.param_dtype"), AttributeValue("float32"));
  EXPECT_EQ(attributes.at("options.max_grad_norm"), AttributeValue(0.1));
  EXPECT_EQ(attributes.at("options.seed"), AttributeValue("18446744073709551615"));
  options.fsdp.mixed_precision.param_dtype = DType::kBFloat16;
  EXPECT_EQ(OptionAttributes(options, 3, DeviceType::kCpu).at("options.output_dtype"), AttributeValue("bfloat16"));
}

// A run without --attention records the attention that it computed: a resume on another kind of device reports a
// difference.
TEST(OptionAttributesTest, AttentionIsOnlineIn16BitsOnAGpuAndEagerElsewhereUnlessItIsChosen) {
  const auto attention = [](const TrainOptions& options, DeviceType device) {
    return OptionAttributes(options, 1, device).at("options.attention");
  };
  TrainOptions options;
  EXPECT_EQ(attention(options, DeviceType::kCuda), AttributeValue("eager"));
  options.fsdp.mixed_precision.param_dtype = DType::kBFloat16;
  EXPECT_EQ(attention(options, DeviceType::kCuda), AttributeValue("online"));
  EXPECT_EQ(attention(options, DeviceType::kCpu), AttributeValue("eager"));
  options.attention = AttentionKind::kOnline;
  EXPECT_EQ(attention(options, DeviceType::kCpu), AttributeValue("online"));
  options.attention = AttentionKind::kEager;
  EXPECT_EQ(attention(options, DeviceType::kCuda), AttributeValue("eager"));
}

TEST(ParseAllowedTest, ANameMayLackItsSectionAndASectionIsAllInIt) {
  EXPECT_THAT(ParseAllowed("", "gpt2"), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParseAllowed("model.n_head,lr", "gpt2"), IsOkAndHolds(ElementsAre("model.n_head", "options.lr")));
  EXPECT_THAT(ParseAllowed(" model.n_head, lr ,", "gpt2"), IsOkAndHolds(ElementsAre("model.n_head", "options.lr")));
  EXPECT_THAT(ParseAllowed("data", "gpt2"),
              IsOkAndHolds(ElementsAre("data.bytes", "data.digest", "data.path", "data.token_bytes")));
  EXPECT_THAT(ParseAllowed("rope_scaling.factor", "llama"), IsOkAndHolds(ElementsAre("model.rope_scaling.factor")));
}

TEST(ParseAllowedTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_THAT(ParseAllowed("n_head,heads", "gpt2"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--allow=heads: expected model, data, options, or one of"),
                             HasSubstr("model.n_head"), HasSubstr("data.digest"), HasSubstr("options.lr"))));
  EXPECT_THAT(ParseAllowed("n_head", "llama"), StatusIs(absl::StatusCode::kInvalidArgument));
}

// A run that does not use a new option saves the bytes of a run before it, and nothing that differs is silent.
TEST(RecordedAttributesTest, OptionsOfLaterReleasesAreLeftOutAndImplied) {
  TrainOptions options;
  options.learning_rate = {.lr = 0.5, .min_lr = 0.5};
  RestoreOptions run;
  for (const bool cosine : {false, true}) {
    if (cosine) options.learning_rate.min_lr = 0;
    run.listed = OptionAttributes(options, 1, DeviceType::kCpu);
    const RunMetadata recorded = RecordedAttributes(run);
    EXPECT_EQ(recorded.count("options.lr_schedule"), 0u);
    EXPECT_EQ(recorded.count("options.symm_mem_for_comm"), 0u);
    EXPECT_EQ(recorded.count("options.loss_chunks"), 0u);
    EXPECT_EQ(WithImpliedOptions(recorded), run.listed);
    EXPECT_EQ(WithImpliedOptions(recorded).at("options.lr_schedule"), AttributeValue(cosine ? "cosine" : "constant"));
  }
  options.learning_rate.schedule = LrSchedule::kWsd;
  options.fsdp.symm_mem_for_comm = true;
  options.loss_chunks = 8;
  run.listed = OptionAttributes(options, 1, DeviceType::kCpu);
  EXPECT_EQ(RecordedAttributes(run).at("options.lr_schedule"), AttributeValue("wsd"));
  EXPECT_EQ(RecordedAttributes(run).at("options.symm_mem_for_comm"), AttributeValue(true));
  EXPECT_EQ(RecordedAttributes(run).at("options.loss_chunks"), AttributeValue(8));
  EXPECT_EQ(WithImpliedOptions({{"model.n_head", 3}}).size(), 1u) << "no options are recorded";
}

// --allow knows every attribute of a run.
TEST(ParseAllowedTest, EveryAttributeOfARunIsKnown) {
  ASSERT_OK(RunRanks(1, [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    for (const char* kind : {"gpt2", "llama"}) {
      FSDP_ASSIGN_OR_RETURN(const CausalLmConfig config,
                            CausalLmPreset(kind, kind == std::string("gpt2") ? "gpt2-tiny" : "llama-3.1-8b"));
      const RunMetadata data = {{"data.path", ""}, {"data.bytes", 1}, {"data.token_bytes", 1}, {"data.digest", ""}};
      const RestoreOptions run = RunAttributes(TrainOptions(), config, data, *group);
      for (const auto& [name, value] : AllAttributes(run)) EXPECT_OK(ParseAllowed(name, kind)) << name;
    }
    return absl::OkStatus();
  }));
}

TEST(DescribeDifferencesTest, OtherTokensAreSaidInASentenceAndAllowedOptionsAreNot) {
  RestoreOptions run;
  run.saved = {{"data.digest", "a"}, {"model.n_head", 3}, {"options.lr", 0.1}};
  run.required = {{"model.n_head", 4}};
  run.allowed = {"model.n_head", "options.lr"};
  const std::vector<AttributeDifference> differences = {
      {"data.digest", "a", "b"}, {"model.n_head", 3, 4}, {"options.lr", 0.1, 0.2}, {"options.eps", 0.1, 0.2}};
  EXPECT_THAT(DescribeDifferences("step-1", run, differences),
              ElementsAre("differs from step-1: data.digest: \"a\" -> \"b\"",
                          "these are other tokens than step-1 was trained on; pass --allow=data if this is intended",
                          "allowed to differ from step-1: model.n_head: 3 -> 4",
                          "differs from step-1: options.eps: 0.1 -> 0.2"));
  run.saved.clear();
  EXPECT_THAT(DescribeDifferences("step-1", run, differences), IsEmpty());
}

TEST(DescribeDifferencesTest, ASectionThatWasNotRecordedIsOneSentence) {
  RestoreOptions run;
  run.saved = {{"model.n_head", 3}};
  const std::vector<AttributeDifference> differences = {
      {"data.path", {}, "b"}, {"model.n_layer", {}, 4}, {"options.eps", {}, 0.2}, {"options.lr", {}, 0.2}};
  EXPECT_THAT(DescribeDifferences("step-1", run, differences),
              ElementsAre("step-1 records nothing in the section data", "step-1 records nothing in the section options",
                          "differs from step-1: model.n_layer: not recorded -> 4"));
}

}  // namespace
}  // namespace fsdp
