// SPDX-License-Identifier: Apache-2.0
//
// Tests that attributes of a state dict survive each kind of save, loading, repair and conversion.
#include <filesystem>
#include <functional>
#include <limits>
#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/native/async_saver.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRanks = 3;

RunMetadata Example() {
  return {{"model.n_head", 4},
          {"model.activation_function", "gelu_new"},
          {"model.layer_norm_epsilon", 1e-5},
          {"model.pad_token_id", AttributeValue()},
          {"model.tie_word_embeddings", true},
          {"options.lr", 0.1 + 0.2},
          {"data.path", "Größe \"x\"\n"}};
}

StateDict StateWithAttributes(StateDictType type, int rank) {
  StateDict state = StateOf(type, AwkwardTensors(), kRanks, rank);
  state.attributes = Example();
  return state;
}

// Saves on kRanks ranks as step 1 of a new directory; returns the checkpoint's path.
std::string Save(StateDictType type, const SaveOptions& options = {}) {
  const std::string root = NewTestDirectory();
  EXPECT_OK(RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(StateWithAttributes(type, group->rank()), root, 1, *group, options).status();
  }));
  return root + "/step-00000001";
}

RunMetadata Described(const std::string& path) {
  const absl::StatusOr<StateDict> contents = DescribeCheckpoint(path);
  EXPECT_OK(contents);
  return contents.ok() ? contents->attributes : RunMetadata();
}

absl::Status SaveOnRanks(const std::function<void(int rank, StateDict&)>& change) {
  const std::string root = NewTestDirectory();
  return RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
    StateDict state = StateWithAttributes(StateDictType::kSharded, group->rank());
    change(group->rank(), state);
    return SaveCheckpoint(state, root, 1, *group).status();
  });
}

class SavedAttributesTest : public testing::TestWithParam<StateDictType> {};

INSTANTIATE_TEST_SUITE_P(Kinds, SavedAttributesTest,
                         testing::Values(StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal),
                         [](const auto& info) { return std::string(StateDictTypeName(info.param)); });

TEST_P(SavedAttributesTest, ACheckpointGivesThemBackByEveryBit) {
  const std::string path = Save(GetParam());
  EXPECT_EQ(Described(path), Example());
  StateDict wanted = WantedState(AwkwardTensors(), kRanks, 1);
  wanted.attributes = {{"not", "saved"}};
  ASSERT_OK(LoadCheckpoint(path, wanted));
  EXPECT_EQ(wanted.attributes, Example());
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(path));
  EXPECT_THAT(report.problems, IsEmpty());
}

TEST_P(SavedAttributesTest, AnAsynchronousSaveKeepsThem) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(root, *group, {}));
    FSDP_RETURN_IF_ERROR(saver->Save(StateWithAttributes(GetParam(), group->rank()), 1).status());
    return saver->Wait().status();
  }));
  EXPECT_EQ(Described(root + "/step-00000001"), Example());
}

TEST_P(SavedAttributesTest, AConversionToOurOwnFormatKeepsThem) {
  const std::string converted = NewTestDirectory() + "/converted";
  ConvertOptions options;
  options.target = Hdf5Target{.type = GetParam()};
  ASSERT_OK_AND_ASSIGN(const ConvertReport report,
                       ConvertCheckpoint(Save(StateDictType::kSharded), converted, options));
  EXPECT_THAT(report.notes, IsEmpty());
  EXPECT_EQ(Described(converted), Example());
}

TEST(AttributesInCheckpointsTest, AFullSaveByAllRanksKeepsThem) {
  EXPECT_EQ(Described(Save(StateDictType::kSharded, {.type = StateDictType::kFull})), Example());
}

