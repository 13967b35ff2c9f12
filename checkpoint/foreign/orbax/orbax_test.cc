// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_testutil.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_driver.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_names.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_paths.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_source.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_tree.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

// An array of a test's tree: i4, stored without compression as one chunk.
struct TestArray {
  std::string name;
  std::vector<int32_t> elements;
  bool is_scalar = false;
  std::string type = "jax.Array";
  std::string dtype = "<i4";
};

std::string Zarray(const TestArray& array) {
  const std::string shape = array.is_scalar ? "[]" : absl::StrCat("[", array.elements.size(), "]");
  return absl::StrCat(R"({"zarr_format": 2, "shape": )", shape, R"(, "chunks": )", shape, R"(, "dtype": ")",
                      array.dtype, R"(", "order": "C", "fill_value": null, "filters": null, "compressor": null})");
}

std::string Bytes(const TestArray& array) {
  return std::string(reinterpret_cast<const char*>(array.elements.data()), array.elements.size() * 4);
}

std::string Leaf(const std::string& name, const std::string& type, bool skips = false) {
  const std::vector<std::string> keys = absl::StrSplit(name, '.');
  const std::string path = absl::StrJoin(keys, "', '");
  const std::string metadata = absl::StrJoin(keys, R"(", "key_type": 2}, {"key": ")");
  return absl::StrCat("\"('", path, R"json(',)": {"key_metadata": [{"key": ")json", metadata,
                      R"json(", "key_type": 2}], "value_metadata": {"value_type": ")json", type,
                      R"json(", "skip_deserialize": )json", skips ? "true" : "false", "}}");
}

std::string Tree(const std::vector<std::string>& leaves, bool use_ocdbt = false) {
  return absl::StrCat("{\"tree_metadata\": {", absl::StrJoin(leaves, ", "),
                      "}, \"use_ocdbt\": ", use_ocdbt ? "true" : "false",
                      ", \"store_array_data_equal_to_fill_value\": true}");
}

class OrbaxTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) const {
    const std::string path = root_ + "/" + name;
    fs::create_directories(fs::path(path).parent_path());
    WriteAll(path, bytes);
  }

  // An item of folders, with its _METADATA and, in addition, `leaves`.
  void WriteItem(const std::string& item, const std::vector<TestArray>& arrays,
                 std::vector<std::string> leaves = {}) const {
    for (const TestArray& array : arrays) {
      const std::string folder = absl::StrCat(item, "/", array.name, "/");
      Write(folder + ".zarray", Zarray(array));
      Write(folder + "0", Bytes(array));
      leaves.push_back(Leaf(array.name, array.type));
    }
    Write(item + "/_METADATA", Tree(leaves));
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& name, bool skips = false) const {
    return OpenOrbaxSource(root_ + "/" + name, {.skip_links = skips});
  }

  static std::vector<std::string> Names(const TensorSource& source) {
    std::vector<std::string> names;
    for (const auto& [key, value] : source.contents().entries()) names.push_back(key.ToString());
    return names;
  }

  const std::string root_ = NewTestDirectory();
  const std::vector<TestArray> state_ = {{"params.w", {1, 2}},
                                         {"opt_state.0.mu.w", {3, 4}},
                                         {"opt_state.0.count", {9}, true},
                                         {"step", {12}, true, "scalar"}};
};

TEST_F(OrbaxTest, ARootOpensItsNewestCompleteStep) {
  WriteItem("9/default", state_);
  WriteItem("10/default", state_);
  WriteItem("11.orbax-checkpoint-tmp-123/default", state_);
  fs::create_directories(root_ + "/12");
  ASSERT_OK_AND_ASSIGN(const PathProbe probe, ProbePath(root_));
  EXPECT_THAT(OrbaxDriver().Recognises(probe), IsOkAndHolds(true));
  EXPECT_THAT(OrbaxDriver().Resolve(root_), IsOkAndHolds(root_ + "/10"));
  ASSERT_OK_AND_ASSIGN(const auto source, Open(""));
  EXPECT_EQ(source->step(), 10);
  EXPECT_THAT(Names(*source), ElementsAre("model/w", "optim/state/w/mu", "extra/opt_state.0.count", "extra/step"));
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("11.orbax-checkpoint-tmp-123\" (an unfinished checkpoint)"),
                                              HasSubstr("\"12\" (there is no checkpoint in it)")));
  EXPECT_THAT(source->layout().notes,
              Contains(AllOf(HasSubstr("step 10 is the name of the folder"), HasSubstr("\"step\" in it is 12"))));
  for (const std::string& file : source->files()) EXPECT_TRUE(fs::is_regular_file(file)) << file;
}

