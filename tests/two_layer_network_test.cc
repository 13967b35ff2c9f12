// SPDX-License-Identifier: Apache-2.0
//
// The example for layers that are no Module, as a person runs it: three ranks learn a product.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// The loss that the example prints at a step; -1 if it prints none.
float LossAt(int step, const std::string& output) {
  char line[16];
  std::snprintf(line, sizeof(line), "step %3d  loss ", step);
  const size_t at = output.find(line);
  float loss = -1;
  if (at != std::string::npos) std::sscanf(output.c_str() + at, "step %*d loss %f", &loss);
  return loss;
}

TEST(TwoLayerNetworkTest, ThreeRanksLearnAProduct) {
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("examples/two_layer_network"));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ChildProcess> child, ChildProcess::Start({program}));
  ASSERT_THAT(child->Wait(absl::Seconds(60)), IsOkAndHolds(0)) << child->output();
  EXPECT_GT(LossAt(0, child->output()), 0) << child->output();
  EXPECT_GE(LossAt(350, child->output()), 0) << child->output();
  EXPECT_LT(LossAt(350, child->output()), 0.1f * LossAt(0, child->output())) << child->output();
}

}  // namespace
}  // namespace fsdp