TEST(AttributesInCheckpointsTest, AnIncrementalSaveHasThoseOfItsOwnRun) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    StateDict state = StateWithAttributes(StateDictType::kSharded, group->rank());
    FSDP_ASSIGN_OR_RETURN(const std::string first, SaveCheckpoint(state, root, 1, *group));
    state.attributes["options.lr"] = 0.5;
    return SaveCheckpoint(state, root, 2, *group, {.base = first}).status();
  }));
  EXPECT_EQ(Described(root + "/step-00000001").at("options.lr"), AttributeValue(0.1 + 0.2));
  EXPECT_EQ(Described(root + "/step-00000002").at("options.lr"), AttributeValue(0.5));
}

TEST(AttributesInCheckpointsTest, ARepairWithoutTheManifestGivesThemBack) {
  for (const StateDictType type : {StateDictType::kSharded, StateDictType::kLocal}) {
    const std::string path = Save(type, {.parity = 1});
    for (const std::string& lost : {std::string(kManifestName), RankFileName(0, kRanks)}) {
      std::filesystem::remove(path + "/" + lost);  // in the second round the file whose record has them
    }
    ASSERT_OK_AND_ASSIGN(const RepairReport report, RepairCheckpoint(path, {}));
    EXPECT_TRUE(report.is_whole());
    EXPECT_EQ(Described(path), Example());
  }
}

TEST(AttributesInCheckpointsTest, AConversionToAnotherFormatSaysThatTheyAreLeftOut) {
  const std::string path = Save(StateDictType::kSharded);
  ConvertOptions options;
  options.target = SafetensorsTarget();
  options.names.include = {"^h\\.0\\."};
  const absl::StatusOr<ConvertReport> report = ConvertCheckpoint(path, NewTestDirectory() + "/m", options);
  ASSERT_OK(report);
  EXPECT_THAT(report->notes, testing::Contains(HasSubstr("7 attributes of the run that saved it")));
}

TEST(AttributesInCheckpointsTest, RanksThatDifferAreRefused) {
  EXPECT_THAT(SaveOnRanks([](int rank, StateDict& state) {
                if (rank == 2) state.attributes["options.lr"] = 0.5;
              }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("the attributes on rank 2 differ from rank 0's, which are saved: options.lr: ")));
}

TEST(AttributesInCheckpointsTest, AnAttributeThatCannotBeStoredIsRefusedByName) {
  const struct {
    std::string name;
    AttributeValue value;
    std::string words;
  } kCases[] = {
      {"options.lr", std::numeric_limits<double>::infinity(), "attribute \"options.lr\": inf cannot be stored"},
      {"options.lr", std::numeric_limits<double>::quiet_NaN(), "only finite numbers can"},
      {"data.path", "\xff", "attribute \"data.path\" is not valid UTF-8"},
      {"data.path", std::string(1, '\0'), "attribute \"data.path\": it holds NUL"},
      {"", 1, "the name is empty"},
      {std::string(257, 'x'), 1, "the name has 257 bytes, more than 256"},
      {"data.path", std::string((1 << 20) + 1, 'x'), "more than 1048576 bytes"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(SaveOnRanks([&](int, StateDict& state) { state.attributes[test.name] = test.value; }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(test.words)));
  }
}

// The form of checkpoints from before attributes existed.
TEST(AttributesInCheckpointsTest, AManifestWithoutThemIsReadAndHasNone) {
  const std::string root = NewTestDirectory();
  ASSERT_OK(RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    return SaveCheckpoint(FullState(AwkwardTensors()), root, 1, *group).status();
  }));
  const std::string path = root + "/step-00000001";
  EXPECT_EQ(ReadFile(path + "/manifest.json").find("attributes"), std::string::npos);
  EXPECT_THAT(Described(path), IsEmpty());
  StateDict wanted = WantedState(AwkwardTensors(), 1, 0);
  wanted.attributes = {{"not", "saved"}};
  ASSERT_OK(LoadCheckpoint(path, wanted));
  EXPECT_THAT(wanted.attributes, IsEmpty());
}

}  // namespace
}  // namespace fsdp