TEST_F(OrbaxTest, StepsMayBeItemsThemselves) {
  WriteItem("3", state_);
  WriteItem("4", state_);
  EXPECT_THAT(OrbaxPathOf(root_), IsOkAndHolds(OrbaxPath::kRoot));
  ASSERT_OK_AND_ASSIGN(const auto source, Open(""));
  EXPECT_EQ(source->step(), 4);
  EXPECT_EQ(source->contents().entries().size(), 4u);
}

TEST_F(OrbaxTest, StepsWithoutOneOrderAreRefused) {
  WriteItem("run_9/default", state_);
  WriteItem("best_10/default", state_);
  EXPECT_THAT(Open(""), StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("best_10"), HasSubstr("run_9"))));
  fs::rename(root_ + "/run_9", root_ + "/best_0010");
  EXPECT_THAT(Open(""), StatusIs(StatusCode::kInvalidArgument, HasSubstr("nothing says which is newer")));
}

TEST_F(OrbaxTest, AnUnfinishedCheckpointIsRefusedByItsName) {
  WriteItem("7.orbax-checkpoint-tmp-1/default", state_);
  EXPECT_THAT(Open("7.orbax-checkpoint-tmp-1"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("is unfinished")));
}

TEST_F(OrbaxTest, TheStepOfATreeIsItsCounter) {
  WriteItem("item", state_);
  ASSERT_OK_AND_ASSIGN(const auto source, Open("item"));
  EXPECT_EQ(source->step(), 12);
  EXPECT_THAT(source->layout().text, HasSubstr("model from \"params\", optimizer from \"opt_state\""));
}

TEST_F(OrbaxTest, ANameThatEndsInANumberIsAStepOnlyIfAManagerGaveItOrNothingElseIsKnown) {
  WriteItem("model_3", state_);
  WriteItem("model_4", {{"params.w", {1, 2}}});
  ASSERT_OK_AND_ASSIGN(const auto counted, Open("model_3"));
  EXPECT_EQ(counted->step(), 12);
  ASSERT_OK_AND_ASSIGN(const auto named, Open("model_4"));
  EXPECT_EQ(named->step(), 4);
  EXPECT_THAT(named->layout().notes, ElementsAre(HasSubstr("step 4 is the name of the folder \"model_4\"")));
}

TEST_F(OrbaxTest, SeveralItemsAreBranchesAndJsonIsAnExtraValue) {
  WriteItem("7/state", state_);
  WriteItem("7/ema", {{"w", {5, 6}}});
  Write("7/metadata/metadata", "{\"lr\": NaN}");
  Write("7/iterator/state.bin", "\x01\x02");
  Write("7/_CHECKPOINT_METADATA", R"({"item_handlers": {"state": "x.StandardCheckpointHandler",)"
                                  R"( "metadata": "x.JsonCheckpointHandler"}})");
  ASSERT_OK_AND_ASSIGN(const auto source, Open("7"));
  EXPECT_EQ(source->step(), 7);
  EXPECT_THAT(Names(*source), ElementsAre("model/w", "optim/state/w/mu", "extra/ema.w", "extra/state.opt_state.0.count",
                                          "extra/state.step", "extra/metadata"));
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("metadata")), "{\"lr\": NaN}");
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("\"iterator\"")));
  // Two models: nothing says which is meant.
  WriteItem("7/ema", {{"params.w", {5, 6}}});
  EXPECT_THAT(Open("7"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("several items have a branch \"params\"")));
  ASSERT_OK_AND_ASSIGN(const auto item, Open("7/ema"));
  EXPECT_EQ(item->step(), 7);
}

