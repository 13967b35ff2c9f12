// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/diff_page.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/tools/page/page_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A tensor whose values changed by `change` of its norm.
TensorDiff Tensor(const std::string& name, double change) {
  TensorDiff tensor;
  tensor.name = name;
  tensor.shape_a = tensor.shape_b = {10};
  tensor.values.numel = 10;
  tensor.values.squares_a = tensor.values.squares_b = 4;
  tensor.values.squares_difference = 4 * change * change;
  tensor.values.max_abs = change;
  tensor.values.changed = tensor.values.outside = change > 0 ? 5 : 0;
  return tensor;
}

DiffReport ReportOf(const std::vector<TensorDiff>& tensors) {
  DiffReport report;
  report.tensors = tensors;
  report.compared = std::ssize(tensors);
  for (const TensorDiff& tensor : tensors) report.total.Add(tensor.values);
  return report;
}

std::string Page(const DiffReport& report) {
  return DiffPage({"/home/me/a/model.safetensors", "safetensors"}, {"/home/me/b", "full, step 3, world size 1"},
                  report);
}

TEST(DiffPageTest, ShowsKindsLayersAndTheLargestDifferences) {
  TensorDiff rounded = Tensor("model/h.2.w", 0.001);
  rounded.dtype_b = DType::kBFloat16;
  DiffReport report = ReportOf(
      {Tensor("model/h.10.w", 0.25), rounded, Tensor("optim/state/h.2.w/exp_avg", 0.5), Tensor("model/wte.w", 0)});
  report.only_in_a = {"model/lm_head.w"};
  report.structure = {"text \"extra/step\" differs"};
  const std::string page = Page(report);
  EXPECT_THAT(page, AllOf(HasSubstr("<title>a/model.safetensors and me/b</title>"), HasSubstr("safetensors<br>B: "),
                          HasSubstr("full, step 3, world size 1"), HasSubstr("1 / 0"), HasSubstr("Largest differences"),
                          HasSubstr("float32 in A, bfloat16 in B"), HasSubstr("float32 → bfloat16"),
                          HasSubstr("Only in A"), Not(HasSubstr("Only in B")), HasSubstr("&quot;extra/step&quot;")));
  // In the order of a model, and with its state.
  const size_t layers = page.find("Change of each layer");
  EXPECT_LT(page.find("wte", layers), page.find("<bdi>h.<wbr>2</bdi>", layers));
  EXPECT_LT(page.find("<bdi>h.<wbr>2</bdi>", layers), page.find("<bdi>h.<wbr>10</bdi>", layers));
  EXPECT_THAT(page,
              AllOf(HasSubstr("<title>weights: 0.25</title>"), HasSubstr("<title>optimizer's states: 0.5</title>"),
                    HasSubstr("<span class=\"number\">equal</span>")));
  ExpectLoadsNothing(page);
  ExpectTagsClose(page);
}

TEST(DiffPageTest, EqualCheckpointsAreSaidToBe) {
  const std::string page = Page(ReportOf({Tensor("model/a.w", 0)}));
  EXPECT_THAT(page, AllOf(HasSubstr("Nothing: every value is equal."), Not(HasSubstr("Largest differences"))));
}

TEST(DiffPageTest, OtherShapesAndNaNAreRed) {
  TensorDiff shape = Tensor("model/a.w", 0);
  shape.shape_b = {5, 2};
  shape.values = {};
  TensorDiff nan = Tensor("model/b.w", 0.5);
  nan.values.nan_mismatches = 2;
  const std::string page = Page(ReportOf({shape, nan}));
  EXPECT_THAT(page, AllOf(HasSubstr("shape [10] in A, [5, 2] in B"), HasSubstr("<tr class=\"bad\">"),
                          HasSubstr("<b class=\"bad\">2</b>")));
  ExpectTagsClose(page);
}

TEST(DiffPageTest, HostileNamesAreText) {
  DiffReport report = ReportOf({Tensor("model/<script>alert(1)</script>\n", 0.5), Tensor("optim/state/<b>", 1)});
  report.only_in_b = {"<img src=x>"};
  const std::string page = Page(report);
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script>alert")), Not(HasSubstr("<img")), HasSubstr("&lt;img src=x&gt;")));
  ExpectTagsClose(page);
}

TEST(DiffPageTest, TheSizeOfThePageIsBoundedAndTheRestIsCounted) {
  std::vector<TensorDiff> tensors;
  for (int i = 0; i < 5'000; ++i) {
    tensors.push_back(Tensor(absl::StrCat("model/layers.", i, ".weight"), i == 4'321 ? 0.75 : i % 3 * 1e-3));
    tensors.back().dtype_b = DType::kBFloat16;
  }
  DiffReport report = ReportOf(tensors);
  for (int i = 0; i < 5'000; ++i) report.only_in_a.push_back(absl::StrCat("model/other.", i));
  const std::string page = Page(report);
  EXPECT_LT(page.size(), 1u << 20);
  EXPECT_THAT(page, AllOf(HasSubstr("The 400 that changed most of 5"), HasSubstr("900 more; ckpt diff --json has all"),
                          HasSubstr("layers.<wbr>4321.<wbr>weight")));
  size_t rows = 0;
  const size_t table = page.find("The 400 that changed most");
  for (size_t at = page.find("<tr", table); at != std::string::npos; at = page.find("<tr", at + 1)) ++rows;
  EXPECT_EQ(rows, 401u) << "with the head";
}

}  // namespace
}  // namespace fsdp
