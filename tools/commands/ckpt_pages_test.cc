// SPDX-License-Identifier: Apache-2.0
//
// The pages of ckpt from outside: of a checkpoint, of a run, of two checkpoints.
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Words = std::vector<std::string>;

class CkptPagesTest : public CkptTest {
 protected:
  // Two layers whose values are `value`.
  void Save(const std::string& name, int64_t step, float value) const {
    StateDict state;
    for (const char* tensor_name : {"h.2.w", "h.10.w"}) {
      ShardedTensor tensor;
      tensor.shape = Shape({64});
      state.Set(StateKey::Model(tensor_name), tensor);
    }
    state.Set(StateKey::ParamGroups(), std::string(R"([{"lr":0.125,"params":["h.2.w","h.10.w"]}])"));
    state.attributes["model.n_head"] = int64_t{4};
    const PayloadReader values = [value](const StateKey&, const Interval& interval, void* out) {
      for (int64_t i = 0; i < interval.size(); ++i) static_cast<float*>(out)[i] = value;
      return absl::OkStatus();
    };
    EXPECT_OK(WriteCheckpointDirectory(Path(name), state, values, {.step = step}));
  }

  void SaveRun() const {
    fs::create_directory(Path("run"));
    for (const int step : {1, 2, 3}) {
      Save(absl::StrFormat("run/step-%08d", step), step, step == 3 ? std::nanf("") : static_cast<float>(step));
    }
  }
};

TEST_F(CkptPagesTest, ThePageOfACheckpointHasItsPathDateConfigAndParamGroups) {
  Save("a", 7, 1);
  MustCkpt({"inspect", Path("a"), "--html=" + Path("page.html")});
  EXPECT_THAT(ReadFile(Path("page.html")),
              AllOf(HasSubstr("full checkpoint of step 7"), HasSubstr(" UTC</p>"), HasSubstr("<h3>model</h3>"),
                    HasSubstr("<h3>param_groups</h3>"), HasSubstr("<bdi>0.125</bdi>")));
}

TEST_F(CkptPagesTest, ThePageOfARunSaysWhereItWentWrong) {
  SaveRun();
  const std::string text = MustCkpt({"inspect", Path("run"), "--html=" + Path("page.html"), "--max_memory=64MiB"});
  EXPECT_THAT(text, HasSubstr("the newest step that verifies is " + Path("run/step-00000003")));
  EXPECT_THAT(ReadFile(Path("page.html")),
              AllOf(HasSubstr("3 checkpoints of a run, steps 1 to 3"),
                    HasSubstr("Step 3 has the first values that are not finite, in h.2 (64 NaN, 0 infinite), h.10")));
}

TEST_F(CkptPagesTest, MaxMemoryIsForThePageOfARun) {
  SaveRun();
  const std::string page = "--html=" + Path("page.html");
  for (const Words& words : {Words{"inspect", Path("run"), "--max_memory=1GiB"},
                             {"inspect", Path("run/step-00000001"), page, "--max_memory=1GiB"}}) {
    const Outcome outcome = Ckpt(words);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("--max_memory is for --html of a run"));
  }
  const Outcome small = Ckpt({"inspect", Path("run"), page, "--max_memory=1MiB"});
  EXPECT_EQ(small.status, 2);
  EXPECT_THAT(small.err, HasSubstr("expected at least 64MiB"));
  EXPECT_FALSE(fs::exists(Path("page.html")));
}

TEST_F(CkptPagesTest, ThePageOfADiffIsMadeAndTheTextAndStatusStay) {
  Save("a", 1, 1);
  Save("b", 2, 2);
  const Outcome plain = Ckpt({"diff", Path("a"), Path("b")});
  const Outcome outcome = Ckpt({"diff", Path("a"), Path("b"), "--html=" + Path("page.html")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.out, plain.out);
  EXPECT_THAT(ReadFile(Path("page.html")),
              AllOf(HasSubstr("A: <bdi>"), HasSubstr("full, step 1, world size 1"), HasSubstr("Change of each layer")));
  EXPECT_EQ(Ckpt({"diff", Path("a"), Path("a"), "--html=" + Path("page.html")}).status, 0);
  EXPECT_THAT(ReadFile(Path("page.html")),
              AllOf(HasSubstr("Nothing: every value is equal"), Not(HasSubstr("Change of each layer"))));
}

TEST_F(CkptPagesTest, APageOfADiffIsRefusedInPlaceOfWhatIsRead) {
  Save("a", 1, 1);
  MustCkpt({"convert", Path("a"), Path("a.safetensors")});
  const std::string before = ReadFile(Path("a.safetensors"));
  for (const char* page : {"a.safetensors", "a/page.html", "a/manifest.json"}) {
    const Outcome outcome = Ckpt({"diff", Path("a"), Path("a.safetensors"), absl::StrCat("--html=", Path(page))});
    EXPECT_EQ(outcome.status, 1) << page;
  }
  EXPECT_EQ(ReadFile(Path("a.safetensors")), before);
  EXPECT_FALSE(fs::exists(Path("a/page.html")));
}

}  // namespace
}  // namespace fsdp