TEST_F(OrbaxTest, ArraysOfSeveralItemsAreNotMistakenForEachOther) {
  // Decoded chunks of all items are kept together, by the number of their array.
  const auto write = [&](const std::string& folder, int32_t element) {
    const TestArray array = {"", {element}};
    uLongf nbytes = 64;
    std::string stream(nbytes, '\0');
    compress(reinterpret_cast<Bytef*>(stream.data()), &nbytes, reinterpret_cast<const Bytef*>(array.elements.data()),
             4);
    Write(folder + "/.zarray",
          absl::StrReplaceAll(Zarray(array), {{R"("compressor": null)", R"("compressor": {"id": "zlib"})"}}));
    Write(folder + "/0", stream.substr(0, nbytes));
  };
  WriteItem("7/a", {{"packed", {1}, false, "jax.Array", "float4_e2m1fn"}}, {Leaf("w", "jax.Array")});
  write("7/a/w", 5);
  WriteItem("7/b", {}, {Leaf("v", "jax.Array")});
  write("7/b/v", 6);
  ASSERT_OK_AND_ASSIGN(const auto source, Open("7", /*skips=*/true));
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("a.w")), IsOkAndHolds(Bytes({"", {5}})));
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("b.v")), IsOkAndHolds(Bytes({"", {6}})));
}

TEST_F(OrbaxTest, AnItemThatIsMissingIsDamage) {
  WriteItem("7/state", state_);
  const std::string handlers = R"({"item_handlers": {"state": "x.StandardCheckpointHandler", "more": ")";
  Write("7/_CHECKPOINT_METADATA", handlers + "x.JsonCheckpointHandler\"}}");
  EXPECT_THAT(Open("7"), StatusIs(StatusCode::kDataLoss, HasSubstr("7/more is missing")));
  Write("7/more/commit_success.txt", "done");
  EXPECT_THAT(Open("7"), StatusIs(StatusCode::kDataLoss, HasSubstr("expected one file of JSON")));
  Write("7/more/metadata", "{\"lr\": ");
  EXPECT_THAT(Open("7"), StatusIs(StatusCode::kDataLoss, HasSubstr("7/more/metadata")));
  Write("7/_CHECKPOINT_METADATA", handlers + "x.PyTreeCheckpointHandler\"}}");
  EXPECT_THAT(Open("7"), StatusIs(StatusCode::kDataLoss, HasSubstr("neither _METADATA nor manifest.ocdbt")));
}

TEST_F(OrbaxTest, TextsAndEmptyLeaves) {
  WriteItem("item", state_, {Leaf("name", "string"), Leaf("opt_state.1", "None", true)});
  EXPECT_THAT(Open("item"), StatusIs(StatusCode::kNotFound, HasSubstr("_strings.json")));
  Write("item/_strings.json", "{\"other\": \"x\"}");
  EXPECT_THAT(Open("item"), StatusIs(StatusCode::kDataLoss, HasSubstr("text \"name\" is missing")));
  Write("item/_strings.json", "{\"name\": \"run 7\"}");
  ASSERT_OK_AND_ASSIGN(const auto source, Open("item"));
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("name")), "run 7");
}

TEST_F(OrbaxTest, LeavesAndArraysAreCompared) {
  WriteItem("item", state_, {Leaf("params.b", "jax.Array")});
  EXPECT_THAT(Open("item"), StatusIs(StatusCode::kDataLoss, HasSubstr("array \"params.b\" is missing")));
  WriteItem("item", state_);
  Write("item/params.old/.zarray", Zarray({"", {1}}));
  ASSERT_OK_AND_ASSIGN(const auto source, Open("item"));
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("\"params.old\" (an array that is no leaf of _METADATA)")));
  fs::remove(root_ + "/item/params.w/0");
  EXPECT_THAT(Open("item"), StatusIs(StatusCode::kDataLoss, HasSubstr("\"params.w\": 1 of its chunks are missing")));
}

TEST_F(OrbaxTest, TheFormOfTheArraysIsTheOneThatTheTreeStates) {
  WriteItem("item", state_);
  Write("item/manifest.ocdbt", OcdbtTestManifest().Frame());
  EXPECT_THAT(Open("item"), StatusIs(StatusCode::kDataLoss, HasSubstr("says that the arrays are in folders")));
  fs::remove(root_ + "/item/manifest.ocdbt");
  Write("item/_METADATA", Tree({Leaf("params.w", "jax.Array")}, /*use_ocdbt=*/true));
  EXPECT_THAT(Open("item"), StatusIs(StatusCode::kDataLoss, HasSubstr("manifest.ocdbt is missing")));
  fs::remove(root_ + "/item/_METADATA");
  Write("item/_sharding", "{}");
  EXPECT_THAT(Open("item"), StatusIs(StatusCode::kDataLoss, HasSubstr("_METADATA is missing")));
}

