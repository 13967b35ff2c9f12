// SPDX-License-Identifier: Apache-2.0
//
// ckpt push and pull, and what reads a checkpoint of a store in place, against an S3 server in this process, as a user
// runs them: keys come from the environment.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/object/curl_library.h"
#include "fsdp/checkpoint/object/fake_object_store.h"
#include "fsdp/checkpoint/object/fake_s3_server.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Json = nlohmann::json;

class CkptObjectTest : public CkptTest {
 protected:
  void SetUp() override {
    if (const absl::StatusOr<const CurlLibrary*> curl = CurlLibrary::Load(); !curl.ok()) {
      GTEST_SKIP() << curl.status().message();
    }
    ASSERT_OK_AND_ASSIGN(server_, FakeS3Server::Start(bucket_));
    const AwsConfig& config = server_->config();
    setenv("AWS_ACCESS_KEY_ID", config.credentials.access_key_id.c_str(), 1);
    setenv("AWS_SECRET_ACCESS_KEY", config.credentials.secret_access_key.c_str(), 1);
    setenv("AWS_SESSION_TOKEN", config.credentials.session_token.c_str(), 1);
    setenv("AWS_REGION", config.region.c_str(), 1);
    setenv("AWS_ENDPOINT_URL", config.endpoint.c_str(), 1);
    setenv("HOME", Path("").c_str(), 1);
    for (const char* name : {"AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "http_proxy"}) unsetenv(name);
    for (const char* step : {"00000001", "00000002"}) Save(std::string("root/step-") + step, std::atoi(step));
  }

  // Each call makes another save.
  void Save(const std::string& name, int step) {
    fs::create_directories(fs::path(Path(name)).parent_path());
    StateDict state;
    ShardedTensor tensor;
    tensor.shape = {4, 3};
    state.Set(StateKey::Model("w"), tensor);
    const PayloadReader numbers = [](const StateKey&, const Interval& interval, void* out) {
      std::memset(out, 7, interval.size() * sizeof(float));
      return absl::OkStatus();
    };
    CheckpointDirectoryOptions options;
    options.step = step;
    options.type = StateDictType::kSharded;
    options.world_size = 2;
    ASSERT_OK(WriteCheckpointDirectory(Path(name), state, numbers, options));
  }

  FakeObjectStore bucket_{/*part_bytes=*/int64_t{1} << 30};
  std::unique_ptr<FakeS3Server> server_;
};

TEST_F(CkptObjectTest, WhatIsPushedIsPulledByteForByte) {
  EXPECT_THAT(MustCkpt({"push", Path("root"), "s3://models/runs/gpt2"}),
              AllOf(HasSubstr("s3://models/runs/gpt2/step-00000002: 3 files"), HasSubstr(Path("root/step-00000002"))));
  EXPECT_THAT(MustCkpt({"push", Path("root/step-00000001"), "s3://models/runs/gpt2/"}), HasSubstr("step-00000001"));
  EXPECT_THAT(MustCkpt({"pull", "s3://models/runs/gpt2", Path("newest")}),
              AllOf(HasSubstr("step-00000002"), HasSubstr("every digest matches")));
  MustCkpt({"pull", "s3://models/runs/gpt2/step-00000001", Path("first")});
  for (const auto& [pulled, step] :
       {std::pair("newest", "root/step-00000002"), std::pair("first", "root/step-00000001")}) {
    EXPECT_EQ(NamesIn(Path(pulled)), NamesIn(Path(step)));
    for (const std::string& name : NamesIn(Path(step))) {
      EXPECT_EQ(ReadFile(Path(pulled) + "/" + name), ReadFile(Path(step) + "/" + name)) << name;
    }
    MustCkpt({"verify", Path(pulled)});
  }
  EXPECT_EQ(server_->refused(), 0);
}

// The server never replies to the first request of the push.
TEST_F(CkptObjectTest, AnInterruptedPushSaysThatItCanContinue) {
  server_->InjectFaults({FakeS3Server::Fault::kSilent});
  ASSERT_OK_AND_ASSIGN(const auto child,
                       ChildProcess::Start({fs::absolute("tools/ckpt"), "push", Path("root"), "s3://models/run"},
                                           {.errors = ChildOutput::Text()}));
  while (server_->requests().empty() && !child->Poll(absl::Milliseconds(1)).has_value()) {
  }
  child->Signal(SIGINT);
  ASSERT_OK_AND_ASSIGN(const int status, child->Wait(absl::Minutes(1)));
  EXPECT_EQ(status, 128 + SIGINT);
  EXPECT_THAT(child->errors(), HasSubstr("ckpt push: interrupted: readers see a step in s3://models/run only when"));
  EXPECT_THAT(MustCkpt({"push", Path("root"), "s3://models/run"}), HasSubstr("step-00000002: 3 files"));
}

TEST_F(CkptObjectTest, JsonSaysWhatWasCopied) {
  const Json pushed = Json::parse(MustCkpt({"push", Path("root/step-00000002"), "s3://models/run", "--json"}));
  EXPECT_EQ(pushed["destination"], "s3://models/run/step-00000002");
  EXPECT_EQ(pushed["files"], 3);
  EXPECT_EQ(pushed["sent_files"], 3);
  EXPECT_EQ(pushed["swept_files"], 0);
  const Json again = Json::parse(MustCkpt({"push", Path("root/step-00000002"), "s3://models/run", "--json"}));
  EXPECT_EQ(again["sent_files"], 0);
  EXPECT_EQ(again["bytes"], pushed["bytes"]);
  const Json pulled = Json::parse(MustCkpt({"pull", "s3://models/run", Path("copy"), "--json"}));
  EXPECT_EQ(pulled["source"], "s3://models/run/step-00000002");
  EXPECT_EQ(pulled["step"], 2);
  EXPECT_EQ(pulled["bytes"], pushed["bytes"]);
}

TEST_F(CkptObjectTest, WhatIsThereIsReplacedOnlyByForce) {
  Save("other", 2);
  MustCkpt({"push", Path("root/step-00000002"), "s3://models/run"});
  const Outcome refused = Ckpt({"push", Path("other"), "s3://models/run"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("s3://models/run/step-00000002/manifest.json is of save "));
  EXPECT_THAT(MustCkpt({"push", Path("other"), "s3://models/run", "--force"}), HasSubstr("deleted 3 files"));
  const Outcome exists = Ckpt({"pull", "s3://models/run", Path("root/step-00000002")});
  EXPECT_EQ(exists.status, 1);
  EXPECT_THAT(exists.err, HasSubstr("root/step-00000002 exists"));
  MustCkpt({"pull", "s3://models/run", Path("root/step-00000002"), "--force"});
  EXPECT_EQ(ReadFile(Path("root/step-00000002/manifest.json")), ReadFile(Path("other/manifest.json")));
}

TEST_F(CkptObjectTest, ADamagedCheckpointIsNotPushed) {
  const std::string file = Path("root/step-00000002/rank-00001-of-00002.h5");
  std::string bytes = ReadFile(file);
  bytes.back() ^= 1;
  WriteFile(file, bytes);
  const Outcome damaged = Ckpt({"push", Path("root/step-00000002"), "s3://models/run"});
  EXPECT_EQ(damaged.status, 1);
  EXPECT_THAT(damaged.err, HasSubstr("rank-00001-of-00002.h5"));
  EXPECT_THAT(bucket_.objects(), IsEmpty());
}

TEST_F(CkptObjectTest, DamageInTheStoreIsNamedAndNothingIsPulled) {
  MustCkpt({"push", Path("root/step-00000002"), "s3://models/run"});
  for (const auto& [key, bytes] : bucket_.objects()) {
    if (!testing::Matches(HasSubstr("rank-00001"))(key)) continue;
    std::string damaged = bytes;
    damaged.back() ^= 1;
    bucket_.SetObject(key, damaged);
  }
  const Outcome outcome = Ckpt({"pull", "s3://models/run", Path("copy"), "--json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(std::string(Json::parse(outcome.out)["problem"]),
              AllOf(HasSubstr("s3://models/run/step-00000002"), HasSubstr("rank-00001-of-00002.h5")));
  EXPECT_FALSE(fs::exists(Path("copy")));
}

TEST_F(CkptObjectTest, InspectReadsTheManifestAlone) {
  MustCkpt({"push", Path("root/step-00000001"), "s3://models/run"});
  MustCkpt({"push", Path("root/step-00000002"), "s3://models/run"});
  const size_t before = server_->requests().size();
  EXPECT_THAT(MustCkpt({"inspect", "s3://models/run"}),
              AllOf(HasSubstr("s3://models/run: the newest step is s3://models/run/step-00000002"),
                    HasSubstr("a sharded checkpoint of step 2, world size 2"), HasSubstr("rank-00001-of-00002.h5")));
  const std::vector<std::string> requests = server_->requests();
  for (size_t i = before; i < requests.size(); ++i) EXPECT_THAT(requests[i], Not(HasSubstr(".h5")));
  const Json remote = Json::parse(MustCkpt({"inspect", "s3://models/run/step-00000001", "--tensors", "--json"}));
  Json local = Json::parse(MustCkpt({"inspect", Path("root/step-00000001"), "--tensors", "--json"}));
  EXPECT_EQ(local["path"], Path("root/step-00000001"));
  local["path"] = "s3://models/run/step-00000001";
  EXPECT_EQ(remote, local);
  for (const auto& [key, bytes] : bucket_.objects()) {
    if (testing::Matches(HasSubstr("step-00000002/"))(key) && testing::Matches(HasSubstr("rank-00000"))(key)) {
      EXPECT_OK(bucket_.Delete(key));
    }
  }
  const Outcome lost = Ckpt({"inspect", "s3://models/run"});
  EXPECT_EQ(lost.status, 1);
  EXPECT_THAT(lost.err, HasSubstr("rank-00000-of-00002.h5 is missing"));
}

TEST_F(CkptObjectTest, ACheckpointOfTheStoreIsReadInPlace) {
  MustCkpt({"push", Path("root/step-00000001"), "s3://models/run"});
  MustCkpt({"push", Path("root/step-00000002"), "s3://models/run"});
  EXPECT_THAT(MustCkpt({"verify", "s3://models/run"}),
              AllOf(HasSubstr("s3://models/run: the newest step is s3://models/run/step-00000002"),
                    HasSubstr("1 tensor,"), HasSubstr("every digest matches")));
  EXPECT_THAT(MustCkpt({"diff", "s3://models/run", Path("root")}), HasSubstr("equal: 1 tensor,"));
  EXPECT_THAT(MustCkpt({"diff", Path("root/step-00000001"), "s3://models/run/step-00000001"}), HasSubstr("equal"));
  for (const char* name : {"a.safetensors", "a.h5", "a.pt", "directory"}) {
    MustCkpt({"convert", "s3://models/run", Path(name)});
    MustCkpt({"diff", Path(name), Path("root/step-00000002"), "--model_only"});
  }
  EXPECT_EQ(Json::parse(MustCkpt({"convert", "s3://models/run", Path("again"), "--json"}))["source"],
            "s3://models/run");
  MustCkpt({"inspect", "s3://models/run", "--html=" + Path("page.html")});
  EXPECT_THAT(ReadFile(Path("page.html")), HasSubstr("step-00000002"));
  EXPECT_EQ(server_->refused(), 0);
}

TEST_F(CkptObjectTest, DamageInTheStoreIsFoundInPlace) {
  MustCkpt({"push", Path("root/step-00000002"), "s3://models/run"});
  for (const auto& [key, bytes] : bucket_.objects()) {
    if (!testing::Matches(HasSubstr("rank-00001"))(key)) continue;
    std::string damaged = bytes;
    damaged.back() ^= 1;
    bucket_.SetObject(key, damaged);
  }
  const Outcome verified = Ckpt({"verify", "s3://models/run"});
  EXPECT_EQ(verified.status, 1);
  EXPECT_THAT(verified.out, HasSubstr("damaged: rank-00001-of-00002.h5"));
  EXPECT_THAT(verified.err, HasSubstr("\"ckpt push --force\" of a whole copy replaces it"));
  const Outcome json = Ckpt({"verify", "s3://models/run", "--json"});
  EXPECT_EQ(Json::parse(json.out)["damage"][0]["file"], "rank-00001-of-00002.h5");
  bucket_.SetObject("run/step-00000002/manifest.json", "{");
  const Outcome manifest = Ckpt({"verify", "s3://models/run"});
  EXPECT_EQ(manifest.status, 1);
  EXPECT_THAT(manifest.out, HasSubstr("damaged: s3://models/run/step-00000002/manifest.json"));
  EXPECT_EQ(Ckpt({"convert", "s3://models/run", Path("a.pt")}).status, 1);
  EXPECT_FALSE(fs::exists(Path("a.pt")));
}

TEST_F(CkptObjectTest, WhatIsNotACheckpointOfOursEndsWithTheNextCommand) {
  bucket_.SetObject("llama/model.safetensors", "x");
  for (const char* command : {"inspect", "verify"}) {
    const Outcome outcome = Ckpt({command, "s3://models/llama/model.safetensors"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("holds no checkpoint"), HasSubstr("aws s3 cp")));
  }
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"convert", Path("root"), "s3://models/x"},
                                                    {"push", "s3://models/x", "s3://models/y"},
                                                    {"repair", "s3://models/x"},
                                                    {"view", "s3://models/x", Path("x.h5")}}) {
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, 1) << arguments[0];
    EXPECT_THAT(outcome.err, HasSubstr("is in an object store, expected a path")) << arguments[0];
  }
}

