// SPDX-License-Identifier: Apache-2.0
//
// The outputs of a run against its inputs: CheckRunOutputs refuses, before anything is written, a --metrics,
// --tensorboard, --trace, --export or --checkpoint_dir that would harm the tokens, texts, config or weights of the run,
// or any checkpoint.
#ifndef FSDP_TRAIN_RUN_OUTPUTS_H_
#define FSDP_TRAIN_RUN_OUTPUTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/train/token_data.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// OK if no output of `options` is an input of the run, or is inside one, or is inside a checkpoint (CheckOutput,
// checkpoint/formats/output_path.h). kFailedPrecondition names the flag and both paths. Inputs are the tokens or texts,
// --config, --flat_layout, --init_from and --resume. Metrics, events, trace and checkpoints may be next to the steps of
// --checkpoint_dir, and in the directory of a model that is not read, such as --export, under names that the model's
// format does not use; an export may not be in --checkpoint_dir itself. For rank 0; changes nothing.
absl::Status CheckRunOutputs(const TrainOptions& options, const TokenData& data);

// OK unless one of `steps`, names in options.checkpoint_dir that this run replaces, holds the weights that it starts
// from (--init_from). kFailedPrecondition as above.
absl::Status CheckReplacedSteps(const TrainOptions& options, const std::vector<std::string>& steps);

}  // namespace fsdp

#endif  // FSDP_TRAIN_RUN_OUTPUTS_H_
