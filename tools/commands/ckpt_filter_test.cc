// SPDX-License-Identifier: Apache-2.0
//
// ckpt convert with --include, --exclude and --model_only: what is kept, in every format, and that nothing is an error.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// One form of a checkpoint: a suffix or the flags that make it.
struct Form {
  std::string suffix;
  std::vector<std::string> flags;
};

const std::vector<Form>& Forms() {
  static const auto* forms = new std::vector<Form>{{"", {}},
                                                   {"", {"--state_dict_type=sharded", "--world_size=2"}},
                                                   {".pt", {}},
                                                   {"", {"--to=dcp"}},
                                                   {".safetensors", {}},
                                                   {".npz", {}},
                                                   {".gguf", {}}};
  return *forms;
}

class CkptFilterTest : public CkptTest {
 protected:
  // A checkpoint of ours with these tensors of the model, float64 [2], filled with 7; its path.
  std::string Save(const std::string& name, const std::vector<std::string>& model,
                   const std::map<std::string, std::string>& aliases, const std::vector<StateKey>& others = {}) {
    ShardedTensor tensor;
    tensor.dtype = DType::kFloat64;
    tensor.shape = Shape({2});
    StateDict state;
    for (const std::string& fqn : model) state.Set(StateKey::Model(fqn), tensor);
    for (const StateKey& key : others) state.Set(key, tensor);
    state.aliases = aliases;
    const PayloadReader sevens = [](const StateKey&, const Interval& interval, void* out) {
      for (int64_t i = 0; i < interval.size(); ++i) static_cast<double*>(out)[i] = 7;
      return absl::OkStatus();
    };
    EXPECT_OK(WriteCheckpointDirectory(Path(name), state, sevens, {}));
    return Path(name);
  }

  // The outcome of a conversion to `form`, which is at Path("to" + suffix) then.
  Outcome Convert(const std::string& source, const Form& form, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"convert", source, Path("to" + form.suffix), "--force"});
    flags.insert(flags.end(), form.flags.begin(), form.flags.end());
    return Ckpt(flags);
  }
};

TEST_F(CkptFilterTest, ATiedTensorIsKeptUnderTheNameThatPassesInEveryFormat) {
  const std::string ours = Save("a", {"shared.embedding", "b"}, {{"decoder.tokens", "shared.embedding"}});
  MustCkpt({"convert", ours, Path("a.pt")});
  for (const std::string& source : {ours, Path("a.pt")}) {
    for (const Form& form : Forms()) {
      const Outcome outcome = Convert(source, form, {"--exclude=^shared"});
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      EXPECT_THAT(outcome.out, HasSubstr("note: \"shared.embedding\" is left out by the filters, and its tensor is "
                                         "kept as \"decoder.tokens\""));
      ASSERT_OK_AND_ASSIGN(const auto written, OpenTensorSource(Path("to" + form.suffix)));
      EXPECT_EQ(written->contents().entries().size(), 2);
      double values[2] = {};
      EXPECT_OK(written->Read(StateKey::Model("decoder.tokens"), {0, 2}, values));
      EXPECT_EQ(values[1], 7);
      EXPECT_EQ(Convert(source, form, {"--include=^decoder"}).status, 0);
    }
  }
}

TEST_F(CkptFilterTest, FiltersThatLeaveNoModelAreAnErrorInEveryFormat) {
  const std::string ours = Save("a", {"w", "b"}, {}, {StateKey::OptimState("w", "mu"), StateKey::Extra("w.count")});
  for (const Form& form : Forms()) {
    for (const char* flag : {"--include=^weight$", "--exclude=."}) {
      const Outcome outcome = Convert(ours, form, {flag, "--json"});
      EXPECT_EQ(outcome.status, 1);
      EXPECT_THAT(outcome.out, HasSubstr("\"problem\""));
      EXPECT_THAT(outcome.err,
                  HasSubstr("the filters leave no model tensor of the source, which has 2, the first being \"w\""));
    }
  }
  const std::string moments = Save("moments", {}, {}, {StateKey::OptimState("w", "mu")});
  EXPECT_THAT(Convert(moments, {}, {"--exclude=w"}).err,
              HasSubstr("leave no optimizer tensor of the source, which has 1"));
  EXPECT_THAT(NamesIn(Path("")), testing::ElementsAre("a", "moments"));
}

// Regression: an empty file and exit status 0.
TEST_F(CkptFilterTest, TheModelOfASourceWithoutOneIsAnErrorInEveryFormat) {
  const std::string moments =
      Save("moments", {}, {}, {StateKey::OptimState("w", "mu"), StateKey::OptimState("w", "nu")});
  const std::string extras = Save("extras", {}, {}, {StateKey::Extra("app.model.w")});
  const std::string both = Save("both", {}, {}, {StateKey::Extra("rng"), StateKey::OptimState("w", "mu")});
  for (const Form& form : Forms()) {
    EXPECT_THAT(
        Convert(moments, form, {"--model_only"}).err,
        AllOf(HasSubstr(moments + ": the source holds no model tensor, only 2 optimizer values, the first being "
                                  "\"optim/state/w/mu\""),
              HasSubstr("--model_only leaves all others out: convert it without")));
    const Outcome outcome = Convert(extras, form, {"--model_only"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("only 1 extra value, the first being \"extra/app.model.w\""));
    EXPECT_THAT(Convert(both, form, {"--model_only"}).err, HasSubstr("only 1 optimizer value and 1 extra value"));
  }
  EXPECT_THAT(Convert(both, {".safetensors", {}}, {}).err,
              AllOf(HasSubstr("the source holds no model tensor, only 1 optimizer value and 1 extra value, the first"),
                    HasSubstr(", and safetensors holds the model only: convert it to torch or hdf5")));
  EXPECT_THAT(NamesIn(Path("")), testing::ElementsAre("both", "extras", "moments"));
}

TEST_F(CkptFilterTest, ASourceWithoutAModelIsConvertedWholeAndThisIsSaid) {
  const std::string moments = Save("moments", {}, {}, {StateKey::OptimState("w", "mu")});
  EXPECT_THAT(
      MustCkpt({"convert", moments, Path("b.pt")}),
      AllOf(HasSubstr("1 tensor, 16 B"), HasSubstr("note: the source holds no model tensor, only 1 optimizer")));
  const std::string nothing = Save("nothing", {}, {});
  EXPECT_THAT(Ckpt({"convert", nothing, Path("c")}).err, HasSubstr("no model tensor, and no other value"));
}

// Regression: "equal: 0 tensors".
TEST_F(CkptFilterTest, DiffOfModelsThatNeitherSideHasIsAnError) {
  const std::string moments = Save("moments", {}, {}, {StateKey::OptimState("w", "mu")});
  const std::string model = Save("model", {"w"}, {});
  const Outcome outcome = Ckpt({"diff", moments, moments, "--model_only"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("neither A nor B holds a model tensor, and --model_only ignores all others"));
  MustCkpt({"diff", moments, moments});
  EXPECT_THAT(Ckpt({"diff", moments, model, "--model_only"}).out, HasSubstr("0 only in A, 1 only in B"));
}

}  // namespace
}  // namespace fsdp