TEST_F(CkptObjectTest, AWrongCommandLineIsExitStatusTwo) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"push", Path("root"), Path("copy")}, "expected s3://BUCKET/PREFIX"},
           {{"pull", Path("copy"), Path("other")}, "expected s3://BUCKET/PREFIX"},
           {{"push", Path("root")}, "s3://BUCKET/PREFIX is missing"},
           {{"verify", Path("root"), "--endpoint_url=http://127.0.0.1:1"}, "--endpoint_url is for PATH that is s3://"},
           {{"diff", Path("root"), Path("root"), "--endpoint_url=http://a"}, "--endpoint_url is for A or B that is"},
           {{"pull", "s3://models/run", Path("copy"), "--parity=1"}, "parity"}}) {
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST_F(CkptObjectTest, ErrorsOfTheStoreSayWhatToDoAndShowNoKey) {
  const Outcome absent = Ckpt({"pull", "s3://models/absent", Path("copy")});
  EXPECT_EQ(absent.status, 1);
  EXPECT_THAT(absent.err, HasSubstr("s3://models/absent holds no checkpoint"));
  setenv("AWS_SECRET_ACCESS_KEY", "squeamish", 1);
  const Outcome refused = Ckpt({"pull", "s3://models/run", Path("copy")});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("AWS_ACCESS_KEY_ID"), Not(HasSubstr("squeamish"))));
  unsetenv("AWS_ACCESS_KEY_ID");
  unsetenv("AWS_SECRET_ACCESS_KEY");
  const Outcome keyless = Ckpt({"push", Path("root"), "s3://models/run"});
  EXPECT_EQ(keyless.status, 1);
  EXPECT_THAT(keyless.err, HasSubstr("no keys for the object store"));
}

}  // namespace
}  // namespace fsdp
