// SPDX-License-Identifier: Apache-2.0
//
// Files that the real PyTorch wrote, and malicious files.
#include "fsdp/checkpoint/foreign/torch/pt/torch_source.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/torch/pt/joined_files.h"
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class GoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, EveryTensorHasTheBytesThatPyTorchGaveIt) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TorchTestData(GetParam())));
  EXPECT_OK(CheckGolden(*source, GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenTest,
                         testing::Values("full.pt", "by_id.pth", "legacy.pt", "protocol3.pt", "protocol4.pt",
                                         "protocol5.pt", "step_is_int.pt", "views.pt", "views_legacy.pt", "indexed",
                                         "tensor_lr.pt", "rare_dtypes.pt"));

INSTANTIATE_TEST_SUITE_P(FlatParameters, GoldenTest, testing::Values("flat.pt", "flat_ranks_w3", "flat_orig_ranks_w2"));

INSTANTIATE_TEST_SUITE_P(DcpDirectories, GoldenTest,
                         testing::Values("fsdp1_w2", "fsdp2_w3", "hybrid_w4", "tensor_parallel_w4"));

INSTANTIATE_TEST_SUITE_P(Layouts, GoldenTest, testing::Values("app", "top", "two_models.pt"));

// Reads any interval of any tensor, in pieces whose size divides nothing.
TEST_P(GoldenTest, PartsAreThoseOfTheWhole) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TorchTestData(GetParam())));
  for (const auto& [key, value] : source->contents().entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    ASSERT_OK_AND_ASSIGN(const std::string whole, ReadWhole(*source, key));
    const int64_t size = SizeOf(tensor->dtype);
    for (int64_t begin = 0; begin < tensor->shape.numel(); begin += 3) {
      const Interval part = {begin, std::min<int64_t>(begin + 5, tensor->shape.numel())};
      std::string bytes(part.size() * size, '\0');
      ASSERT_OK(source->Read(key, part, bytes.data()));
      ASSERT_EQ(bytes, whole.substr(begin * size, part.size() * size)) << key.ToString() << part.ToString();
    }
  }
}

TEST(TorchSourceTest, LocalStateDictsAreReadWithALayout) {
  for (const auto& [name, layout_file] : {std::pair{"flat_local_w3", "flat_layout.json"},
                                          {"flat_local_orig_w2", "flat_layout.json"},
                                          {"gpt2_local_w3", "gpt2_layout.json"}}) {
    EXPECT_THAT(
        OpenTensorSource(TorchTestData(name)),
        StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("_flat_param\" is a flat parameter of FSDP1"),
                                                           HasSubstr("TensorSourceOptions::flat_layout"))));
    StateDict wanted;
    EXPECT_THAT(LoadCheckpoint(TorchTestData(name), wanted),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("; LoadOptions::flat_layout provides it")));
    EXPECT_THAT(DescribeCheckpoint(TorchTestData(name)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("; DescribeOptions::flat_layout provides it")));
    ASSERT_OK_AND_ASSIGN(const auto layout, ReadFlatLayout(TorchTestData(layout_file)));
    ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TorchTestData(name), {.flat_layout = layout}));
    EXPECT_OK(CheckGolden(*source, name));
  }
}

// Such as stable-baselines3's, or a directory that a person has packed.
TEST(TorchSourceTest, TheWeightsInAnArchiveOfAnotherProgramAreNamed) {
  const std::string path = NewTestDirectory() + "/policy.zip";
  WriteAll(path, absl::StrReplaceAll(ReadFile(TorchTestData("full.pt")), {{"data.pkl", "ppol.pth"}}));
  EXPECT_THAT(OpenTensorSource(path),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a zip archive without a data.pkl, so torch.save did not write it; it holds "),
                             HasSubstr("/ppol.pth: unpack it, `unzip FILE`, and give one"))));
}

