// SPDX-License-Identifier: Apache-2.0
//
// What ckpt prints about the run that saved a checkpoint.
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
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

class CkptOptionsTest : public CkptTest {
 protected:
  // A checkpoint of one tensor without elements, with `attributes`; its path.
  std::string Save(const std::string& name, const RunMetadata& attributes) {
    StateDict state;
    ShardedTensor empty;
    empty.shape = Shape({0});
    state.Set(StateKey::Model("w"), empty);
    state.attributes = attributes;
    const PayloadReader read = [](const StateKey&, const Interval&, void*) { return absl::OkStatus(); };
    EXPECT_OK(WriteCheckpointDirectory(Path(name), state, read, {}));
    return Path(name);
  }
};

const RunMetadata& Example() {
  static const auto* attributes = new RunMetadata{
      {"model.activation_function", "relu"}, {"model.n_head", 4}, {"model.pad_token_id", {}}, {"options.lr", 1e-3}};
  return *attributes;
}

TEST_F(CkptOptionsTest, InspectShowsWhatTheRunRecorded) {
  const std::string path = Save("a", Example());
  EXPECT_THAT(MustCkpt({"inspect", path}),
              HasSubstr("attributes\n  model.activation_function = \"relu\"\n  model.n_head = 4\n"
                        "  model.pad_token_id = null\n  options.lr = 0.001\n"));
  const Json json = Json::parse(MustCkpt({"inspect", path, "--json"}));
  EXPECT_EQ(json["attributes"], Json::parse(R"({"model.activation_function": "relu", "model.n_head": 4,
      "model.pad_token_id": null, "options.lr": 0.001})"));
}

TEST_F(CkptOptionsTest, InspectOfAFileOfBeforeSaysThatNothingIsRecorded) {
  const std::string path = Save("a", {});
  EXPECT_THAT(MustCkpt({"inspect", path}), HasSubstr("attributes  none: it does not record"));
  EXPECT_TRUE(Json::parse(MustCkpt({"inspect", path, "--json"}))["attributes"].is_null());
}

TEST_F(CkptOptionsTest, DiffOptionsHasALineForEachDifferenceAndExitsWithOne) {
  RunMetadata other = Example();
  other["model.n_head"] = 3;
  other["options.lr"] = 0.5;
  other["options.new"] = true;
  const std::string a = Save("a", Example());
  const std::string b = Save("b", other);
  const Outcome outcome = Ckpt({"inspect", "--diff_options", a, b});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.out, "A: " + a + "\nB: " + b +
                             "\nmodel.n_head: 4 -> 3\noptions.lr: 0.001 -> 0.5\noptions.new: not recorded -> true\n"
                             "different: 3 of the config, the data and the options\n");
  EXPECT_THAT(outcome.err, IsEmpty());
  const Outcome as_json = Ckpt({"inspect", a, b, "--diff_options", "--json"});
  EXPECT_EQ(as_json.status, 1);
  const Json json = Json::parse(as_json.out);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["a"], (Json{{"path", a}, {"recorded", true}}));
  EXPECT_EQ(json["differences"], Json::parse(R"([{"name": "model.n_head", "a": 4, "b": 3},
      {"name": "options.lr", "a": 0.001, "b": 0.5}, {"name": "options.new", "b": true}])"));
}

TEST_F(CkptOptionsTest, DiffOptionsOfEqualRunsExitsWithZero) {
  const std::string a = Save("a", Example());
  EXPECT_THAT(MustCkpt({"inspect", "--diff_options", a, Save("b", Example())}),
              HasSubstr("equal: config, data and options"));
  EXPECT_EQ(Json::parse(MustCkpt({"inspect", "--diff_options", "--json", a, a}))["equal"], true);
}

TEST_F(CkptOptionsTest, DiffOptionsOfAFileOfBeforeSaysThatItIsNotKnown) {
  const std::string a = Save("a", Example());
  const std::string b = Save("b", {});
  const Outcome outcome = Ckpt({"inspect", "--diff_options", a, b});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr(b + " does not record its options"), HasSubstr("not known"),
                                 Not(HasSubstr(a + " does not record"))));
  const Json json = Json::parse(Ckpt({"inspect", "--diff_options", a, b, "--json"}).out);
  EXPECT_TRUE(json["equal"].is_null());
  EXPECT_THAT(json["differences"], IsEmpty());
}

TEST_F(CkptOptionsTest, TwoPathsAreForDiffOptionsAlone) {
  const std::string a = Save("a", Example());
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"inspect", a, a}, "unexpected argument"},
      {{"inspect", "--diff_options", a}, "B is missing"},
      {{"inspect", "--diff_options", a, a, a}, "unexpected argument"},
      {{"inspect", "--nodiff_options", a, a}, "unexpected argument"},
      {{"inspect", "--diff_options", "--tensors", a, a}, "expected neither --tensors nor --html"},
      {{"verify", "--diff_options", a}, "ckpt verify has no flag --diff_options"},
  };
  for (const auto& [arguments, words] : cases) {
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr(words));
  }
  const Outcome unreadable = Ckpt({"inspect", "--diff_options", a, Path("none"), "--json"});
  EXPECT_EQ(unreadable.status, 1);
  EXPECT_THAT(std::string(Json::parse(unreadable.out)["problem"]), HasSubstr("none does not exist"));
}

}  // namespace
}  // namespace fsdp
