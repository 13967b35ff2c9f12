// SPDX-License-Identifier: Apache-2.0
//
// ExportModel: leaves a trained model as a directory that Hugging Face's from_pretrained reads.
#ifndef FSDP_TRAIN_MODEL_EXPORT_H_
#define FSDP_TRAIN_MODEL_EXPORT_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/models/causal_lm.h"

namespace fsdp {

// The config file next to the weights of an export.
inline constexpr char kModelConfigName[] = "config.json";

// Makes `directory`, if needed, with config.json and the weights in their original dtype, whole, gathered on rank 0,
// the only writer. `target` is the format of the weights: model.safetensors, pytorch_model.bin, or, for DCP, the
// directory itself, with a file for each rank of the model. Each file appears complete or not at all, and replaces one
// of its name; the files of a DCP directory are replaced together, and it is refused if it has others. Collective; any
// rank's failure is returned on all.
absl::Status ExportModel(const std::string& directory, const CausalLmConfig& config, FullyShardedDataParallel& model,
                         const FormatTarget& target = SafetensorsTarget());

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODEL_EXPORT_H_
