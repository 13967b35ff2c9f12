// SPDX-License-Identifier: Apache-2.0
//
// The optimizers of a run, as its options require: one, over the parameters that are trained, with decay on parameters
// of two or more dimensions; or Muon for the matrices of transformer blocks, by their names, and AdamW for the rest:
// embeddings, the head, norms and biases. Muon's rate is adjusted to AdamW's (AdjustLr::kMatchRmsAdamw), so one --lr
// suits both.
#ifndef FSDP_TRAIN_RUN_OPTIMIZERS_H_
#define FSDP_TRAIN_RUN_OPTIMIZERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/run_metadata.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// The optimizers for `model`, which must outlive them. kInvalidArgument, naming the flag, for an optimizer without
// kernels for the device that has the parameters.
absl::StatusOr<std::vector<std::unique_ptr<Optimizer>>> MakeOptimizers(const TrainOptions& options,
                                                                       FullyShardedDataParallel& model);

// Pointers to all of them.
std::vector<Optimizer*> PointersTo(const std::vector<std::unique_ptr<Optimizer>>& optimizers);

// Whether a run with `options` continues with the optimizer state of `checkpoint`, whose attributes are `saved`: true
// if its optimizer is the same, or is not recorded. Otherwise false, if options.allow names the difference, and the
// state starts afresh; else kInvalidArgument with both optimizers.
absl::StatusOr<bool> ContinuesOptimizer(const TrainOptions& options, const RunMetadata& saved,
                                        const std::string& checkpoint);

}  // namespace fsdp

#endif  // FSDP_TRAIN_RUN_OPTIMIZERS_H_
