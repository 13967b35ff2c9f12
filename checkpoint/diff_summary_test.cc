// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/diff_summary.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A tensor of [10] that differs by `max_abs` in one element, or in none for 0.
TensorDiff Differing(const std::string& name, double max_abs, DType dtype_b = DType::kFloat32) {
  TensorDiff tensor;
  tensor.name = name;
  tensor.dtype_b = dtype_b;
  tensor.shape_a = tensor.shape_b = Shape({10});
  tensor.values.numel = 10;
  if (max_abs == 0) return tensor;
  tensor.values.changed = tensor.values.outside = tensor.values.beyond_rounding = 1;
  tensor.values.max_abs = max_abs;
  return tensor;
}

DiffReport ReportOf(const std::vector<TensorDiff>& tensors) {
  DiffReport report;
  report.tensors = tensors;
  report.compared = static_cast<int64_t>(tensors.size());
  return report;
}

TEST(DiffSummaryTest, EqualReportsHaveNoKind) {
  EXPECT_THAT(SummariseDiff(ReportOf({Differing("model/w", 0)})).kinds, IsEmpty());
  TensorDiff tolerated = Differing("model/w", 0.5);
  tolerated.values.outside = 0;
  EXPECT_THAT(SummariseDiff(ReportOf({tolerated})).sentences, IsEmpty());
}

TEST(DiffSummaryTest, AnotherDTypeOfEqualOrRoundedValuesIsADTypeOnly) {
  TensorDiff rounded = Differing("model/w", 0.125, DType::kBFloat16);
  rounded.values.beyond_rounding = 0;
  rounded.values.max_rel = 0.25;
  const DiffReport equal = ReportOf({Differing("model/a", 0, DType::kFloat16), Differing("model/b", 0)});
  EXPECT_THAT(SummariseDiff(equal).kinds, ElementsAre("dtypes"));
  EXPECT_THAT(SummariseDiff(equal).sentences,
              ElementsAre("dtypes: 1 tensor is float32 in A, float16 in B; every value is equal"));
  const DiffReport narrowed = ReportOf({rounded, Differing("model/b", 0, DType::kBFloat16)});
  EXPECT_THAT(SummariseDiff(narrowed).sentences,
              ElementsAre("dtypes: 2 tensors are float32 in A, bfloat16 in B; every value is equal or is the other, "
                          "rounded (max rel 0.25)"));
  EXPECT_THAT(SummariseDiff(ReportOf({Differing("model/w", 0.5, DType::kBFloat16)})).kinds,
              ElementsAre("dtypes", "values"));
}

TEST(DiffSummaryTest, ValuesNameTheLargestDifference) {
  TensorDiff nan = Differing("model/c", 0.25);
  nan.values.nan_mismatches = 3;
  const DiffReport report = ReportOf({Differing("model/a", 0), Differing("model/b", 2), nan});
  EXPECT_THAT(SummariseDiff(report).kinds, ElementsAre("values"));
  EXPECT_THAT(SummariseDiff(report).sentences,
              ElementsAre("values: 2 of 3 tensors differ, at most by 2, in \"model/b\"; NaN on one side in 1"));
}

TEST(DiffSummaryTest, WhatOneSideHasIsCountedBySection) {
  DiffReport report = ReportOf({Differing("model/w", 0)});
  report.only_in_b = {"optim/state/w/exp_avg", "optim/param_groups"};
  EXPECT_THAT(SummariseDiff(report).kinds, ElementsAre("optimizer"));
  EXPECT_THAT(SummariseDiff(report).sentences, ElementsAre("optimizer: 2 optimizer values only in B"));
  report.only_in_a = {"extra/step", "model/b"};
  EXPECT_THAT(SummariseDiff(report).sentences,
              ElementsAre("missing: 1 model value, 1 extra value only in A; 2 optimizer values only in B"));
}

TEST(DiffSummaryTest, NamesWithAPrefixAreNotMissing) {
  DiffReport report;
  report.only_in_a = {"model/w", "optim/state/w/mu"};
  report.only_in_b = {"model/module.w", "optim/state/module.w/mu"};
  report.renamed.prefix_b = "module.";
  report.renamed.compared = 2;
  EXPECT_THAT(SummariseDiff(report).kinds, ElementsAre("names"));
  EXPECT_THAT(SummariseDiff(report).sentences,
              ElementsAre("names: 2 tensors have no prefix in A, the prefix \"module.\" "
                          "in B; all are equal but for that"));
  EXPECT_THAT(NamesOfOneSide(report).a, IsEmpty());
  EXPECT_THAT(NamesOfOneSide(report).b, IsEmpty());
  report.renamed.tensors = {Differing("model/w", 1)};
  report.only_in_b.push_back("extra/step");
  EXPECT_THAT(NamesOfOneSide(report).b, ElementsAre("extra/step"));
  EXPECT_THAT(SummariseDiff(report).kinds, ElementsAre("names", "missing", "values"));
  EXPECT_THAT(SummariseDiff(report).sentences[2], HasSubstr("values: 1 of 2 tensors differs, at most by 1"));
}

TEST(DiffSummaryTest, TheLargestDifferencesComeFirst) {
  TensorDiff nan = Differing("nan", 0.5);
  nan.values.nan_mismatches = 1;
  DiffReport report = ReportOf({Differing("small", 1), Differing("equal", 0),
                                Differing("infinite", std::numeric_limits<double>::infinity()), nan,
                                Differing("large", 3), Differing("small too", 1)});
  report.renamed.tensors = {Differing("renamed", 2)};
  std::vector<std::string> names;
  for (const TensorDiff* tensor : LargestDifferences(report, 5)) names.push_back(tensor->name);
  EXPECT_THAT(names, ElementsAre("nan", "infinite", "large", "renamed", "small"));
  EXPECT_EQ(LargestDifferences(report, 100).size(), 6);
  EXPECT_THAT(LargestDifferences(report, 0), IsEmpty());
}

}  // namespace
}  // namespace fsdp
