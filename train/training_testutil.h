// SPDX-License-Identifier: Apache-2.0
//
// TrainingFixture: a whole run of train_gpt inside a test, with its own directory. The model is small, since an
// emulated GPU is slow, and its sizes are odd, so that no number of ranks divides them.
#ifndef FSDP_TRAIN_TRAINING_TESTUTIL_H_
#define FSDP_TRAIN_TRAINING_TESTUTIL_H_

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

  // The options of a run of `steps` steps at a constant learning rate, with each block as a unit.
  TrainOptions Options(int64_t steps) const;

  // The run on one rank; an error ends it on all ranks.
  static absl::Status TrainRank(const TrainOptions& options, const std::shared_ptr<ProcessGroup>& group);

  // A new path in the directory.
  std::string NewRunPath();

  std::string directory_;

 private:
  int runs_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINING_TESTUTIL_H_
