// SPDX-License-Identifier: Apache-2.0
//
// For tests of fsdp/: a small GPT-2, wrapped and trained on ranks that are threads.
#ifndef FSDP_FSDP_MODEL_TESTUTIL_H_
#define FSDP_FSDP_MODEL_TESTUTIL_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/optim/adamw.h"

namespace fsdp {

// A config of two blocks with sizes that no small world size divides, so that every shard has padding or cuts a row.
Gpt2Config OddGpt2Config();

// Tokens and targets of one rank in one step.
struct TestBatch {
  Tensor tokens, targets;
};
absl::StatusOr<TestBatch> TestBatchOf(Device& device, int step, int rank);

// A wrapped model and its optimizer on one rank.
struct TestModel {
  std::unique_ptr<FullyShardedDataParallel> model;
  std::unique_ptr<AdamW> optimizer;

  // Forward and backward on a batch that depends on `step` and the rank; returns the loss on this rank.
  absl::StatusOr<float> ComputeGradients(int step);

  // ComputeGradients and one optimizer step.
  absl::Status Train(int step);

  // The state of model and optimizer, in the form of the model's settings.
  absl::StatusOr<StateDict> AllState();
};

// Wrapped by blocks unless `options` has a policy, with parameters of `dtype`; AdamW with decay on matrices only.
absl::StatusOr<TestModel> MakeTestModel(ShardGroups groups, const FsdpOptions& options, DType dtype = DType::kFloat32);

// A unit for each block, and seed 11.
FsdpOptions BlockOptions();

// As BlockOptions, but the blocks are replicated and only the root is sharded.
FsdpOptions MixedOptions();

}  // namespace fsdp

#endif  // FSDP_FSDP_MODEL_TESTUTIL_H_