TEST_F(OrbaxTest, IntegersOfFourBitsBecomeBytes) {
  Write("arrays/w/.zarray", Zarray({"", {1, 2, 3, 4}, false, "", "int4"}));
  Write("arrays/w/0", "\x07\x09\x0f\xf8");
  ASSERT_OK_AND_ASSIGN(const auto source, Open("arrays"));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("w"))->dtype, DType::kInt8);
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("w")), IsOkAndHolds("\x07\xf9\xff\xf8"));
  EXPECT_THAT(source->Places(StateKey::Model("w")), StatusIs(StatusCode::kUnimplemented, HasSubstr("another dtype")));
}

TEST_F(OrbaxTest, ADtypeThatNoTensorHasIsRefusedByName) {
  std::vector<TestArray> arrays = state_;
  arrays.push_back({"params.packed", {1}, false, "jax.Array", "float4_e2m1fn"});
  WriteItem("item", arrays);
  EXPECT_THAT(Open("item"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"params.packed\" (dtype float4_e2m1fn)"), HasSubstr("skip_links"))));
  ASSERT_OK_AND_ASSIGN(const auto source, Open("item", true));
  EXPECT_THAT(source->left_out(), ElementsAre(HasSubstr("\"params.packed\" (dtype float4_e2m1fn)")));
  EXPECT_EQ(source->contents().entries().size(), 4u);
}

TEST_F(OrbaxTest, ValuesInMsgpackOfEarlyVersionsAreRefusedByName) {
  WriteItem("item", state_, {Leaf("epoch", "scalar", true)});
  EXPECT_THAT(Open("item"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("\"epoch\" (in the msgpack file")));
}

TEST_F(OrbaxTest, FoldersOfZarrWithoutOrbaxAreAModel) {
  for (const TestArray& array : {TestArray{"w", {1, 2}}, TestArray{"b", {3}}}) {
    Write("arrays/" + array.name + "/.zarray", Zarray(array));
  }
  Write("arrays/w/0", Bytes({"", {1, 2}}));
  ASSERT_OK_AND_ASSIGN(const auto source, Open("arrays"));
  EXPECT_THAT(Names(*source), ElementsAre("model/b", "model/w"));
  EXPECT_EQ(source->step(), -1);
  // Nothing says that all chunks are stored, but their absence is not silent.
  EXPECT_THAT(source->layout().notes, ElementsAre(HasSubstr("\"b\": 1 of its chunks are not stored")));
  EXPECT_FALSE(StorageOf(*source, StateKey::Model("b")).has_value());
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("b")), IsOkAndHolds(std::string(4, '\0')));
}

TEST_F(OrbaxTest, ArraysOfVersion3InGroupsAreNamedByTheirPaths) {
  const std::string json =
      R"({"zarr_format": 3, "node_type": "array", "shape": [1], "data_type": "int32", "fill_value": 0,)"
      R"( "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}}, "chunk_key_encoding":)"
      R"( {"name": "default"}, "codecs": ["bytes"], "attributes": {"kind": "group"}})";
  Write("arrays/zarr.json", R"({"zarr_format": 3, "node_type": "group"})");
  for (const char* name : {"a", "g/b"}) {
    Write(absl::StrCat("arrays/", name, "/zarr.json"), json);
    Write(absl::StrCat("arrays/", name, "/c/0"), Bytes({"", {5}}));
  }
  Write("arrays/g/zarr.json", R"({"zarr_format": 3, "node_type": "group"})");
  ASSERT_OK_AND_ASSIGN(const auto source, Open("arrays"));
  EXPECT_THAT(Names(*source), ElementsAre("model/a", "model/g/b"));
  EXPECT_THAT(ReadWhole(*source, StateKey::Model("g/b")), IsOkAndHolds(Bytes({"", {5}})));
}

TEST_F(OrbaxTest, AnArrayFarLargerThanWhatIsStoredOfItSaysSo) {
  const std::string large =
      absl::StrReplaceAll(Zarray({"", {1}}), {{R"("shape": [1])", R"("shape": [1099511627776])"}});
  Write("arrays/w/.zarray", large);
  Write("arrays/w/7", Bytes({"", {5}}));
  ASSERT_OK_AND_ASSIGN(const auto source, Open("arrays"));
  EXPECT_EQ(StorageOf(*source, StateKey::Model("w"))->nbytes, 4);
  int32_t out[3] = {};
  EXPECT_OK(source->Read(StateKey::Model("w"), {6, 9}, out));
  EXPECT_THAT(out, ElementsAre(0, 5, 0));
}

