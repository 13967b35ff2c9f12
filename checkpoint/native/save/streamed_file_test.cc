// SPDX-License-Identifier: Apache-2.0
//
// FULL saved from a stream of tensors gives the same file as a state that is whole in memory.
#include <functional>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

using Writer = std::function<absl::Status(const StateDict& part)>;

// `state` without elements: names, dtypes, shapes and texts.
StateDict ContentsOf(const StateDict& state) {
  StateDict contents = state;
  for (const auto& [key, value] : state.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    ShardedTensor named = *tensor;
    named.shards.clear();
    contents.Set(key, named);
  }
  return contents;
}

// The tensors of `state`, the last first, one at a time.
absl::Status StreamBackwards(const StateDict& state, const Writer& write) {
  for (auto entry = state.entries().rbegin(); entry != state.entries().rend(); ++entry) {
    if (std::holds_alternative<std::string>(entry->second)) continue;
    StateDict part;
    part.Set(entry->first, entry->second);
    FSDP_RETURN_IF_ERROR(write(part));
  }
  return absl::OkStatus();
}

// The status of a save of `state` by two ranks, with elements from `stream`.
absl::Status SaveStream(const std::string& root, const StateDict& state,
                        const std::function<absl::Status(const Writer& write)>& stream) {
  return RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    SaveOptions options;
    options.stream = [&](const Writer& write) { return group->rank() == 0 ? stream(write) : absl::OkStatus(); };
    return SaveCheckpoint(group->rank() == 0 ? ContentsOf(state) : StateDict(), root, 1, *group, options).status();
  });
}

TEST(StreamedFileTest, AStreamGivesTheFileOfAStateThatIsWholeInMemory) {
  const StateDict state = FullState(AwkwardTensors());
  const std::string whole = NewTestDirectory();
  ASSERT_OK(RunRanks(
      1, [&](const std::shared_ptr<ProcessGroup>& group) { return SaveCheckpoint(state, whole, 1, *group).status(); }));
  const std::string root = NewTestDirectory();
  ASSERT_OK(SaveStream(root, state, [&](const Writer& write) { return StreamBackwards(state, write); }));
  EXPECT_TRUE(ReadFile(root + "/step-00000001/checkpoint.h5") == ReadFile(whole + "/step-00000001/checkpoint.h5"));
  ASSERT_OK_AND_ASSIGN(const VerifyReport report, VerifyCheckpoint(root + "/step-00000001"));
  EXPECT_THAT(report.problems, IsEmpty());
}

TEST(StreamedFileTest, ATensorThatNeverCameIsNamedAndNothingIsLeft) {
  const StateDict state = FullState(AwkwardTensors());
  const std::string root = NewTestDirectory();
  EXPECT_THAT(SaveStream(root, state, [](const Writer&) { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("are missing")));
  EXPECT_THAT(ListNames(root), IsEmpty());
}

// A part of one tensor.
StateDict PartOf(const TestTensor& tensor) {
  ShardedTensor whole;
  whole.dtype = tensor.dtype;
  whole.shape = tensor.shape;
  whole.shards.push_back({{0, tensor.shape.numel()}, MakeElements(tensor, {0, tensor.shape.numel()})});
  StateDict part;
  part.Set(tensor.key, whole);
  return part;
}

TEST(StreamedFileTest, ATensorThatTheFileWasNotLaidOutForIsNamed) {
  const TestTensor weight = {StateKey::Model("w"), DType::kFloat32, {6, 2}};
  const TestTensor other = {StateKey::Model("w"), DType::kFloat32, {6, 3}};
  const TestTensor stranger = {StateKey::Model("v"), DType::kFloat32, {6, 2}};
  const auto save = [&](const TestTensor& tensor) {
    return SaveStream(NewTestDirectory(), PartOf(weight), [&](const Writer& write) { return write(PartOf(tensor)); });
  };
  EXPECT_THAT(save(other),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[6, 3] float32 is not the [6, 2] float32")));
  EXPECT_THAT(save(stranger), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("was not among the contents")));
}

TEST(StreamedFileTest, TheStreamsErrorIsEveryRanksAndNothingIsLeft) {
  const StateDict state = FullState(AwkwardTensors());
  const std::string root = NewTestDirectory();
  EXPECT_THAT(SaveStream(root, state, [](const Writer&) { return absl::UnavailableError("the gather broke"); }),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the gather broke")));
  EXPECT_THAT(ListNames(root), IsEmpty());
}

TEST(StreamedFileTest, OnlyAFullStateIsStreamed) {
  const absl::Status status = RunRanks(1, [](const std::shared_ptr<ProcessGroup>& group) {
    StateDict state;
    state.type = StateDictType::kSharded;
    SaveOptions options;
    options.stream = [](const Writer&) { return absl::OkStatus(); };
    return SaveCheckpoint(state, NewTestDirectory(), 1, *group, options).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be streamed")));
}

}  // namespace
}  // namespace fsdp
