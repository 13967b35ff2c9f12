// SPDX-License-Identifier: Apache-2.0
//
// The states that SaveCheckpoint refuses: its messages, and that it leaves no file behind.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/save/save_agreement.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const TestTensor kWeight = {StateKey::Model("w"), DType::kFloat32, {6, 2}};

// A state dict of one tensor, of which it holds `held`.
StateDict Holding(const Interval& held, const TestTensor& tensor = kWeight) {
  StateDict state;
  state.type = StateDictType::kSharded;
  ShardedTensor sharded;
  sharded.dtype = tensor.dtype;
  sharded.shape = tensor.shape;
  if (!held.empty()) sharded.shards.push_back({held, MakeElements(tensor, held)});
  state.Set(tensor.key, sharded);
  return state;
}

using StateOfRank = std::function<StateDict(int rank)>;

// The status of each rank of a save.
std::vector<absl::Status> SaveOnAll(int world_size, const std::string& root, const StateOfRank& state_of,
                                    const SaveOptions& options = {}) {
  std::vector<absl::Status> statuses(world_size);
  const absl::Status ran = RunRanks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    const StateDict state = state_of(group->rank());
    statuses[group->rank()] = SaveCheckpoint(state, root, 1, *group, options).status();
    return absl::OkStatus();
  });
  EXPECT_OK(ran);
  return statuses;
}

// Expects the same error on all ranks, and an empty ROOT.
void ExpectRefused(const std::vector<absl::Status>& statuses, const std::string& root, absl::StatusCode code,
                   const std::string& message) {
  for (const absl::Status& status : statuses) EXPECT_THAT(status, StatusIs(code, HasSubstr(message)));
  EXPECT_THAT(ListNames(root), IsEmpty());
}

TEST(SaveErrorsTest, LocalElementsThatAreNoFlatShardAreNamed) {
  const std::string root = NewTestDirectory();
  const auto statuses = SaveOnAll(2, root, [](int rank) {
    StateDict state = Holding(rank == 0 ? Interval{0, 12} : Interval{});
    state.type = StateDictType::kLocal;
    ShardedTensor bias;
    bias.shape = {4};
    if (rank == 0) bias.shards.push_back({{1, 3}, MakeElements({StateKey::Model("b"), DType::kFloat32, {4}}, {1, 3})});
    state.Set(StateKey::Model("b"), bias);
    state.units = {{"h.0", {{"w", 0, 12}, {"b", 12, 4}}, 16}};
    return state;
  });
  ExpectRefused(statuses, root, absl::StatusCode::kInvalidArgument,
                "rank 0 of 2: tensor \"model/b\": elements [1, 3) are held, but elements [0, 3) are in this rank's "
                "shard of the flat parameter of unit \"h.0\"");
}

TEST(SaveErrorsTest, OneRanksErrorReachesAllWithItsRank) {
  const std::string root = NewTestDirectory();
  const auto statuses = SaveOnAll(3, root, [](int rank) {
    return rank == 1 ? Holding({0, 2}, {StateKey::Model(""), DType::kFloat32, {1, 2}}) : Holding({0, 12});
  });
  ExpectRefused(statuses, root, absl::StatusCode::kInvalidArgument, "rank 1 of 3: name \"\" cannot be stored");
}

TEST(SaveErrorsTest, NamesThatCannotBeStoredAreRefusedByName) {
  const std::string root = NewTestDirectory();
  const struct {
    std::string name;
    std::string why;
  } kCases[] = {{"", "it is empty"},
                {std::string("a\0b", 3), "it contains NUL"},
                {"a\xFF", "it is not valid UTF-8"},
                {"\xC0\xAF", "it is not valid UTF-8"},          // overlong
                {"\xED\xA0\x80", "it is not valid UTF-8"},      // a surrogate
                {"\xF4\x90\x80\x80", "it is not valid UTF-8"},  // above U+10FFFF
                {"\xE2\x82", "it is not valid UTF-8"},          // cut short
                {std::string(65537, 'n'), "more than 65536"}};
  for (const auto& bad : kCases) {
    for (const StateKey& key : {StateKey::Model(bad.name), StateKey::OptimState(bad.name, "step"),
                                StateKey::OptimState("w", bad.name), StateKey::Extra(bad.name)}) {
      const auto statuses = SaveOnAll(1, root, [&](int) { return Holding({0, 2}, {key, DType::kFloat32, {2}}); });
      ExpectRefused(statuses, root, absl::StatusCode::kInvalidArgument, bad.why);
    }
  }
}