TEST(TorchSourceTest, TensorsOfParamGroupsAreNumbersWithANote) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TorchTestData("tensor_lr.pt")));
  const auto groups = nlohmann::json::parse(*source->contents().FindText(StateKey::ParamGroups()));
  EXPECT_EQ(groups[0]["lr"], static_cast<double>(1e-3f));
  EXPECT_EQ(groups[0]["betas"], nlohmann::json({0.9, static_cast<double>(0.95f)}));
  EXPECT_EQ(groups[0]["__tensors__"],
            nlohmann::json({{"lr", "float32"}, {"betas.0", "float64"}, {"betas.1", "float32"}}));
}

TEST(TorchSourceTest, TiedTensorsAreStoredOnceAndBecomeAliases) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTorchSource(TorchTestData("full.pt")));
  EXPECT_THAT(source->contents().aliases, ElementsAre(Pair("head.weight", "embed.weight")));
  EXPECT_EQ(source->contents().FindTensor(StateKey::Model("head.weight")), nullptr);
}

TEST(TorchSourceTest, AValueOfNeitherModelNorOptimizerIsAnExtraValue) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTorchSource(TorchTestData("full.pt")));
  EXPECT_EQ(source->step(), 3);
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("step")), "3");
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("epoch")), "1.5");
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("note")), "\"1\"");  // a string that looks like a number
}

TEST(TorchSourceTest, PythonValuesThatJsonLacksAreKeptUnderTheirNames) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTorchSource(TorchTestData("by_id.pth")));
  const std::string* scheduler = source->contents().FindText(StateKey::Extra("scheduler"));
  ASSERT_NE(scheduler, nullptr);
  EXPECT_THAT(*scheduler, AllOf(HasSubstr(R"("milestones":{"__python__":"Counter","items":[[30,1]]})"),
                                HasSubstr(R"("best":{"__python__":"float","value":"inf"})"),
                                HasSubstr(R"("betas":{"__python__":"tuple","items":[0.9,0.99]})"),
                                HasSubstr(R"("ids":{"__python__":"set","items":[1,2]})"),
                                HasSubstr(R"("raw":{"__python__":"bytes","hex":"0161"})")));
}

// DCP pickles a tuple whole, with its tensors.
TEST(TorchSourceTest, TensorsInAPickledValueOfDcpAreTensors) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TorchTestData("tuples_dcp")));
  EXPECT_OK(CheckGolden(*source, "tuples_dcp"));
  EXPECT_EQ(source->world_size(), 1);
  const std::string* const text = source->contents().FindText(StateKey::Extra("rng"));
  ASSERT_NE(text, nullptr);
  EXPECT_THAT(*text, HasSubstr(absl::StrCat(R"({"__python__":"tuple","items":[)", ReferenceText("rng.pair.0"), ",[",
                                            ReferenceText("rng.pair.1.0"), "],", ReferenceText("rng.pair.2"), "]}")));
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("rng.pair.2")), "7");
  for (const auto& [name, numel] : {std::pair("rng.pair.0", 5), {"rng.pair.1.0", 4}, {"rng.state", 3}}) {
    ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadWhole(*source, StateKey::Extra(name)));
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    ASSERT_EQ(values.size(), numel) << name;
    for (int i = 0; i < numel; ++i) EXPECT_EQ(values[i], static_cast<float>(i) / 8) << name;
  }
  EXPECT_OK(VerifyRest(*source));
}

// Weights next to an object are read, and the object is named: with model_only, with skip_links or in the refusal.
TEST(TorchSourceTest, AnObjectOfAClassDoesNotLockTheWeightsBesideIt) {
  for (const char* name : {"objects.pt", "objects_legacy.pt", "objects_dcp"}) {
    EXPECT_THAT(OpenTensorSource(TorchTestData(name)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(name), HasSubstr("\"_io.BytesIO\""), HasSubstr("nothing was executed"),
                               HasSubstr("save getvalue()"))));
    for (const TensorSourceOptions& options :
         {TensorSourceOptions{.model_only = true}, TensorSourceOptions{.skip_links = true}}) {
      ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TorchTestData(name), options));
      EXPECT_OK(CheckGolden(*source, name));
      EXPECT_EQ(source->step(), 3);
      EXPECT_THAT(source->left_out(), testing::Contains(HasSubstr("\"_io.BytesIO\"")));
    }
    StateDict wanted;
    ShardedTensor tensor;
    tensor.shape = {2, 3};
    wanted.Set(StateKey::Model("other"), tensor);
    EXPECT_THAT(LoadCheckpoint(TorchTestData(name), wanted),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"_io.BytesIO\"")));
  }
}

