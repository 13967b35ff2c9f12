// SPDX-License-Identifier: Apache-2.0
//
// Kinds of trouble that people report about checkpoints, tested on each of WrittenFormatsUnderTest in which the kind
// can occur. Kinds of a single format are tested next to its code: state by id and objects of Python's classes in
// torch/state/, files that are copies or parts of one model in rank_files_test.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/conformance/formats_under_test.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/source/load.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/tensor/convert_elements.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using testing::Contains;
using testing::HasSubstr;

const TestTensor kWeight = {StateKey::Model("fc.weight"), DType::kFloat32, {4, 3}};

class FieldTest : public FormatTest {
 protected:
  static bool model_only() { return GetParam().model_only(); }
  static bool holds_extras() { return GetParam().holds(StateKey::Extra("any")); }

  // A state of these tensors and nothing else.
  static StateDict StateOf(const std::vector<TestTensor>& tensors) {
    StateDict state;
    for (const TestTensor& tensor : tensors) {
      const Interval whole = {0, tensor.shape.numel()};
      state.Set(tensor.key, ShardedTensor{tensor.dtype, tensor.shape, {{whole, MakeElements(tensor, whole)}}});
    }
    return state;
  }

  // Writes `state` as the format holds it, with this step; returns the notes.
  std::vector<std::string> MustWriteState(const StateDict& state, int64_t step = -1) const {
    const std::unique_ptr<FormatWriter> writer = MakeWriter(GetParam().target);
    FormatContents contents = {.state = state, .step = step};
    const absl::StatusOr<std::vector<std::string>> notes = writer->Fit(contents);
    EXPECT_OK(notes.status());
    if (!notes.ok()) return {};
    EXPECT_OK(writer->Write(destination(), contents, ReadFromMemory(contents.state), {.overwrite = true}));
    return *notes;
  }

  absl::StatusOr<ConvertReport> ConvertTo(const std::string& name, ConvertOptions options) const {
    options.force = true;
    return ConvertCheckpoint(path(), root_ + "/" + name, options);
  }

  absl::StatusOr<ConvertReport> ConvertModelTo(const std::string& name) const {
    ConvertOptions options;
    options.model_only = true;
    return ConvertTo(name, std::move(options));
  }

  // Replaces the bytes of the file, or of each file of the directory.
  void ReplaceAllFiles(const std::string& bytes) const {
    if (!fs::is_directory(destination())) return WriteAll(destination(), bytes);
    for (const auto& [name, old] : BytesOf(destination())) WriteAll(destination() + name, bytes);
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, FieldTest, testing::ValuesIn(WrittenFormatsUnderTest()), NameOfFormat);

TEST_P(FieldTest, AnyLayoutOfATrainingFileKeepsItsModelAndItsOptimizer) {
  const std::vector<std::string> names = holds_extras()
                                             ? std::vector<std::string>{"app", "top", "two_models.pt", "by_id.pth"}
                                             : std::vector<std::string>{"app", "top"};
  for (const std::string& name : names) {
    ConvertOptions options;
    options.target = GetParam().target;
    options.force = true;
    const absl::Status status = ConvertCheckpoint(TorchTestData(name), destination(), options).status();
    if (GetParam().state_is_like_parameters && name == "two_models.pt") {
      EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument, HasSubstr("row_var")));  // Adafactor's
      continue;
    }
    ASSERT_OK(status) << name;
    ASSERT_OK_AND_ASSIGN(const auto source, Open());
    EXPECT_OK(CheckGolden(*source, name, holds_extras() ? GoldenParts::kAll : GoldenParts::kModel)) << name;
  }
}