TEST_F(OrbaxTest, OtherDirectoriesAreNotTaken) {
  Write("plain/file", "x");
  Write("runs/7/file", "x");
  Write("megatron/w/.zarray", Zarray({"", {1}}));
  Write("megatron/metadata.json", "{}");
  for (const char* name : {"plain", "runs", "megatron"}) {
    EXPECT_THAT(OrbaxPathOf(root_ + "/" + name), IsOkAndHolds(OrbaxPath::kNone)) << name;
  }
}

OrbaxNames MustName(const std::vector<std::string>& names, const std::vector<std::string>& scalars = {}) {
  std::vector<OrbaxArrayName> arrays;
  for (const std::string& name : names) arrays.push_back({name, Shape{2, 3}});
  for (const std::string& name : scalars) arrays.push_back({name, Shape{}});
  const absl::StatusOr<OrbaxNames> named = NameOrbaxArrays(arrays, {});
  EXPECT_OK(named.status());
  return named.ok() ? *named : OrbaxNames();
}

std::vector<std::string> Texts(const OrbaxNames& names) {
  std::vector<std::string> texts;
  for (const StateKey& key : names.keys) texts.push_back(key.ToString());
  return texts;
}

TEST(OrbaxNamesTest, AStateIsNamedByWhatComesBeforeItsParameter) {
  EXPECT_THAT(Texts(MustName({"params.a.w", "params.w", "opt_state.1.0.nu.a.w", "opt_state.inner.trace.w",
                              "opt_state.0.mu.other", "opt_state.w", "batch_stats.mean"},
                             {"opt_state.hyperparams.w", "opt_state.1.0.count"})),
              ElementsAre("model/a.w", "model/w", "optim/state/a.w/nu", "optim/state/w/trace",
                          "extra/opt_state.0.mu.other", "extra/opt_state.w", "extra/batch_stats.mean",
                          "extra/opt_state.hyperparams.w", "extra/opt_state.1.0.count"));
}

TEST(OrbaxNamesTest, StatesOfTwoOptimizersKeepTheirPaths) {
  EXPECT_THAT(Texts(MustName({"params.w", "opt_state.0.mu.w", "opt_state.1.mu.w", "opt_state.1.nu.w"})),
              ElementsAre("model/w", "optim/state/w/0.mu", "optim/state/w/1.mu", "optim/state/w/nu"));
}

TEST(OrbaxNamesTest, ATreeWithoutBranchesIsAModelButItsCounters) {
  EXPECT_THAT(Texts(MustName({"layer.w"}, {"step", "scale"})),
              ElementsAre("model/layer.w", "extra/step", "model/scale"));
  EXPECT_THAT(Texts(MustName({"layer.w", "opt_state.0.mu.w"})), ElementsAre("extra/layer.w", "extra/opt_state.0.mu.w"));
}

TEST(OrbaxTreeTest, DamageIsNamed) {
  EXPECT_THAT(ParseOrbaxTree("{"), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(ParseOrbaxTree("{}"), StatusIs(StatusCode::kDataLoss, HasSubstr("tree_metadata")));
  EXPECT_THAT(
      ParseOrbaxTree(Tree({Leaf("a.b", "scalar"), absl::StrReplaceAll(Leaf("a", "scalar"), {{"\"a\"", "\"a.b\""}})})),
      StatusIs(StatusCode::kDataLoss, HasSubstr("two leaves of tree_metadata have the name \"a.b\"")));
  EXPECT_THAT(ParseOrbaxTree(absl::StrReplaceAll(Tree({Leaf("a", "scalar")}), {{"value_type", "type"}})),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("tree_metadata, "), HasSubstr("value_type"))));
  ASSERT_OK_AND_ASSIGN(const OrbaxTree tree, ParseOrbaxTree(absl::StrReplaceAll(Tree({Leaf("a", "scalar")}),
                                                                                {{"true}", "true, \"x\": NaN}"}})));
  EXPECT_EQ(tree.leaves.size(), 1u);
}

}  // namespace
}  // namespace fsdp