TEST(TorchSourceTest, EveryObjectIsNamedByItsPathAndClass) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TorchTestData("objects.pt"), {.skip_links = true}));
  const auto named = [](const char* path, const char* global) {
    return AllOf(HasSubstr(absl::StrCat("\"", path, "\"")), HasSubstr(absl::StrCat("\"", global, "\"")));
  };
  EXPECT_THAT(source->left_out(),
              ElementsAre(named("args", "argparse.Namespace"), named("paths.0", "pathlib.PosixPath"),
                          named("when", "datetime.datetime"), named("color", "__main__.Color"),
                          named("config", "__main__.Config"), named("history", "__main__.History"),
                          named("by_name", "collections.defaultdict"), named("buffer", "_io.BytesIO"),
                          named("rng.numpy", "numpy.random._pickle.__generator_ctor"),
                          named("rng.python", "random.Random"), named("type", "argparse.Namespace")));
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("rng")), R"({"step":3})");
  EXPECT_EQ(*source->contents().FindText(StateKey::Extra("paths")), R"([null,"b"])");
}

TEST(TorchSourceTest, TensorsInOtherFormsAreNamedAndDoNotLockTheModel) {
  EXPECT_THAT(OpenTensorSource(TorchTestData("other_forms.pt")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a sparse tensor: save its to_dense()")));
  for (const TensorSourceOptions& options :
       {TensorSourceOptions{.model_only = true}, TensorSourceOptions{.skip_links = true}}) {
    ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TorchTestData("other_forms.pt"), options));
    EXPECT_OK(CheckGolden(*source, "other_forms.pt"));
    const std::string* const text = source->contents().FindText(StateKey::Extra("forms"));
    ASSERT_NE(text, nullptr);
    EXPECT_EQ(*text, R"({"csr":[null],"set":{"__python__":"set","items":[7]},"lr":0.5})");
    EXPECT_THAT(source->left_out(),
                ElementsAre(HasSubstr("\"forms.sparse\" (an object of \"torch._utils._rebuild_sparse_tensor\""),
                            HasSubstr("\"forms.csr.0\" (an object of \"torch._utils._rebuild_sparse_tensor\""),
                            HasSubstr("\"forms.int8\" (an object of \"torch._utils._rebuild_qtensor\""),
                            HasSubstr("\"forms.meta\" (an object of \"torch._utils._rebuild_meta_tensor"),
                            HasSubstr("\"forms.nested\" (an object of \"torch._utils._rebuild_nested_tensor\""),
                            AllOf(HasSubstr("\"forms.mask\""), HasSubstr("the subclass \"__main__.Mask\" is not read")),
                            AllOf(HasSubstr("\"forms.conj\""), HasSubstr("a tensor with \"conj\" set")),
                            HasSubstr("\"forms.set."), HasSubstr("\"forms.storage\"")));
  }
  EXPECT_THAT(OpenTensorSource(TorchTestData("sparse_model.pt"), {.model_only = true}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tensors of the model in other forms"), HasSubstr("\"model.mask\""))));
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TorchTestData("sparse_model.pt"), {.skip_links = true}));
  EXPECT_OK(CheckGolden(*source, "sparse_model.pt"));
}

