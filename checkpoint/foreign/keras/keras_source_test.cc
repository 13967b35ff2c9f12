// SPDX-License-Identifier: Apache-2.0
//
// Files in the forms of Keras that the goldens (checkpoint/conformance) do not have: legacy files, several files with
// an index, and contradictions between them.
#include "fsdp/checkpoint/foreign/keras/keras_source.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/hdf5/foreign_hdf5.h"
#include "fsdp/checkpoint/foreign/hdf5/root_links.h"
#include "fsdp/checkpoint/foreign/keras/keras_names.h"
#include "fsdp/checkpoint/foreign/keras/keras_optimizer.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string TestData(const std::string& name) { return "checkpoint/foreign/keras/testdata/" + name; }

std::vector<std::string> NamesIn(const TensorSource& source) {
  std::vector<std::string> names;
  for (const auto& [key, value] : source.contents().entries()) names.push_back(key.ToString());
  return names;
}

TEST(KerasSourceTest, ALegacyFileHasTheNamesInItsPaths) {
  const std::string path = NewTestDirectory() + "/model.h5";
  {
    ForeignHdf5 file(path);
    file.AddDataset("/model_weights/up/net/up/kernel:0", {1, 2});
    file.AddDataset("/model_weights/up/net/up/bias:0", {3});
    file.AddDataset("/optimizer_weights/adam/iteration", {4});
  }
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path));
  EXPECT_EQ(source->format(), "keras");
  EXPECT_THAT(NamesIn(*source),
              ElementsAre("model/net/up/bias", "model/net/up/kernel", "extra/optimizer_weights/adam/iteration"));
}

TEST(KerasSourceTest, LinksAreNotFollowedInSilence) {
  const std::string path = NewTestDirectory() + "/model.h5";
  {
    ForeignHdf5 file(path);
    file.AddDataset("/model_weights/up/up/kernel", {1, 2});
    file.AddExternalLink("/model_weights/up/up/bias", "/etc/passwd", "/x");
  }
  EXPECT_THAT(OpenTensorSource(path),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("\"/model_weights/up/up/bias\" (external link"),
                                                           HasSubstr("TensorSourceOptions::skip_links"))));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path, {.skip_links = true}));
  EXPECT_THAT(NamesIn(*source), ElementsAre("model/up/kernel"));
}

// Two files with an index.
class Sharded {
 public:
  Sharded() {
    ForeignHdf5 first(directory_ + "/net_00000.weights.h5");
    first.AddDataset("/layers/dense/vars/0", {1, 2});
    ForeignHdf5 second(directory_ + "/net_00001.weights.h5");
    second.AddDataset("/layers/dense/vars/1", {3});
    second.AddDataset("/vars/0", {4});
  }

  std::string index = R"({"metadata": {"total_size": 16}, "weight_map": {
      "/layers/dense/vars": ["net_00000.weights.h5", "net_00001.weights.h5"], "/vars": "net_00001.weights.h5"}})";

  std::string Path(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open() const {
    WriteAll(Path("net.weights.json"), index);
    return OpenTensorSource(Path("net.weights.json"));
  }

 private:
  const std::string directory_ = NewTestDirectory();
};

TEST(KerasSourceTest, FilesOfAnIndexAreOne) {
  const Sharded sharded;
  ASSERT_OK_AND_ASSIGN(const auto source, sharded.Open());
  EXPECT_THAT(NamesIn(*source), ElementsAre("model/layers/dense/vars/0", "model/layers/dense/vars/1", "model/vars/0"));
  EXPECT_EQ(source->files().size(), 3u);
  float bias = 0;
  ASSERT_OK(source->Read(StateKey::Model("layers/dense/vars/1"), {0, 1}, &bias));
  EXPECT_EQ(bias, 3);
  EXPECT_THAT(OpenTensorSource(sharded.Path("net_00001.weights.h5")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("is one of several files of a model: give ")));
}

TEST(KerasSourceTest, AnIndexThatItsFilesContradictIsDamage) {
  Sharded elsewhere;
  elsewhere.index = absl::StrReplaceAll(elsewhere.index, {{R"("/vars": "net_00001)", R"("/vars": "net_00000)"}});
  EXPECT_THAT(elsewhere.Open(),
              StatusIs(StatusCode::kDataLoss, HasSubstr("\"/vars\" are in net_00001.weights.h5, where "
                                                        "the index does not place them")));
  Sharded more;
  more.index =
      absl::StrReplaceAll(more.index, {{R"("/vars": )", R"("/layers/x/vars": "net_00001.weights.h5", "/vars": )"}});
  EXPECT_THAT(more.Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("\"/layers/x/vars\" are in no file")));
  Sharded outside;
  outside.index = absl::StrReplaceAll(outside.index, {{R"("/vars": "net)", R"("/vars": "../net)"}});
  EXPECT_THAT(outside.Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("which is no file beside it")));
  const Sharded missing;
  std::filesystem::remove(missing.Path("net_00000.weights.h5"));
  EXPECT_THAT(missing.Open(), StatusIs(StatusCode::kNotFound, HasSubstr("net_00000.weights.h5")));
}

TEST(KerasSourceTest, WithoutTheConfigTheOptimizersVariablesAreNumbered) {
  ASSERT_OK_AND_ASSIGN(const auto numbered, OpenTensorSource(TestData("functional_adamw/model.weights.h5")));
  EXPECT_THAT(numbered->layout().notes, Contains(HasSubstr("the order of the variables is in .keras archives only")));
  ASSERT_OK_AND_ASSIGN(const auto named, OpenTensorSource(TestData("functional_adamw/model.keras")));
  EXPECT_THAT(named->layout().notes, IsEmpty());
}

