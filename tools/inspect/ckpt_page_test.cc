// SPDX-License-Identifier: Apache-2.0
//
// The page about a checkpoint: its contents, that it is self-contained, and that its size is bounded.
#include "fsdp/tools/inspect/ckpt_page.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/tools/inspect/page_charts.h"
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

TensorStatistics StatisticsOf(const CheckpointSummary& summary, const std::vector<float>& values) {
  TensorStatistics statistics;
  for (const StoredTensor& tensor : summary.manifest.tensors) statistics[tensor.key] = Statistics(values);
  return statistics;
}

TEST(CheckpointPageTest, ShowsShardsSizesValuesMomentsAndTensors) {
  const CheckpointSummary summary = SummaryOf(4, 2, 1000);
  const std::string page = CheckpointPage(summary, StatisticsOf(summary, {-0.5f, 0.25f, 0, 2}));
  EXPECT_THAT(page, AllOf(HasSubstr("runs/step-00000100"), HasSubstr("sharded checkpoint of step 100, world size 2"),
                          HasSubstr("Who holds what"), HasSubstr("rank-1.h5"), HasSubstr("model of layers.1: 4.0 kB")));
  EXPECT_THAT(page,
              AllOf(HasSubstr("Size of each layer"), HasSubstr("Values of the weights"), HasSubstr("Optimizer moments"),
                    HasSubstr("exp_avg"), HasSubstr("model/layers.1.bias"), HasSubstr("rank-1.h5 [500, 1000)")));
}

TEST(CheckpointPageTest, LoadsNothingAndRunsNothing) {
  const CheckpointSummary summary = SummaryOf(4, 2, 1000);
  const std::string page = CheckpointPage(summary, StatisticsOf(summary, {1}));
  for (const char* outside : {"http", "<script", "<img", "<link", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
}

TEST(CheckpointPageTest, HostileNamesAreText) {
  CheckpointSummary summary = SummaryOf(1, 1, 10);
  summary.manifest.tensors[0].key.fqn = "<script>alert(\"1\")</script>\n.weight";
  const std::string page = CheckpointPage(summary, {});
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), HasSubstr("&lt;script&gt;alert(")));
}

TEST(CheckpointPageTest, NaNIsSeenAtOnce) {
  const CheckpointSummary summary = SummaryOf(1, 1, 10);
  EXPECT_THAT(CheckpointPage(summary, StatisticsOf(summary, {1, 0.0f / 0.0f})), HasSubstr("<b class=\"bad\">2 / 0"));
  EXPECT_THAT(CheckpointPage(summary, StatisticsOf(summary, {1})), HasSubstr("<b class=\"good\">none"));
}

TEST(CheckpointPageTest, TheSizeOfThePageIsBounded) {
  std::vector<float> values;
  for (int exponent = -40; exponent < 20; ++exponent) {
    values.push_back(std::ldexp(1.0f, exponent));
    values.push_back(-std::ldexp(1.0f, exponent));
  }
  for (const int files : {16, 64, 1'000}) {
    const CheckpointSummary summary = SummaryOf(5'000, files, 4096);
    const std::string page = CheckpointPage(summary, StatisticsOf(summary, values));
    EXPECT_LT(page.size(), 2 << 20) << files;
    EXPECT_THAT(page, AllOf(HasSubstr("The 400 largest of 10"), HasSubstr("layers.0–39")));
    if (files == 1'000) {
      EXPECT_THAT(page, AllOf(HasSubstr("rank-0–20.h5"), HasSubstr("1000 shards")));
    }
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
