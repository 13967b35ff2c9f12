// SPDX-License-Identifier: Apache-2.0
//
// GoldenCase: one training case of the real PyTorch, from testdata/golden/losses. Test data is trusted, so a missing
// file or member ends the test program.
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

// The same steps, trained in float64. With `seed` above 0 the weights are perturbed after each step by as much as
// rounding to float32 would, in directions that the seed picks: the difference to the run with seed 0 bounds how
// precisely any float32 run can determine a step.
std::vector<Float64Outcome> TrainInFloat64(const GoldenCase& golden, int seed = 0);

}  // namespace fsdp

#endif  // FSDP_TESTS_GOLDEN_CASE_H_
