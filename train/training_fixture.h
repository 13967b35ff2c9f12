// SPDX-License-Identifier: Apache-2.0
//
// TrainingFixture: train_gpt's whole run, inside a test: of a model that is small and odd, since an emulated GPU is
// slow, in a directory of the test's own.
#ifndef FSDP_TRAIN_TRAINING_FIXTURE_H_
#define FSDP_TRAIN_TRAINING_FIXTURE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/train/train_options.h"
#include "gtest/gtest.h"

namespace fsdp {

class TrainingFixture : public testing::Test {
 protected:
  // Writes the model's config and the tokens.
  void SetUp() override;

  // Of a run of `steps` at a constant rate, each block a unit.
  TrainOptions Options(int64_t steps) const;

  // The run on one rank; an error ends it on all.
  static absl::Status TrainRank(const TrainOptions& options, const std::shared_ptr<ProcessGroup>& group);

  // A path in the directory that no other run has.
  std::string NewRunPath();

  std::string directory_;

 private:
  int runs_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINING_FIXTURE_H_
