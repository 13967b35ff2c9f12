// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/options/restore_options.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

RestoreOptions Example() {
  RestoreOptions options;
  options.required = {{"model.n_head", 4}, {"model.activation_function", "relu"}};
  options.listed = {{"options.lr", 0.5}};
  return options;
}

std::vector<std::string> Lines(const absl::StatusOr<std::vector<AttributeDifference>>& differences) {
  EXPECT_OK(differences);
  std::vector<std::string> lines;
  if (!differences.ok()) return lines;
  for (const AttributeDifference& difference : *differences) lines.push_back(ToString(difference));
  return lines;
}

TEST(RestoreOptionsTest, ARequiredDifferenceIsRefusedByNameWithBothValues) {
  const RunMetadata saved = {{"model.n_head", 3}, {"model.activation_function", "gelu_new"}, {"options.lr", 0.1}};
  EXPECT_THAT(CheckSavedAttributes(saved, Example()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("model.n_head was 3 when it was saved, and is 4 here"),
                             HasSubstr("model.activation_function was \"gelu_new\" when it was saved, and is \"relu\""),
                             HasSubstr("RestoreOptions::allowed"), Not(HasSubstr("options.lr")))));
}

TEST(RestoreOptionsTest, AnAllowedDifferenceIsReturned) {
  RestoreOptions options = Example();
  options.allowed = {"model.n_head"};
  const RunMetadata saved = {{"model.n_head", 3}, {"model.activation_function", "relu"}, {"options.lr", 0.1}};
  EXPECT_THAT(Lines(CheckSavedAttributes(saved, options)),
              ElementsAre("model.n_head: 3 -> 4", "options.lr: 0.1 -> 0.5"));
}

TEST(RestoreOptionsTest, WhatWasNotRecordedIsReturnedAndNotRefused) {
  EXPECT_THAT(Lines(CheckSavedAttributes({{"options.old", true}}, Example())),
              ElementsAre("model.activation_function: not recorded -> \"relu\"", "model.n_head: not recorded -> 4",
                          "options.lr: not recorded -> 0.5", "options.old: true -> not recorded"));
}

TEST(RestoreOptionsTest, EqualAttributesDoNotDiffer) {
  const RunMetadata saved = {{"model.n_head", 4}, {"model.activation_function", "relu"}, {"options.lr", 0.5}};
  EXPECT_THAT(Lines(CheckSavedAttributes(saved, Example())), IsEmpty());
}

}  // namespace
}  // namespace fsdp