TEST(SaveErrorsTest, AStepThatIsBeingRepairedIsNotOverwritten) {
  const std::string root = NewTestDirectory();
  const auto whole = [](int) { return Holding({0, 12}); };
  EXPECT_THAT(SaveOnAll(1, root, whole), ElementsAre(IsOk()));
  {
    ASSERT_OK_AND_ASSIGN(const DirectoryLock lock, DirectoryLock::Take(root + "/step-00000001"));
    EXPECT_THAT(SaveOnAll(1, root, whole, {.overwrite = true}),
                ElementsAre(StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is being changed by process"))));
    EXPECT_THAT(ListNames(root), ElementsAre("step-00000001"));
  }
  EXPECT_THAT(SaveOnAll(1, root, whole, {.overwrite = true}), ElementsAre(IsOk()));
}

TEST(SaveErrorsTest, AnExistingStepIsLeftAloneUnlessOverwritten) {
  const std::string root = NewTestDirectory();
  const auto whole = [](int) { return Holding({0, 12}); };
  EXPECT_THAT(SaveOnAll(1, root, whole), ElementsAre(IsOk()));
  const std::string before = ReadFile(root + "/step-00000001/manifest.json");
  EXPECT_THAT(SaveOnAll(1, root, whole),
              ElementsAre(StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("step-00000001 exists"))));
  EXPECT_EQ(ReadFile(root + "/step-00000001/manifest.json"), before);
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000001"));
  EXPECT_THAT(SaveOnAll(1, root, whole, {.overwrite = true}), ElementsAre(IsOk()));
  EXPECT_NE(ReadFile(root + "/step-00000001/manifest.json"), before);
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000001"));
}

TEST(SaveErrorsTest, HolesAndOverlapsAreNamed) {
  const std::string root = NewTestDirectory();
  const auto hole = SaveOnAll(2, root, [](int rank) { return Holding(rank == 0 ? Interval{0, 6} : Interval{8, 12}); });
  ExpectRefused(hole, root, absl::StatusCode::kDataLoss, "tensor \"model/w\": elements [6, 8) are missing");
  const auto overlap = SaveOnAll(2, root, [](int rank) {
    return Holding(rank == 0 ? Interval{0, 8} : Interval{6, 12});
  });
  ExpectRefused(overlap, root, absl::StatusCode::kDataLoss, "tensor \"model/w\": elements [6, 8) are held twice");
  const auto nothing = SaveOnAll(2, root, [](int) { return Holding({0, 0}); });
  ExpectRefused(nothing, root, absl::StatusCode::kDataLoss, "tensor \"model/w\": elements [0, 12) are missing");
}

TEST(SaveErrorsTest, RanksThatDisagreeAreNamed) {
  const std::string root = NewTestDirectory();
  const auto shapes = SaveOnAll(2, root, [](int rank) {
    return Holding(rank == 0 ? Interval{0, 6} : Interval{6, 12},
                   {StateKey::Model("w"), DType::kFloat32, rank == 0 ? Shape{6, 2} : Shape{12}});
  });
  ExpectRefused(shapes, root, absl::StatusCode::kFailedPrecondition, "float32 [12] on rank 1 != float32 [6, 2]");
  const auto kinds = SaveOnAll(2, root, [](int rank) {
    StateDict state = Holding({0, 12});
    if (rank == 1) state.type = StateDictType::kFull;
    return state;
  });
  ExpectRefused(kinds, root, absl::StatusCode::kFailedPrecondition,
                "state_dict_type is \"full\" on rank 1 and \"sharded\" on rank 0");
  const auto texts = SaveOnAll(2, root, [](int rank) {
    StateDict state = Holding(rank == 0 ? Interval{0, 6} : Interval{6, 12});
    state.Set(StateKey::Extra("seed"), absl::StrCat(rank));
    return state;
  });
  ExpectRefused(texts, root, absl::StatusCode::kFailedPrecondition, "text \"extra/seed\" on rank 1 differs");
}

TEST(SaveErrorsTest, StateThatDoesNotFitItselfIsRefused) {
  const std::string root = NewTestDirectory();
  const auto refused = [&](const StateDict& state, const std::string& message) {
    ExpectRefused(SaveOnAll(1, root, [&](int) { return state; }), root, absl::StatusCode::kInvalidArgument, message);
  };
  const auto with_shard = [](const Interval& interval, const Tensor& data) {
    StateDict state = Holding({0, 0});
    ShardedTensor tensor = *state.FindTensor(kWeight.key);
    tensor.shards.push_back({interval, data});
    state.Set(kWeight.key, tensor);
    return state;
  };
  const Tensor twelve = MakeElements(kWeight, {0, 12});
  refused(with_shard({0, 11}, twelve), "shard [0, 11) has 12 elements of float32, expected 11 of float32");
  refused(with_shard({0, 13}, twelve), "shard [0, 13) of 12 elements");
  refused(with_shard({0, 12}, Tensor()), "shard [0, 12) has no data");
  refused(with_shard({0, 12}, MakeElements({kWeight.key, DType::kInt32, {12}}, {0, 12})), "12 elements of int32");
  StateDict apart = Holding({0, 4});
  ShardedTensor tensor = *apart.FindTensor(kWeight.key);
  tensor.shards.push_back({{6, 12}, MakeElements(kWeight, {6, 12})});
  apart.Set(kWeight.key, tensor);
  refused(apart, "shard [6, 12) does not follow [0, 4)");
  StateDict full = Holding({0, 4});
  full.type = StateDictType::kFull;
  refused(full, "a FULL state dict holds whole tensors, but this one [0, 4) of 12 elements");
  StateDict alias = Holding({0, 12});
  alias.aliases["head"] = "absent";
  refused(alias, "alias \"head\" of \"absent\", which is not a tensor of the model");
  StateDict text = Holding({0, 12});
  text.Set(StateKey::Extra("bad"), std::string("\xFF"));
  refused(text, "text \"extra/bad\" is not valid UTF-8");
}

TEST(SaveErrorsTest, CopiesAreNotWrittenTwice) {
  const std::string root = NewTestDirectory();
  // hybrid: ranks 0 and 1 hold the two halves, ranks 2 and 3 copies of them.
  const auto statuses = SaveOnAll(4, root, [](int rank) {
    StateDict state = Holding(rank % 2 == 0 ? Interval{0, 6} : Interval{6, 12});
    ShardedTensor tensor = *state.FindTensor(kWeight.key);
    tensor.replica = rank / 2;
    state.Set(kWeight.key, tensor);
    return state;
  });
  for (const absl::Status& status : statuses) EXPECT_OK(status);
  EXPECT_THAT(ListNames(root + "/step-00000001"),
              ElementsAre("checkpoint.h5", "manifest.json", "rank-00000-of-00002.h5", "rank-00001-of-00002.h5"));
  const std::string manifest = ReadFile(root + "/step-00000001/manifest.json");
  EXPECT_THAT(manifest, AllOf(HasSubstr("\"world_size\": 4"), HasSubstr("\"writers\": 2"),
                              HasSubstr("\"mesh\": {\"replicate\": 2, \"shard\": 2}")));
}

TEST(SaveErrorsTest, CopiesOfAValueThatNoRankSavesAreNotLostSilently) {
  const std::string root = NewTestDirectory();
  const auto statuses = SaveOnAll(2, root, [](int rank) {
    StateDict state = Holding({0, 12}, {StateKey::Model(rank == 0 ? "w" : "only.here"), DType::kFloat32, {6, 2}});
    if (rank == 1) {
      ShardedTensor tensor = *state.FindTensor(StateKey::Model("only.here"));
      tensor.replica = 1;
      state.Set(StateKey::Model("only.here"), tensor);
    }
    return state;
  });
  ExpectRefused(statuses, root, absl::StatusCode::kFailedPrecondition, "rank 1 holds nothing but copies");
}

TEST(SaveErrorsTest, LeftoversAreSweptAndSaidAndALiveSavesNever) {
  const std::string root = NewTestDirectory();
  const auto leave = [&](const std::string& name) {
    EXPECT_OK(PosixFileSystem().MakeDirectory(root + "/" + name));
    WriteAll(root + "/" + name + "/manifest.json", "");
    WriteAll(root + "/" + name + "/rank-00000-of-00001.h5", std::string(1234, 'x'));
  };
  leave(".step-00000007.tmp-0123456789abcdef");
  leave(".step-00000005.deleted-0123456789abcdef");
  leave(".step-00000008.tmp-0123456789abcdef");
  leave(".not-a-step.tmp-0123456789abcdef");
  leave(".step-00000009.tmp-0123456789abcdef");
  WriteAll(root + "/.step-00000009.tmp-0123456789abcdef/thesis.tex", "mine");
  leave(".step-00000009.tmp-mine");
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> lock,
                       PosixFileSystem().OpenLocked(root + "/.step-00000008.tmp-0123456789abcdef/manifest.json"));
  std::vector<std::string> notes;
  SaveOptions options;
  options.note = [&](const std::string& sentence) { notes.push_back(sentence); };
  EXPECT_THAT(SaveOnAll(
                  1, root,
                  [](int) {
                    return Holding({0, 12});
                  },
                  options),
              ElementsAre(IsOk()));
  EXPECT_THAT(notes,
              ElementsAre(HasSubstr("removed what a deletion left that was cut short: "
                                    ".step-00000005.deleted-0123456789abcdef: 1234 bytes, last changed 0s ago"),
                          HasSubstr("removed what a save left that was cut short: "
                                    ".step-00000007.tmp-0123456789abcdef: 1234 bytes, last changed 0s ago"),
                          HasSubstr(".step-00000009.tmp-0123456789abcdef is left in place: it holds thesis.tex")));
  EXPECT_THAT(ListNames(root),
              ElementsAre(".not-a-step.tmp-0123456789abcdef", ".step-00000008.tmp-0123456789abcdef",
                          ".step-00000009.tmp-0123456789abcdef", ".step-00000009.tmp-mine", "step-00000001"));
}

