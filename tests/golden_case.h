// SPDX-License-Identifier: Apache-2.0
//
// GoldenCase: one training case of the real PyTorch, from testdata/golden/losses. Test data is trusted.
#ifndef FSDP_TESTS_GOLDEN_CASE_H_
#define FSDP_TESTS_GOLDEN_CASE_H_

#include <string>
#include <vector>

#include "fsdp/tests/gpt2_float64.h"
#include "fsdp/tests/train_gpt_run.h"

namespace fsdp {

struct GoldenCase {
  std::string name;
  std::string model;  // a directory of testdata/golden; its name begins with its kind
  Flags flags;        // of train_gpt, which describe it
  std::vector<double> loss, grad_norm, lr;

  // "0.001" of --lr=0.001; `absent` when there is no such flag.
  double Flag(const std::string& name, double absent) const;
};

GoldenCase ReadGoldenCase(const std::string& name);

// The same steps, trained in float64. With `seed` above 0 the weights are rounded like float32's after each step, in a
// way that the seed picks: how far that moves a step is how well the step can be known in float32 at all.
std::vector<Float64Outcome> TrainInFloat64(const GoldenCase& golden, int seed = 0);

}  // namespace fsdp

#endif  // FSDP_TESTS_GOLDEN_CASE_H_
