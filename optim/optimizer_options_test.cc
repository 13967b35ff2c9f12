// SPDX-License-Identifier: Apache-2.0
//
// The ranges of the optimizers' options, which are torch.optim's, whether they are set by the constructor or later.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/lion.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "fsdp/optim/sgd.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

auto IsRefused(const std::string& message) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)); }

// A value out of range, by the field's name, and the expected message.
struct Case {
  std::string field;
  double value;
  std::string message;
};

template <typename Options>
struct Field {
  std::string name;
  double Options::*member;
};

const std::vector<Field<AdamWOptions>> kAdamWFields = {{"lr", &AdamWOptions::lr},
                                                       {"beta1", &AdamWOptions::beta1},
                                                       {"beta2", &AdamWOptions::beta2},
                                                       {"eps", &AdamWOptions::eps},
                                                       {"weight_decay", &AdamWOptions::weight_decay}};
const std::vector<Field<SgdOptions>> kSgdFields = {{"lr", &SgdOptions::lr},
                                                   {"momentum", &SgdOptions::momentum},
                                                   {"dampening", &SgdOptions::dampening},
                                                   {"weight_decay", &SgdOptions::weight_decay}};

const char kNotNegative[] = "expected a finite number of at least 0";
const char kShare[] = "expected a number of at least 0 and below 1";

std::vector<Case> AdamWCases() {
  return {{"lr", -0.1, "lr is -0.1: " + std::string(kNotNegative)},
          {"lr", kNan, "lr is nan: " + std::string(kNotNegative)},
          {"lr", kInfinity, "lr is inf: " + std::string(kNotNegative)},
          {"beta1", 1, "beta1 is 1: " + std::string(kShare)},
          {"beta1", -0.1, "beta1 is -0.1: " + std::string(kShare)},
          {"beta2", 1.5, "beta2 is 1.5: " + std::string(kShare)},
          {"beta2", kNan, "beta2 is nan: " + std::string(kShare)},
          {"eps", -1e-8, "eps is -1e-08: " + std::string(kNotNegative)},
          {"eps", kNan, "eps is nan: " + std::string(kNotNegative)},
          {"weight_decay", -0.1, "weight_decay is -0.1: " + std::string(kNotNegative)},
          {"weight_decay", kNan, "weight_decay is nan: " + std::string(kNotNegative)}};
}

std::vector<Case> SgdCases() {
  return {{"lr", -0.1, "lr is -0.1: " + std::string(kNotNegative)},
          {"lr", kNan, "lr is nan: " + std::string(kNotNegative)},
          {"momentum", -0.1, "momentum is -0.1: " + std::string(kNotNegative)},
          {"momentum", kInfinity, "momentum is inf: " + std::string(kNotNegative)},
          {"dampening", kNan, "dampening is nan: expected a finite number"},
          {"weight_decay", -1, "weight_decay is -1: " + std::string(kNotNegative)}};
}

class OptimizerOptionsTest : public OptimizerFixture {
 protected:
  // Each value out of range is refused by the first step, in the group that has it, and by the setter, which changes
  // nothing. `momentum` makes all of SGD's values settable.
  template <typename Optimizer, typename Options>
  void ExpectRefused(const std::vector<Case>& cases, const std::vector<Field<Options>>& fields, const Options& sound,
                     const std::string& optimizer_name) {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.message);
      const auto first = MakeParameter(*device_, "a", 5, 0), second = MakeParameter(*device_, "b", 5, 0);
      Set(first->data, Floats(5, 1));
      Options wrong = sound;
      for (const Field<Options>& field : fields) {
        if (field.name == c.field) wrong.*field.member = c.value;
      }
      Optimizer made({{{first.get()}, sound}, {{second.get()}, wrong}});
      EXPECT_THAT(made.Step(*stream_), IsRefused(optimizer_name + ", param group 1: " + c.message));
      EXPECT_EQ(made.step_count(0), 0);
      EXPECT_OK(stream_->Synchronize());
      EXPECT_EQ(Get(first->data), Floats(5, 1)) << "no group stepped";

      Optimizer later({{{first.get()}, sound}, {{second.get()}, sound}});
      const auto before = later.ParamGroups();
      EXPECT_THAT(later.SetHyperparameter(c.field, c.value),
                  IsRefused(optimizer_name + ", param group 0: " + c.message));
      EXPECT_EQ(later.ParamGroups()[0].values, before[0].values);
      EXPECT_EQ(later.ParamGroups()[1].values, before[1].values);
    }
  }
};

TEST_F(OptimizerOptionsTest, AdamWRefusesValuesOutOfRange) {
  ExpectRefused<AdamW>(AdamWCases(), kAdamWFields, AdamWOptions(), "AdamW");
}

TEST_F(OptimizerOptionsTest, LionRefusesValuesOutOfRange) {
  ExpectRefused<Lion>({{"lr", kNan, "lr is nan: " + std::string(kNotNegative)},
                       {"beta1", 1, "beta1 is 1: " + std::string(kShare)},
                       {"beta2", -0.1, "beta2 is -0.1: " + std::string(kShare)},
                       {"weight_decay", kInfinity, "weight_decay is inf: " + std::string(kNotNegative)}},
                      std::vector<Field<LionOptions>>{{"lr", &LionOptions::lr},
                                                      {"beta1", &LionOptions::beta1},
                                                      {"beta2", &LionOptions::beta2},
                                                      {"weight_decay", &LionOptions::weight_decay}},
                      LionOptions(), "Lion");
}

TEST_F(OptimizerOptionsTest, SgdRefusesValuesOutOfRange) {
  ExpectRefused<Sgd>(SgdCases(), kSgdFields, SgdOptions{.momentum = 0.9}, "SGD");
}

// A learning rate of 0 is the end of many schedules.
TEST_F(OptimizerOptionsTest, TheEndsOfTheRangesAreAllowed) {
  const auto parameter = MakeParameter(*device_, "a", 5, 0);
  Set(parameter->data, Floats(5, 1));
  SetGrad(*parameter, Floats(5, 1));
  AdamW adamw({parameter.get()}, {.lr = 0, .beta1 = 0, .beta2 = 0, .eps = 0, .weight_decay = 0});
  EXPECT_OK(adamw.Step(*stream_));
  Sgd sgd({parameter.get()}, {.lr = 0, .momentum = 1, .dampening = -1});
  EXPECT_OK(sgd.Step(*stream_));
  EXPECT_OK(stream_->Synchronize());
}

TEST_F(OptimizerOptionsTest, AGroupThatThereIsNotIsRefused) {
  const auto parameter = MakeParameter(*device_, "a", 5, 0);
  AdamW adamw({parameter.get()}, {});
  EXPECT_THAT(adamw.SetGroupHyperparameter(1, "lr", 0.1), IsRefused("AdamW has no param group 1: it has 1"));
  Sgd sgd({parameter.get()}, {});
  EXPECT_THAT(sgd.SetGroupHyperparameter(7, "lr", 0.1), IsRefused("SGD has no param group 7: it has 1"));
}

}  // namespace
}  // namespace fsdp