TEST(SaveErrorsTest, OverwritingReplacesCheckpointsAlone) {
  const std::string root = NewTestDirectory();
  EXPECT_OK(PosixFileSystem().MakeDirectory(root + "/step-00000001"));
  WriteAll(root + "/step-00000001/p.txt", "mine");
  SaveOptions options;
  options.overwrite = true;
  const auto statuses = SaveOnAll(
      1, root,
      [](int) {
        return Holding({0, 12});
      },
      options);
  EXPECT_THAT(statuses, ElementsAre(StatusIs(absl::StatusCode::kFailedPrecondition,
                                             HasSubstr("is not a checkpoint of this project and is not overwritten: it "
                                                       "holds p.txt"))));
  EXPECT_EQ(ReadFile(root + "/step-00000001/p.txt"), "mine");
  EXPECT_THAT(ListNames(root), ElementsAre("step-00000001"));
}

TEST(SaveErrorsTest, ACheckpointThatHoldsAFileOfItsOwnersIsNotOverwritten) {
  const std::string root = NewTestDirectory();
  const auto save = [&root] {
    SaveOptions options;
    options.overwrite = true;
    return SaveOnAll(
        1, root,
        [](int) {
          return Holding({0, 12});
        },
        options);
  };
  EXPECT_THAT(save(), ElementsAre(IsOk()));
  WriteAll(root + "/step-00000001/thesis.txt", "mine");
  EXPECT_THAT(save(), ElementsAre(StatusIs(absl::StatusCode::kFailedPrecondition,
                                           HasSubstr("is not overwritten: it holds thesis.txt, which no save wrote"))));
  EXPECT_EQ(ReadFile(root + "/step-00000001/thesis.txt"), "mine");
}

