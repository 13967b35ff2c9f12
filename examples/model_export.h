// SPDX-License-Identifier: Apache-2.0
//
// ExportModel: leaves a trained model as a directory that Hugging Face's from_pretrained reads.
#ifndef FSDP_EXAMPLES_MODEL_EXPORT_H_
#define FSDP_EXAMPLES_MODEL_EXPORT_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/fsdp.h"
#include "models/gpt2.h"

namespace fsdp {

// Makes `directory`, if needed, with config.json and model.safetensors: the weights in their original dtype, whole,
// gathered on rank 0, which alone writes. Each file appears whole or not at all, and replaces one that has its name.
// Collective; any rank's failure is returned on all.
absl::Status ExportModel(const std::string& directory, const Gpt2Config& config, FullyShardedDataParallel& model);

}  // namespace fsdp

#endif  // FSDP_EXAMPLES_MODEL_EXPORT_H_
