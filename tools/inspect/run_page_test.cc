// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/run_page.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/tools/inspect/checkpoint_layers.h"
#include "fsdp/tools/inspect/run_script.h"
#include "fsdp/tools/page/page_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Each layer changes by a hundredth from step to step.
RunHistory HistoryOf(size_t steps, size_t layers) {
  RunHistory history;
  for (size_t i = 0; i < layers; ++i) history.layers.push_back(absl::StrCat("model.layers.", i));
  for (size_t i = 0; i < steps; ++i) {
    RunStep& step = history.steps.emplace_back();
    step.step = static_cast<int64_t>(100 * (i + 1));
    step.name = absl::StrCat("step-", step.step);
    step.layers.resize(layers);
    for (size_t layer = 0; layer < layers; ++layer) {
      step.layers[layer] = {.numel = 10,
                            .squares = 4 + static_cast<double>(i * layer),
                            .nonfinite = {},
                            .squares_before = 4,
                            .squares_changed = 4e-4,
                            .has_change = i > 0};
    }
  }
  return history;
}

nlohmann::json DataOf(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t from = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

TEST(RunPageTest, ShowsStepsLayersAndWhatStandsOut) {
  RunHistory history = HistoryOf(4, 3);
  history.steps[2].layers[1].nonfinite.nan = 12;
  history.steps[3].problem = "does not verify: rank-00000.h5 <is> gone";
  history.steps[3].layers.clear();
  const std::string page = RunPage("/home/me/runs", history);
  EXPECT_THAT(page, AllOf(HasSubstr("<title>me/runs</title>"), HasSubstr("4 checkpoints of a run, steps 100 to 400"),
                          HasSubstr("Step 300 has the first values that are not finite, in model.layers.1 (12 NaN"),
                          HasSubstr("1 step is damaged or could not be read: step-400."),
                          HasSubstr("rank-00000.h5 &lt;is&gt; gone"), HasSubstr("the whole model")));
  EXPECT_THAT(page, AllOf(HasSubstr("<path class=\"no\" d=\"M2 0h1v1h-1z\"/>"),
                          HasSubstr("<path class=\"gone\" d=\"M3 0h1v1h-1z\"/>")));
  const nlohmann::json data = DataOf(page);
  EXPECT_EQ(data["steps"], nlohmann::json({100, 200, 300, 400}));
  EXPECT_EQ(data["unread"], nlohmann::json({false, false, false, true}));
  ASSERT_EQ(data["rows"].size(), 4u);
  EXPECT_EQ(data["rows"][1]["change"], nlohmann::json({nullptr, "0.01", "0.01", nullptr}));
  EXPECT_EQ(data["rows"][2]["nonfinite"], nlohmann::json({0, 0, 12, 0}));
  ExpectLoadsNothing(page);
  ExpectTagsClose(page);
}

TEST(RunPageTest, ARunWithoutTroubleSaysSo) {
  EXPECT_THAT(RunPage("/runs", HistoryOf(4, 3)), HasSubstr("Nothing stands out"));
}

TEST(RunPageTest, OneStepHasNoChanges) {
  const std::string page = RunPage("/runs", HistoryOf(1, 2));
  EXPECT_THAT(page, AllOf(HasSubstr("1 checkpoint of a run"), Not(HasSubstr("Change from step to step"))));
  ExpectTagsClose(page);
}

TEST(RunPageTest, StepsThatWereLeftOutAreSaid) {
  RunHistory history = HistoryOf(2, 1);
  history.left_out = 800;
  EXPECT_THAT(RunPage("/runs", history), HasSubstr("800 more between them were not read"));
}

TEST(RunPageTest, HostileNamesAreText) {
  RunHistory history = HistoryOf(2, 2);
  history.layers[0] = "</script><script>alert(1)</script>\n\xE2\x80\xAE";
  history.steps[0].name = "<img src=x>";
  const std::string page = RunPage("/runs/<b>", history);
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script>alert")), Not(HasSubstr("<img")), Not(HasSubstr("\xE2\x80\xAE"))));
  EXPECT_THAT(DataOf(page)["rows"][1]["name"].get<std::string>(), HasSubstr("</script>"));
  ExpectTagsClose(page);
}

TEST(RunPageTest, TheSizeOfThePageIsBounded) {
  EXPECT_LT(RunPage("/runs", HistoryOf(kMaxRunSteps, kMaxLayerRows)).size(), 2u << 20);
}

TEST(RunPageTest, TheScriptIsTheOneThatThePolicyAllows) { EXPECT_EQ(kRunScript.sha256, ScriptDigest(kRunScript.text)); }

}  // namespace
}  // namespace fsdp