TEST_P(FieldTest, OptimizerStateOfOtherShapesAndInDictsAndListsKeepsItsNames) {
  if (model_only()) GTEST_SKIP() << "it holds the model only";
  const std::vector<TestTensor> tensors = {
      kWeight,
      {StateKey::OptimState("fc.weight", "row_var"), DType::kFloat32, {4, 1}},
      {StateKey::OptimState("fc.weight", "quant.absmax"), DType::kUInt8, {2}},
      {StateKey::OptimState("fc.weight", "GG.[0]"), DType::kFloat32, {4, 4}},
      {StateKey::OptimState("fc.weight", "GG.[1]"), DType::kBFloat16, {3, 3}},
  };
  StateDict state = StateOf(tensors);
  state.Set(StateKey::ParamGroups(), std::string(R"([{"lr":0.5,"params":["fc.weight"]}])"));
  if (GetParam().state_is_like_parameters) {
    EXPECT_THAT(Write(state, ReadFromMemory(state)),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("optim/state/fc.weight/row_var")));
    EXPECT_FALSE(fs::exists(destination()));
    return;
  }
  MustWriteState(state);
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  for (const TestTensor& tensor : tensors) {
    const ShardedTensor* const held = source->contents().FindTensor(tensor.key);
    ASSERT_NE(held, nullptr) << tensor.key.ToString();
    EXPECT_EQ(held->dtype, tensor.dtype) << tensor.key.ToString();
    EXPECT_EQ(held->shape, tensor.shape) << tensor.key.ToString();
  }
  EXPECT_OK(ReadAll(tensors));
}

// SparseAdam and optimizers of old have the step as a number of Python, others as a tensor; both load as a tensor.
TEST_P(FieldTest, ANumberInOptimizerStateKeepsItsTypeAndLoadsAsATensor) {
  if (model_only()) GTEST_SKIP() << "it holds the model only";
  for (const char* step : {"7", "7.0"}) {
    StateDict state = StateOf({kWeight, {StateKey::OptimState("fc.weight", "exp_avg"), DType::kFloat32, {4, 3}}});
    state.Set(ExtraOfState("fc.weight", "step"), std::string(step));
    if (!GetParam().state_is_like_parameters) {
      state.Set(ExtraOfState("fc.weight", "mu"), std::string("0.1"));
      state.Set(ExtraOfState("fc.weight", "warm"), std::string("true"));
    }
    state.Set(StateKey::ParamGroups(), std::string(R"([{"lr":0.5,"params":["fc.weight"]}])"));
    MustWriteState(state);
    ASSERT_OK_AND_ASSIGN(const auto source, Open());
    if (!GetParam().state_is_like_parameters) {
      for (const auto& [key, value] : state.entries()) {
        const std::string* const text = std::get_if<std::string>(&value);
        if (text == nullptr || key.section != StateKey::Section::kExtra) continue;
        const std::string* const held = source->contents().FindText(key);
        ASSERT_NE(held, nullptr) << key.ToString();
        EXPECT_EQ(*held, *text) << key.ToString();
      }
    }
    float loaded = 0;
    StateDict wanted;
    const Tensor memory(Buffer::Unowned(&loaded, sizeof(loaded)), DType::kFloat32, {});
    wanted.Set(StateKey::OptimState("fc.weight", "step"), ShardedTensor{DType::kFloat32, {}, {{{0, 1}, memory}}});
    ASSERT_OK(LoadFrom(*source, path(), wanted, {}));
    EXPECT_EQ(loaded, 7);
    fs::remove_all(destination());
  }
}

TEST_P(FieldTest, AListOfTensorsAndNumbersInOptimizerStateKeepsItsOrder) {
  if (model_only()) GTEST_SKIP() << "it holds the model only";
  if (GetParam().state_is_like_parameters) GTEST_SKIP() << "its state is tensors";
  const TestTensor first = {StateKey::OptimState("fc.weight", "Q.[1]"), DType::kFloat32, {4, 4}};
  const TestTensor last = {StateKey::OptimState("fc.weight", "Q.[11]"), DType::kFloat32, {3, 3}};
  StateDict state = StateOf({kWeight, last, first});
  for (int i = 0; i < 11; ++i) {
    if (i != 1) state.Set(ExtraOfState("fc.weight", absl::StrCat("Q.[", i, "]")), absl::StrCat(i));
  }
  state.Set(StateKey::ParamGroups(), std::string(R"([{"lr":0.5,"params":["fc.weight"]}])"));
  MustWriteState(state);
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  EXPECT_EQ(source->contents().entries().size(), state.entries().size());
  EXPECT_EQ(*source->contents().FindText(ExtraOfState("fc.weight", "Q.[10]")), "10");
  EXPECT_OK(ReadAll({first, last}));
}

