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

// The file that an export has beside its weights.
inline constexpr char kModelConfigName[] = "config.json";

// Makes `directory`, if needed, with config.json and the weights in their original dtype, whole, gathered on rank 0,
// which alone writes. `target` is the format of the weights: model.safetensors, pytorch_model.bin, or, for DCP, the
// directory itself, of as many ranks as the model has. Each file appears whole or not at all, and replaces one that has
// its name; of a DCP directory all files are replaced together, and it is refused where there are others. Collective;
// any rank's failure is returned on all.
absl::Status ExportModel(const std::string& directory, const CausalLmConfig& config, FullyShardedDataParallel& model,
                         const FormatTarget& target = SafetensorsTarget());

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODEL_EXPORT_H_
