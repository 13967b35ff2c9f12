// SPDX-License-Identifier: Apache-2.0
//
// The page about a checkpoint: its contents, that it is self-contained, and that its size is bounded.
#include "fsdp/tools/inspect/ckpt_page.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/tools/inspect/page_charts.h"
#include "fsdp/tools/inspect/tensor_table.h"
#include "fsdp/tools/page/page_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

ValueStatistics Statistics(const std::vector<float>& values) {
  ValueStatistics statistics;
  EXPECT_TRUE(AddElements(DType::kFloat32, values.data(), static_cast<int64_t>(values.size()), statistics).ok());
  return statistics;
}

// `tensors` float32 tensors of `numel` elements over `files` rank files, with exp_avg.
CheckpointSummary SummaryOf(int tensors, int files, int64_t numel) {
  CheckpointSummary summary;
  summary.path = "runs/step-00000100";
  summary.manifest.save.type = StateDictType::kSharded;
  summary.manifest.save.step = 100;
  summary.manifest.save.world_size = files;
  summary.manifest.save.producer = "fsdp test";
  for (int file = 0; file < files; ++file) {
    summary.manifest.files.emplace_back().name = absl::StrCat("rank-", file, ".h5");
  }
  for (int i = 0; i < tensors; ++i) {
    for (const bool is_state : {false, true}) {
      StoredTensor tensor;
      const std::string fqn = absl::StrCat("layers.", i / 2, i % 2 == 0 ? ".weight" : ".bias");
      tensor.key = is_state ? StateKey::OptimState(fqn, "exp_avg") : StateKey::Model(fqn);
      tensor.shape = {numel};
      for (int file = 0; file < files; ++file) {
        tensor.intervals.push_back({{numel * file / files, numel * (file + 1) / files}, file, 0});
      }
      summary.manifest.tensors.push_back(tensor);
    }
  }
  return summary;
}

RunFacts FactsOf() {
  RunFacts facts;
  facts.absolute_path = "/home/me/runs/step-00000100";
  facts.date = "2026-11-27 07:20 UTC";
  return facts;
}

std::string Page(const CheckpointSummary& summary, const TensorStatistics& statistics) {
  return CheckpointPage(summary, statistics, FactsOf());
}

TensorStatistics StatisticsOf(const CheckpointSummary& summary, const std::vector<float>& values) {
  TensorStatistics statistics;
  for (const StoredTensor& tensor : summary.manifest.tensors) statistics[tensor.key] = Statistics(values);
  return statistics;
}

TEST(CheckpointPageTest, ShowsShardsSizesValuesMomentsAndTensors) {
  const CheckpointSummary summary = SummaryOf(4, 2, 1000);
  const std::string page = Page(summary, StatisticsOf(summary, {-0.5f, 0.25f, 0, 2}));
  EXPECT_THAT(page, AllOf(HasSubstr("runs/step-00000100"), HasSubstr("sharded checkpoint of step 100, world size 2"),
                          HasSubstr("Who holds what"), HasSubstr("rank-1.h5"), HasSubstr("model of layers.1: 4.0 kB")));
  EXPECT_THAT(page,
              AllOf(HasSubstr("Size of each layer"), HasSubstr("Values of the weights"), HasSubstr("Optimizer moments"),
                    HasSubstr("exp_avg"), HasSubstr("model/layers.1.bias"), HasSubstr("rank-1.h5 [500, 1000)")));
}

TEST(CheckpointPageTest, LoadsNothing) {
  const CheckpointSummary summary = SummaryOf(4, 2, 1000);
  const std::string page = Page(summary, StatisticsOf(summary, {1}));
  ExpectLoadsNothing(page);
  ExpectTagsClose(page);
}

TEST(CheckpointPageTest, SaysWhichCheckpointAndFromWhen) {
  const std::string page = Page(SummaryOf(1, 1, 10), {});
  EXPECT_THAT(page,
              AllOf(HasSubstr("<title>runs/step-00000100</title>"),
                    HasSubstr("<bdi>/<wbr>home/<wbr>me/<wbr>runs/<wbr>step-00000100</bdi>, 2026-11-27 07:20 UTC")));
}