// Python's types, as python_json.h writes them.
const std::map<std::string, std::string>& Values() {
  static const auto* const values = new std::map<std::string, std::string>{
      {"milestones", R"({"__python__":"Counter","items":[[2,2],[5,1]]})"},
      {"order", R"({"__python__":"OrderedDict","items":[["b",1],["a",2]]})"},
      {"seed", R"({"__python__":"int","hex":"ffffffffffffffff00"})"},
      {"least", "-9223372036854775808"},
      {"tokens", R"({"__python__":"bytearray","hex":"ff3100"})"},
      {"raw", R"({"__python__":"bytes","hex":"00"})"},
      {"phase", R"({"__python__":"complex","items":[1.0,-2.0]})"},
      {"seen", R"({"__python__":"set","items":[1,2]})"},
      {"best", R"({"__python__":"float","value":"inf"})"},
      {"by_id", R"({"__python__":"dict","items":[[30,{"__python__":"tuple","items":[null,true]}]]})"},
      {"name", "run 7"},
  };
  return *values;
}

TEST_P(FieldTest, AValueThatIsNoTensorComesBackEqual) {
  if (model_only()) GTEST_SKIP() << "it holds the model only";
  StateDict state = StateOf({kWeight});
  for (const auto& [name, text] : Values()) state.Set(StateKey::Extra(name), text);
  MustWriteState(state);
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  for (const auto& [name, text] : Values()) {
    const std::string* const held = source->contents().FindText(StateKey::Extra(name));
    ASSERT_NE(held, nullptr) << name;
    EXPECT_EQ(*held, text) << name;
  }
}

TEST_P(FieldTest, ADictOfTensorsKeepsKeysThatAreNoTextsOrIsNamed) {
  if (!holds_extras()) GTEST_SKIP() << "it holds no extra values";
  ConvertOptions options;
  options.target = GetParam().target;
  const std::string original = TorchTestData("other_keys.pt");
  const absl::StatusOr<ConvertReport> report = ConvertCheckpoint(original, destination(), options);
  ASSERT_OK(report.status());
  ASSERT_OK_AND_ASSIGN(const auto written, OpenTensorSource(original));
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  const std::string text = *written->contents().FindText(StateKey::Extra("by_key"));
  const std::string* const held = source->contents().FindText(StateKey::Extra("by_key"));
  if (held == nullptr || *held != text) {
    EXPECT_THAT(report->notes, Contains(HasSubstr("\"by_key\"")));
    return;
  }
  for (const auto& [key, value] : written->contents().entries()) {
    if (written->contents().FindTensor(key) == nullptr) continue;
    EXPECT_THAT(ReadWhole(*source, key), IsOkAndHolds(*ReadWhole(*written, key))) << key.ToString();
  }
}

// {"model": "resnet18", "state_dict": ...} is what many programs save.
TEST_P(FieldTest, AnExtraValueWithTheNameOfTheModelOrTheOptimizerComesBack) {
  if (!holds_extras()) GTEST_SKIP() << "it holds no extra values";
  StateDict state = StateOf({kWeight, {StateKey::OptimState("fc.weight", "exp_avg"), DType::kFloat32, {4, 3}}});
  state.Set(StateKey::ParamGroups(), std::string(R"([{"lr":0.5,"params":["fc.weight"]}])"));
  state.Set(StateKey::Extra("model"), std::string("resnet18"));
  state.Set(StateKey::Extra("optim"), std::string(R"({"name":"adamw"})"));
  MustWriteState(state);
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  for (const auto& [key, value] : state.entries()) {
    if (key.section == StateKey::Section::kParamGroups) continue;
    const std::string* const held = source->contents().FindText(key);
    EXPECT_TRUE(source->contents().contains(key)) << key.ToString();
    if (held != nullptr) {
      EXPECT_EQ(*held, std::get<std::string>(value));
    }
  }
}