TEST(SaveErrorsTest, ARootThatIsNotSharedIsSaid) {
  const std::string root = NewTestDirectory();
  std::vector<absl::Status> statuses(2);
  ASSERT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    const std::string mine = absl::StrCat(root, "/host", group->rank());  // like a local disk of each host
    const StateDict state = Holding(group->rank() == 0 ? Interval{0, 6} : Interval{6, 12});
    statuses[group->rank()] = SaveCheckpoint(state, mine, 1, *group).status();
    return absl::OkStatus();
  }));
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("must be a directory that all hosts share under this name")));
  }
  EXPECT_THAT(ListNames(root + "/host0"), IsEmpty());
}

TEST(SaveErrorsTest, ARankThatDiesDuringTheSaveLeavesNothingBehind) {
  const std::string root = NewTestDirectory();
  std::vector<absl::Status> statuses(3);
  const absl::Status ran = RunRanks(3, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    const StateDict state = Holding(Dim0Chunk(kWeight.shape, 3, group->rank()));
    if (group->rank() != 2) {
      statuses[group->rank()] = SaveCheckpoint(state, root, 1, *group).status();
      return absl::OkStatus();
    }
    // Rank 2 takes part until the directory exists, and then exits.
    FSDP_ASSIGN_OR_RETURN(const SavePlan plan, PlanSave(state));
    FSDP_RETURN_IF_ERROR(AllReduceStatus(*group, absl::OkStatus()));
    FSDP_RETURN_IF_ERROR(group->AllGatherObject(EncodeFacts(1, state.type, {}, plan)).status());
    FSDP_RETURN_IF_ERROR(AllReduceStatus(*group, absl::OkStatus()));
    FSDP_RETURN_IF_ERROR(group->AllGatherObject(EncodeSharedDirectory({})).status());
    return absl::AbortedError("killed");
  });
  EXPECT_THAT(ran, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 of 3: killed")));
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("killed"));
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("killed"));
  EXPECT_THAT(ListNames(root), IsEmpty());
}

TEST(SaveErrorsTest, ARootThatCannotBeMadeIsNamed) {
  const std::string file = NewTestDirectory() + "/file";
  WriteAll(file, "in the way");
  const auto statuses = SaveOnAll(2, file + "/checkpoints", [](int) { return Holding({0, 12}); });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 0 of 2: "), HasSubstr(file), HasSubstr("errno 20")));
  }
}

}  // namespace
}  // namespace fsdp
