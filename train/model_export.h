// SPDX-License-Identifier: Apache-2.0
//
// ExportModel: leaves a trained model as a directory that Hugging Face's from_pretrained reads.
#ifndef FSDP_TRAIN_MODEL_EXPORT_H_
#define FSDP_TRAIN_MODEL_EXPORT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/models/causal_lm.h"

namespace fsdp {

// What the weights are written as, beside config.json.
enum class ExportFormat : uint8_t {
  kSafetensors,  // model.safetensors
  kTorch,        // pytorch_model.bin
  kDcp,          // the directory itself is a DCP directory, of as many ranks as the model has
};

// "safetensors", "torch" or "dcp".
absl::StatusOr<ExportFormat> ParseExportFormat(std::string_view name);

// Makes `directory`, if needed, with config.json and the weights in their original dtype, whole, gathered on rank 0,
// which alone writes. Each file appears whole or not at all, and replaces one that has its name; of a DCP directory all
// files are replaced together, and it is refused where there are others. Collective; any rank's failure is returned on
// all.
absl::Status ExportModel(const std::string& directory, const CausalLmConfig& config, FullyShardedDataParallel& model,
                         ExportFormat format = ExportFormat::kSafetensors);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODEL_EXPORT_H_
