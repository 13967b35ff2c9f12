// SPDX-License-Identifier: Apache-2.0
//
// A small GPT-2 wrapped and trained on ranks that are threads: what several tests of fsdp/ start from.
#ifndef FSDP_FSDP_TEST_MODEL_H_
#define FSDP_FSDP_TEST_MODEL_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/optim/adamw.h"

namespace fsdp {

// Sizes that no small world size divides.
Gpt2Config OddGpt2Config();

// Tokens and targets of one rank in one step.
struct TestBatch {
  Tensor tokens, targets;
};
absl::StatusOr<TestBatch> TestBatchOf(Device& device, int step, int rank);

struct TestModel {
  std::unique_ptr<FullyShardedDataParallel> model;
  std::unique_ptr<AdamW> optimizer;

  // Forward and backward on a batch that depends on `step` and the rank; returns the loss on this rank.
  absl::StatusOr<float> ComputeGradients(int step);

  // ComputeGradients and one optimizer step.
  absl::Status Train(int step);

  // State of model and optimizer, in the form that the model's settings say.
  absl::StatusOr<StateDict> AllState();
};

// Wrapped by blocks unless `options` has a policy; AdamW with decay on matrices only.
absl::StatusOr<TestModel> MakeTestModel(ShardGroups groups, const FsdpOptions& options);

// By blocks, seed 11.
FsdpOptions BlockOptions();

// The same, but blocks are replicated while the root is sharded.
FsdpOptions MixedOptions();

}  // namespace fsdp

#endif  // FSDP_FSDP_TEST_MODEL_H_