// A dict of Python may have any keys.
TEST_P(FieldTest, AnExtraValueOfAnyNameComesBackOrIsNamed) {
  if (model_only()) GTEST_SKIP() << "it holds the model only";
  const std::vector<std::string> names = {
      "", "a/b", ".", "..", "%2F", "new\nline", " ", "\xC3\xA9", std::string("a\0b", 3)};
  StateDict state = StateOf({kWeight});
  for (const std::string& name : names) state.Set(StateKey::Extra(name), absl::StrCat("of ", name.size()));
  const std::vector<std::string> notes = MustWriteState(state);
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  EXPECT_TRUE(source->contents().contains(kWeight.key));
  for (const std::string& name : names) {
    const std::string* const held = source->contents().FindText(StateKey::Extra(name));
    if (held == nullptr) {
      EXPECT_THAT(notes, Contains(HasSubstr(Quote(name)))) << Quote(name);
    } else {
      EXPECT_EQ(*held, absl::StrCat("of ", name.size())) << Quote(name);
    }
  }
}

TEST_P(FieldTest, AValueOfTheModelThatIsNoTensorComesBackInTheModelOrIsNamed) {
  for (const char* beside : {"", "epoch"}) {
    StateDict state = StateOf({kWeight});
    for (const auto& [name, text] : Values()) state.Set(ModelValue("fc." + name), text);
    if (*beside != '\0') state.Set(StateKey::Extra(beside), std::string("2"));
    const std::vector<std::string> notes = MustWriteState(state);
    if (!GetParam().holds(ModelValue("fc.best"))) {
      EXPECT_THAT(notes, Contains(HasSubstr("left out of the model, because " + GetParam().driver().name() +
                                            " holds tensors only: fc.best, fc.by_id")));
      continue;
    }
    ASSERT_OK_AND_ASSIGN(const auto source, Open());
    for (const auto& [name, text] : Values()) {
      const std::string* const held = source->contents().FindText(ModelValue("fc." + name));
      ASSERT_NE(held, nullptr) << name;
      EXPECT_EQ(*held, text) << name;
    }
    // --model_only keeps them, because a module without its state is another module.
    const std::string name = absl::StrCat("only", beside, ".pt");
    ASSERT_OK(ConvertModelTo(name).status());
    ASSERT_OK_AND_ASSIGN(const auto model, OpenTensorSource(root_ + "/" + name));
    EXPECT_EQ(model->contents().entries().size(), Values().size() + 1);
    EXPECT_NE(model->contents().FindText(ModelValue("fc.best")), nullptr);
  }
}

TEST_P(FieldTest, AnUnknownStepIsUnknown) {
  const std::vector<std::string> notes = MustWriteState(StateOf({kWeight}));
  const int64_t unknown = GetParam().unknown_step;
  if (unknown != -1) {
    EXPECT_THAT(notes, Contains(HasSubstr("the step is not known")));
  }
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  EXPECT_EQ(source->step(), unknown);
  ASSERT_OK_AND_ASSIGN(const ConvertReport report, ConvertTo("hdf5", {}));
  EXPECT_EQ(report.step, unknown);
  ASSERT_OK_AND_ASSIGN(const auto converted, OpenTensorSource(root_ + "/hdf5"));
  EXPECT_EQ(converted->step(), unknown);
}

