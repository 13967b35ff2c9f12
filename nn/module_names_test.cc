// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/module_names.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/module_list.h"
#include "fsdp/nn/sequential.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ModuleNamesTest, AStarEndsAtADotAndTwoDoNot) {
  for (const auto& [pattern, name] : std::vector<std::pair<std::string, std::string>>{{"h.*", "h.0"},
                                                                                      {"h.*", "h."},
                                                                                      {"*", "h"},
                                                                                      {"**", "h.0.mlp"},
                                                                                      {"h.**.fc", "h.0.mlp.fc"},
                                                                                      {"h.*.mlp", "h.12.mlp"},
                                                                                      {"h.*2", "h.12"},
                                                                                      {"a*b*c", "aXbYbc"},
                                                                                      {"", ""}}) {
    EXPECT_TRUE(MatchesModuleName(pattern, name)) << pattern << " " << name;
  }
  for (const auto& [pattern, name] : std::vector<std::pair<std::string, std::string>>{
           {"h.*", "h.0.mlp"}, {"h.*", "g.0"}, {"h", "h.0"}, {"h.0", "h"}, {"h.**.fc", "h.fc"}, {"*", ""}}) {
    EXPECT_EQ(MatchesModuleName(pattern, name), pattern == "*" && name.empty()) << pattern << " " << name;
  }
}

TEST(ModuleNamesTest, ALongPatternOfStarsIsQuick) {
  EXPECT_FALSE(MatchesModuleName(std::string(400, '*') + "b", std::string(4000, 'a')));
}

// 0 (Sequential of two layers), 1 (Conv1D).
std::unique_ptr<Sequential> Model() {
  const auto layer = [] { return std::make_unique<Conv1D>(1, 1, Initializer::Constant(0)); };
  return std::make_unique<Sequential>(std::make_unique<Sequential>(layer(), layer()), layer());
}

TEST(ModuleNamesTest, ModulesComeInnerFirstAndEachOnce) {
  const std::unique_ptr<Sequential> model = Model();
  Module* const block = model->children()[0].second.get();
  const absl::StatusOr<std::vector<Module*>> modules = ModulesByName(*model, {"0.*", "0", "**.1"});
  ASSERT_OK(modules);
  EXPECT_THAT(*modules, ElementsAre(block->children()[1].second.get(), block->children()[0].second.get(), block));
}

TEST(ModuleNamesTest, APatternThatNoModuleMatchesIsNamed) {
  EXPECT_THAT(ModulesByName(*Model(), {"0", "h.*"}),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no module's name matches \"h.*\", expected one below Sequential, whose children are "
                                 "0, 1")));
}

}  // namespace
}  // namespace fsdp