TEST(CheckpointPageTest, RowsAreByLayerInTheOrderOfAModelWithTheirStates) {
  CheckpointSummary summary = SummaryOf(6, 1, 10);
  const char* names[] = {"h.10.w", "h.2.w", "ln_f.w", "wte.w", "h.2.b", "h.10.b"};
  for (int i = 0; i < 6; ++i) {
    for (const int state : {0, 1}) summary.manifest.tensors[2 * i + state].key.fqn = names[i];
  }
  const std::string page = Page(summary, StatisticsOf(summary, {1}));
  std::string order;
  for (size_t at = page.find("title=\"", page.find("<h2>Tensors")); at != std::string::npos;
       at = page.find("title=\"", at + 1)) {
    order += page.substr(at + 7, page.find('"', at + 7) - at - 7) + "\n";
  }
  EXPECT_EQ(order,
            "model/wte.w\noptim/state/wte.w/exp_avg\nmodel/h.2.b\noptim/state/h.2.b/exp_avg\nmodel/h.2.w\n"
            "optim/state/h.2.w/exp_avg\nmodel/h.10.b\noptim/state/h.10.b/exp_avg\nmodel/h.10.w\n"
            "optim/state/h.10.w/exp_avg\nmodel/ln_f.w\noptim/state/ln_f.w/exp_avg\n");
  EXPECT_THAT(page, HasSubstr("<tr class=\"optim\">"));
}

TEST(CheckpointPageTest, ShardsAreShownIfThereAreSeveralFiles) {
  EXPECT_THAT(Page(SummaryOf(1, 2, 10), {}), HasSubstr("<th scope=\"col\" class=\" unsorted\">shards"));
  EXPECT_THAT(Page(SummaryOf(1, 1, 10), {}), Not(HasSubstr(">shards")));
}

TEST(CheckpointPageTest, FilesWithoutValuesAreNamedAndHaveNoRow) {
  CheckpointSummary summary = SummaryOf(1, 1, 10);
  summary.manifest.files.push_back({"parity-00000-of-00001.h5", 34'000'000, {}, {}, {}, {}});
  const std::string page = Page(summary, {});
  EXPECT_THAT(page, HasSubstr("Without values of their own: <bdi>parity-00000-of-00001.<wbr>h5</bdi> (34 MB)"));
  EXPECT_THAT(page, Not(HasSubstr(">0 B<")));
}

TEST(CheckpointPageTest, WhatTheCheckpointRecordsIsOnThePage) {
  RunFacts facts = FactsOf();
  facts.attributes = {{"model.n_head", int64_t{4}}, {"options.lr", 1e-3}, {"data.path", std::string("a<b>.txt")}};
  facts.texts[StateKey::ParamGroups()] = R"([{"lr": 0.25, "betas": [0.9, 0.95], "params": ["a", "b", "c"]}])";
  facts.texts[StateKey::Extra("step")] = "100";
  facts.longer_texts[StateKey::Extra("loader")] = 1'000'000;
  facts.config = R"({"hidden_size": 48, "architectures": ["GPT2LMHeadModel"]})";
  const std::string page = CheckpointPage(SummaryOf(1, 1, 10), {}, facts);
  for (const char* fact :
       {"<h3>model</h3>", "<dt><bdi>n_head</bdi></dt><dd><bdi>4</bdi></dd>", "<dt><bdi>lr</bdi></dt><dd><bdi>0.001",
        "a&lt;b&gt;.txt", "<h3>param_groups</h3>", "<bdi>0.25</bdi>", "[0.9,0.95]",
        "<dt><bdi>params</bdi></dt><dd><bdi>3</bdi></dd>", "<dt><bdi>step</bdi></dt><dd><bdi>100</bdi></dd>",
        "a text of 1.0 MB", "<h3>config.json</h3>", "[&quot;GPT2LMHeadModel&quot;]"}) {
    EXPECT_THAT(page, HasSubstr(fact));
  }
  ExpectTagsClose(page);
}