TEST(KerasSourceTest, ADamagedArchiveIsNoticedByItsCrc) {
  std::string bytes = ReadFile(TestData("functional_adamw/model.keras"));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TestData("functional_adamw/model.keras")));
  ASSERT_OK_AND_ASSIGN(const auto places, source->Places(StateKey::Model("head/kernel")));
  bytes[places[0].offset] ^= 1;
  const std::string path = NewTestDirectory() + "/model.keras";
  WriteAll(path, bytes);
  ASSERT_OK_AND_ASSIGN(const auto damaged, OpenTensorSource(path));
  EXPECT_THAT(damaged->covering_checksums()->VerifyRest(),
              StatusIs(StatusCode::kDataLoss, HasSubstr("entry \"model.weights.h5\"")));
}

// One dense layer "up" with a frozen one "down", and what AdamW has of them.
struct Trained {
  Hdf5Listing listing;
  std::string config = R"({"config": {"layers": [{"config": {"name": "up", "trainable": true}},
      {"config": {"name": "down", "trainable": false}}]},
      "compile_config": {"optimizer": {"class_name": "AdamW", "config": {"amsgrad": false, "use_ema": false}}}})";

  Trained() {
    listing.groups = {{"/layers/input_layer/vars", "in"},
                      {"/layers/dense/vars", "up"},
                      {"/layers/dense_1/vars", "down"},
                      {"/optimizer/vars", "adam_w"}};
    Add("/layers/dense/vars/0", {2, 3});
    Add("/layers/dense/vars/1", {3});
    Add("/layers/dense_1/vars/0", {3, 3});
    for (const int i : {0, 1}) Add(absl::StrCat("/optimizer/vars/", i), {});
    Add("/optimizer/vars/2", {2, 3});
    Add("/optimizer/vars/3", {2, 3});
    Add("/optimizer/vars/4", {3});
    Add("/optimizer/vars/5", {3});
  }

  void Add(const std::string& path, const std::vector<int64_t>& dims) {
    Hdf5Dataset& dataset = listing.datasets.emplace_back();
    dataset.path = path;
    dataset.type = "float32";
    dataset.dims = dims;
  }

  absl::StatusOr<std::vector<std::string>> Slots() const {
    const absl::StatusOr<std::vector<KerasSlot>> slots = SlotsOfKeras(config, listing, NamesOfKeras(listing));
    if (!slots.ok()) return slots.status();
    std::vector<std::string> texts;
    for (const KerasSlot& slot : *slots) texts.push_back(absl::StrCat(slot.variable, " ", slot.slot));
    return texts;
  }
};

TEST(KerasOptimizerTest, SlotsFollowTheTrainedVariablesInTheOrderOfTheModel) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> slots, Trained().Slots());
  EXPECT_THAT(slots, ElementsAre("up/kernel momentum", "up/kernel velocity", "up/bias momentum", "up/bias velocity"));
}

TEST(KerasOptimizerTest, AnOrderThatIsNotKnownIsNotGuessed) {
  const auto expect = [](const std::string& from, const std::string& to, const std::string& why) {
    Trained trained;
    trained.config = absl::StrReplaceAll(trained.config, {{from, to}});
    EXPECT_THAT(trained.Slots(), StatusIs(StatusCode::kInvalidArgument, HasSubstr(why))) << why;
  };
  expect("AdamW", "Own", "the optimizer \"Own\" is not known");
  expect("\"use_ema\": false", "\"use_ema\": true", "keeps averages");
  expect("\"amsgrad\": false", "\"amsgrad\": true", "too few variables");
  expect("\"trainable\": false", "\"trainable\": true", "too few variables");
  expect("\"down\"", "\"other\"", "the config has no layer \"down\"");
  expect("AdamW", "SGD", "more variables than the model's");
  Trained other;
  other.listing.datasets[5].dims = {3, 2};
  EXPECT_THAT(other.Slots(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("has another shape than \"up/kernel\"")));
  Trained unknown;
  unknown.listing.datasets[1].path = "/layers/dense/vars/2";
  EXPECT_THAT(unknown.Slots(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("layer \"up\" is not known")));
  Trained without;
  without.listing.datasets.resize(4);
  EXPECT_THAT(without.Slots(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("has no iteration")));
  Trained broken;
  broken.config = "{";
  EXPECT_THAT(broken.Slots(), StatusIs(StatusCode::kDataLoss, HasSubstr("")));
}

TEST(RootLinksTest, TheNamesOfTheRootGroupAreInTheFirstBytes) {
  EXPECT_THAT(RootLinksOf(ReadFile(TestData("functional_adamw/model.weights.h5")).substr(0, 4096)),
              ElementsAre("vars", "layers", "optimizer"));
  const std::string path = NewTestDirectory() + "/new.h5";
  ForeignHdf5(path).AddDataset("/model_weights/up", {1});  // in the form since 1.8
  const std::string bytes = ReadFile(path);
  EXPECT_THAT(RootLinksOf(bytes), ElementsAre("model_weights"));
  for (size_t size = 0; size < bytes.size(); ++size) RootLinksOf(bytes.substr(0, size));  // is no crash
  EXPECT_THAT(RootLinksOf("HEAP"), IsEmpty());
  EXPECT_THAT(RootLinksOf(std::string("HEAP\0\0\0\0", 8) + std::string(64, '\xff')), IsEmpty());
}

}  // namespace
}  // namespace fsdp
