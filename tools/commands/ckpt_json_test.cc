// SPDX-License-Identifier: Apache-2.0
//
// The output of --json for each subcommand: exactly the members that docs/ckpt.md lists, and one object also if the
// work fails.
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/source/zero_payload_testutil.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::json;

class CkptJsonTest : public CkptTest {
 protected:
  // Path("root") with two steps, sharded over two ranks.
  void MakeRoot() {
    StateDict state;
    ShardedTensor tensor;
    tensor.shape = {6, 2};
    state.Set(StateKey::Model("w"), tensor);
    std::filesystem::create_directory(Path("root"));
    for (int step = 1; step <= 2; ++step) {
      CheckpointDirectoryOptions options;
      options.type = StateDictType::kSharded;
      options.world_size = 2;
      options.step = step;
      ASSERT_OK(WriteCheckpointDirectory(Path(absl::StrCat("root/step-0000000", step)), state, ZeroPayload(), options));
    }
  }

  // The only object that a run printed.
  Json Object(const std::vector<std::string>& arguments, int status) const {
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    const Json json = Json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(json.is_object()) << outcome.out;
    return json;
  }
};

std::set<std::string> MembersOf(const Json& json) {
  std::set<std::string> members;
  for (const auto& [name, value] : json.items()) members.insert(name);
  return members;
}

// The members in the row of docs/ckpt.md that begins with "| subcommand |".
std::set<std::string> DocumentedMembers(const std::string& subcommand) {
  std::istringstream page(ReadFile("docs/ckpt.md"));
  for (std::string line; std::getline(page, line);) {
    if (line.rfind(absl::StrCat("| ", subcommand, " | "), 0) != 0) continue;
    std::set<std::string> members;
    for (size_t at = line.find('`'); at != std::string::npos; at = line.find('`', at)) {
      const size_t end = line.find('`', at + 1);
      members.insert(line.substr(at + 1, end - at - 1));
      at = end + 1;
    }
    return members;
  }
  ADD_FAILURE() << "docs/ckpt.md has no row for " << subcommand;
  return {};
}

TEST_F(CkptJsonTest, EachSubcommandPrintsTheMembersThatAreDocumented) {
  MakeRoot();
  MustCkpt({"convert", Path("root"), Path("model.safetensors")});
  const std::vector<std::vector<std::string>> runs = {
      {"inspect", Path("root"), "--tensors"},   {"verify", Path("root")},
      {"convert", Path("root"), Path("full")},  {"view", Path("model.safetensors"), Path("view.h5")},
      {"diff", Path("root"), Path("full")},     {"repair", Path("root/step-00000001")},
      {"prune", Path("root"), "--keep_last=1"},
  };
  for (std::vector<std::string> run : runs) {
    SCOPED_TRACE(run[0]);
    run.push_back("--json");
    EXPECT_EQ(MembersOf(Object(run, 0)), DocumentedMembers(run[0]));
  }
}

TEST_F(CkptJsonTest, AFailureIsOneObjectToo) {
  MakeRoot();
  const std::vector<std::vector<std::string>> runs = {{"inspect", Path("none")},
                                                      {"convert", Path("none"), Path("full")},
                                                      {"view", Path("none"), Path("view.h5")},
                                                      {"diff", Path("none"), Path("root")},
                                                      {"repair", Path("none")},
                                                      {"prune", Path("none"), "--keep_last=1"}};
  for (std::vector<std::string> run : runs) {
    SCOPED_TRACE(run[0]);
    run.push_back("--json");
    const Json json = Object(run, 1);
    EXPECT_THAT(json.value("problem", ""), testing::HasSubstr("none"));
    EXPECT_EQ(json.value("code", ""), "NOT_FOUND");
  }
  // Errors of the command line that only the subcommand finds.
  const std::vector<std::vector<std::string>> wrong = {{"inspect", Path("root"), "--tensors=("},
                                                       {"inspect", Path("root"), "--sort=bytes", "--tensors"},
                                                       {"inspect", Path("root"), "--sort=size"},
                                                       {"convert", Path("root"), Path("full"), "--dtype=float3"},
                                                       {"convert", Path("root"), Path("model.onnx")},
                                                       {"diff", Path("root"), Path("root"), "--atol=-1"},
                                                       {"prune", Path("root"), "--keep_last=0"},
                                                       {"push", Path("root"), "s3://"},
                                                       {"pull", "s3://", Path("full")}};
  for (std::vector<std::string> run : wrong) {
    SCOPED_TRACE(testing::PrintToString(run));
    run.push_back("--json");
    const Json json = Object(run, 2);
    EXPECT_EQ(json["problems"], Json({json["problem"]}));
    EXPECT_EQ(json["code"], "INVALID_ARGUMENT");
  }
  const Json verified = Object({"verify", Path("none"), "--json"}, 1);
  EXPECT_EQ(MembersOf(verified).count("files"), 1u);
  EXPECT_EQ(verified["ok"], false);
  EXPECT_EQ(verified["problems"].size(), 1u);
  EXPECT_THAT(std::string(Object({"repair", Path("root"), "--json"}, 1)["problem"]),
              testing::HasSubstr("repair one step, such as " + Path("root/step-00000002")));
}

}  // namespace
}  // namespace fsdp