TEST(CheckpointPageTest, HostileFactsAreTextAndBounded) {
  RunFacts facts = FactsOf();
  for (int i = 0; i < 10'000; ++i) facts.attributes[absl::StrCat("<b>", i, ".<script>")] = std::string(10'000, '<');
  facts.texts[StateKey::ParamGroups()] = "[{\"a\":" + std::string(1'000'000, '[');
  facts.config = "{\"a\":" + std::string(5'000, '[') + std::string(5'000, ']') + "}";
  const std::string page = CheckpointPage(SummaryOf(1, 1, 10), {}, facts);
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<b>0")), Not(HasSubstr("<script>."))));
  EXPECT_LT(page.size(), 100'000u);
  ExpectTagsClose(page);
}

TEST(CheckpointPageTest, HostileNamesAreText) {
  CheckpointSummary summary = SummaryOf(1, 1, 10);
  summary.manifest.tensors[0].key.fqn = "<script>alert(\"1\")</script>\n.weight";
  const std::string page = Page(summary, {});
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script>alert")), HasSubstr("&lt;script&gt;alert(")));
  ExpectTagsClose(page);
}

TEST(CheckpointPageTest, NaNIsSeenAtOnce) {
  const CheckpointSummary summary = SummaryOf(1, 1, 10);
  EXPECT_THAT(Page(summary, StatisticsOf(summary, {1, 0.0f / 0.0f})),
              AllOf(HasSubstr("<b class=\"bad\">2 / 0"), HasSubstr("<tr class=\"model bad\">")));
  EXPECT_THAT(Page(summary, StatisticsOf(summary, {1})), HasSubstr("<b class=\"good\">none"));
}

TEST(CheckpointPageTest, TheSizeOfThePageIsBounded) {
  std::vector<float> values;
  for (int exponent = -40; exponent < 20; ++exponent) {
    values.push_back(std::ldexp(1.0f, exponent));
    values.push_back(-std::ldexp(1.0f, exponent));
  }
  for (const int files : {16, 64, 1'000}) {
    const CheckpointSummary summary = SummaryOf(5'000, files, 4096);
    const std::string page = Page(summary, StatisticsOf(summary, values));
    EXPECT_LT(page.size(), 2 << 20) << files;
    // Not EXPECT_THAT, which would print all of it.
    for (const char* part : {"The 400 largest of 10", "layers.0–39"}) EXPECT_NE(page.find(part), std::string::npos);
    if (files != 1'000) continue;
    for (const char* part : {"rank-0–20.<wbr>h5", "1000 shards"}) EXPECT_NE(page.find(part), std::string::npos);
  }
}

TEST(CheckpointLayersTest, ALayerIsTheNameUpToItsFirstNumber) {
  EXPECT_EQ(LayerOf("transformer.h.11.attn.c_attn.weight"), "transformer.h.11");
  EXPECT_EQ(LayerOf("transformer.wte.weight"), "transformer.wte");
  EXPECT_EQ(LayerOf("weight"), "weight");
  EXPECT_EQ(LayerOf("0"), "0");
  EXPECT_EQ(LayerOf(""), "");
}

TEST(CheckpointLayersTest, BytesAreCountedWhereTheyAre) {
  const CheckpointLayers layers = LayersOf(SummaryOf(3, 2, 1000).manifest, {});
  ASSERT_EQ(layers.layers.size(), 2);
  EXPECT_EQ(layers.layers[0].model_bytes, 8000);
  EXPECT_EQ(layers.layers[1].optim_bytes, 4000);
  ASSERT_EQ(layers.files.size(), 2);
  EXPECT_EQ(layers.files[1].model_bytes[0], 4000);
  EXPECT_EQ(layers.files[0].optim_bytes[1], 2000);
}

TEST(PageChartsTest, OnlyOctavesThatOccurAreShown) {
  OctaveRange range;
  range.Include(Statistics({1, -4, 0}));
  EXPECT_EQ(range.last - range.first, 2);
  OctaveRange nothing;
  nothing.Include(Statistics({0, 0}));
  EXPECT_LT(nothing.last, nothing.first);
}

}  // namespace
}  // namespace fsdp
