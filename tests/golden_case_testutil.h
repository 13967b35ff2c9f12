// SPDX-License-Identifier: Apache-2.0
//
// GoldenCase: one training case of the real PyTorch, from testdata/golden/losses. Test data is trusted, so a missing
// file or member ends the test program.
#ifndef FSDP_TESTS_GOLDEN_CASE_TESTUTIL_H_
#define FSDP_TESTS_GOLDEN_CASE_TESTUTIL_H_

#include <string>
#include <vector>

#include "fsdp/tests/gpt2_float64.h"
#include "fsdp/tests/train_gpt_run.h"
#include "fsdp/train/metrics.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

struct GoldenCase {
  std::string name;
  std::string model;      // a directory of testdata/golden; its name begins with its kind
  Flags flags;            // flags of train_gpt that describe it
  std::string comm_hook;  // the hook of its gradient reductions, by make_losses.py's name; train_gpt has no flag for it
  std::vector<double> loss, grad_norm, lr;  // the norm is NaN if gradients overflowed
  std::vector<double> scale;                // scale of the gradient scaler; empty without one

  // "0.001" of --lr=0.001; `absent` when there is no such flag.
  double Flag(const std::string& name, double absent) const;
};

GoldenCase ReadGoldenCase(const std::string& name);

// All flags of train_gpt for the case: its own, except that `instead` replaces flags of the same names, and those that
// name the files of its model and data.
Flags TrainingFlags(const GoldenCase& golden, const Flags& instead = {});

// The options that train_gpt has with only these flags set.
TrainOptions OptionsOf(const Flags& flags);

// The distance of a run from PyTorch's: relative differences, the largest over all steps, and for the gradient norm
// also the median. Only the median tells two dtypes apart: a few steps magnify any rounding.
struct Distance {
  double loss = 0;
  double grad_norm = 0, median_grad_norm = 0;
  double lr = 0;
  double scale = 0;  // of the gradient scaler; infinite if only one of the runs has one

  // True if no field is larger than the same field of `tolerance`.
  bool IsWithin(const Distance& tolerance) const;
  std::string ToString() const;
};

// Infinite if the run does not have the steps of the case.
Distance DistanceTo(const GoldenCase& golden, const std::vector<StepMetrics>& steps);

// The same steps, trained in float64. With `seed` above 0 the weights are perturbed after each step by as much as
// rounding to float32 would, in directions that the seed picks: the difference to the run with seed 0 bounds how
// precisely any float32 run can determine a step.
std::vector<Float64Outcome> TrainInFloat64(const GoldenCase& golden, int seed = 0);

}  // namespace fsdp

#endif  // FSDP_TESTS_GOLDEN_CASE_TESTUTIL_H_