TEST_P(FieldTest, ACounterOfAnyDTypeIsTheStep) {
  if (model_only()) GTEST_SKIP() << "it holds the model only";
  for (const DType dtype : {DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64, DType::kUInt8, DType::kUInt16,
                            DType::kUInt32, DType::kUInt64, DType::kFloat32, DType::kFloat64}) {
    const TestTensor counter = {StateKey::Extra("global_step"), dtype, {}};
    const StateDict state = StateOf({kWeight, counter});
    double value = 0;
    ASSERT_OK(Convert(dtype, state.FindTensor(counter.key)->shards[0].data.data(), DType::kFloat64, &value, 1));
    const auto step = static_cast<int64_t>(value);
    MustWriteState(state, step);  // our own formats record it apart
    ASSERT_OK_AND_ASSIGN(const auto source, Open());
    EXPECT_EQ(source->step(), step) << DTypeName(dtype);
    fs::remove_all(destination());
  }
}

TEST_P(FieldTest, AFilterKeepsATensorByAnyOfItsNames) {
  StateDict state = StateOf({kWeight, {StateKey::Model("norm"), DType::kFloat32, {3}}});
  state.aliases["head.weight"] = "fc.weight";
  MustWriteState(state);
  ASSERT_OK_AND_ASSIGN(const auto source, Open());
  const bool has_both = source->contents().aliases.count("head.weight") != 0 ||
                        source->contents().contains(StateKey::Model("head.weight"));
  ConvertOptions only_head;
  only_head.names.include = {"^head"};
  const absl::StatusOr<ConvertReport> kept = ConvertTo("head.pt", only_head);
  if (!has_both) {
    EXPECT_THAT(kept, StatusIs(StatusCode::kInvalidArgument, HasSubstr("the filters leave no model tensor")));
    return;
  }
  ASSERT_OK(kept.status());
  ASSERT_OK_AND_ASSIGN(const auto head, OpenTensorSource(root_ + "/head.pt"));
  const auto is_model = [](const StateDict::Entry& entry) { return entry.first.section == StateKey::Section::kModel; };
  const auto& entries = head->contents().entries();
  ASSERT_EQ(std::count_if(entries.begin(), entries.end(), is_model), 1);
  EXPECT_THAT(ReadWhole(*head, StateKey::Model("head.weight")), IsOkAndHolds(*ReadWhole(*source, kWeight.key)));
}

TEST_P(FieldTest, NothingButAnOptimizerIsNoModel) {
  if (model_only()) GTEST_SKIP() << "it holds the model only";
  if (GetParam().state_is_like_parameters) GTEST_SKIP() << "it holds state of parameters that are there";
  StateDict state = StateOf({{StateKey::OptimState("fc.weight", "exp_avg"), DType::kFloat32, {4, 3}}});
  state.Set(StateKey::ParamGroups(), std::string(R"([{"lr":0.5,"params":["fc.weight"]}])"));
  MustWriteState(state);
  for (const bool only_model : {false, true}) {
    EXPECT_THAT(only_model ? ConvertModelTo("model.safetensors") : ConvertTo("model.safetensors", ConvertOptions()),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("no model tensor, only")));
    EXPECT_FALSE(fs::exists(root_ + "/model.safetensors"));
  }
}

TEST_P(FieldTest, ALookalikeUnderItsNameIsRefusedByWhatItIs) {
  const struct {
    std::string bytes, what;
  } kCases[] = {
      {absl::StrCat("version https://git-lfs.github.com/spec/v1\noid sha256:", std::string(64, 'a'), "\nsize 123\n"),
       "Git LFS pointer"},
      {"<!doctype html>\n<html><head><title>Sign in</title></head></html>\n", "page of HTML"},
      {"Entry not found", "is a text that begins with"},
      {"", "0 bytes"},
  };
  for (const auto& test : kCases) {
    MustWriteState(StateOf({kWeight}));
    ReplaceAllFiles(test.bytes);
    const absl::Status status = ReadAll({kWeight});
    EXPECT_TRUE(IsErrorOfAFile(status)) << status;
    // The files of our own checkpoints come from our programs: what matters is that they are refused.
    if (!GetParam().is_ours()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(test.what));
    }
    fs::remove_all(destination());
  }
}

}  // namespace
}  // namespace fsdp