// Arrays of floating-point numbers could be weights, so they are named.
TEST(TorchSourceTest, NumbersOfNumpyAreValuesAndItsFloatingPointArraysAreObjects) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(TorchTestData("numpy.pt"), {.skip_links = true}));
  EXPECT_OK(CheckGolden(*source, "numpy.pt"));
  EXPECT_THAT(source->left_out(),
              ElementsAre(AllOf(HasSubstr("\"losses\""), HasSubstr("torch.from_numpy()")), HasSubstr("\"names\"")));
  const auto text = [&](const char* name) { return *source->contents().FindText(StateKey::Extra(name)); };
  EXPECT_EQ(text("best"), R"({"__python__":"numpy","module":"numpy._core.multiarray","dtype":"<f8","shape":null,)"
                          R"("hex":"000000000000e03f"})");
  EXPECT_THAT(text("count"), HasSubstr(R"("dtype":"<i8","shape":null,"hex":"0300000000000000")"));
  EXPECT_THAT(text("is_last"), HasSubstr(R"("dtype":"|b1","shape":null,"hex":"01")"));
  EXPECT_THAT(text("ids"), HasSubstr(R"("dtype":"<i2","shape":[2,3],"hex":"fdfffeffffff000001000200")"));
  EXPECT_THAT(text("rng"), AllOf(HasSubstr(R"({"__python__":"tuple","items":["MT19937",)"),
                                 HasSubstr(R"("dtype":"<u4","shape":[624])")));
}

TEST(TorchSourceTest, AnIndexThatPlacesATensorWronglyIsDamage) {
  const fs::path copy = fs::path(testing::TempDir()) / "indexed";
  fs::remove_all(copy);
  fs::copy(TorchTestData("indexed"), copy, fs::copy_options::recursive);
  std::ifstream in(copy / kTorchIndexName);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  fs::permissions(copy / kTorchIndexName, fs::perms::owner_all);
  const size_t at = text.find("pytorch_model-00001");
  std::ofstream(copy / kTorchIndexName) << text.replace(at, 19, "pytorch_model-00002");
  EXPECT_THAT(OpenTorchSource(copy), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("tensor \"layer.0.weight\"")));
}

struct Hostile {
  const char* name;
  absl::StatusCode code;
  const char* message;
};

class HostileTest : public testing::TestWithParam<Hostile> {};

TEST_P(HostileTest, IsRefusedByNameAndExecutesNothing) {
  const fs::path before = fs::current_path();
  const fs::path here = fs::path(testing::TempDir()) / "hostile";
  const std::string file = TorchTestData(std::string("hostile/") + GetParam().name);
  fs::remove_all(here);
  fs::create_directories(here);
  fs::current_path(here);
  const auto source = OpenTensorSource(file);
  fs::current_path(before);
  EXPECT_THAT(source, StatusIs(GetParam().code, HasSubstr(GetParam().message)));
  EXPECT_TRUE(fs::is_empty(here));
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileTest,
    testing::Values(
        Hostile{"system.pt", absl::StatusCode::kInvalidArgument,
                "it wants \"posix.system\", which no state dict needs: refused, and nothing was executed"},
        Hostile{"eval.pt", absl::StatusCode::kInvalidArgument, "it wants \"builtins.eval\""},
        Hostile{"import.pt", absl::StatusCode::kInvalidArgument, "it wants \"__builtin__.getattr\""},
        Hostile{"legacy.pt", absl::StatusCode::kInvalidArgument, "it wants \"posix.system\""},
        Hostile{"calls_a_call.pt", absl::StatusCode::kInvalidArgument,
                "it wants to call an object that is not a global"},
        Hostile{"deep.pt", absl::StatusCode::kResourceExhausted, "more than 1000 values are open inside each other"},
        Hostile{"laughs.pt", absl::StatusCode::kResourceExhausted, "a value too large or too deep"},
        Hostile{"compressed.pt", absl::StatusCode::kInvalidArgument, "entry \"data.pkl\" is compressed (method 8)"},
        Hostile{"beyond_its_storage.pt", absl::StatusCode::kDataLoss, "reaches beyond its storage \"0\" of 8 bytes"},
        Hostile{"big_endian.pt", absl::StatusCode::kInvalidArgument, "its byte order is \"big\""},
        Hostile{"dcp", absl::StatusCode::kInvalidArgument, "it wants \"posix.system\""}),
    [](const auto& info) { return std::string(info.param.name).substr(0, std::string(info.param.name).find('.')); });

}  // namespace
}  // namespace fsdp
