// SPDX-License-Identifier: Apache-2.0
//
// WriteHuggingFaceDirectory: writes a model as a directory that transformers loads: model.safetensors if it fits in one
// file, else model-00001-of-000NN.safetensors and so on with model.safetensors.index.json. config.json is a carried
// file, or the caller adds it.
#ifndef FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_HUGGING_FACE_WRITER_H_
#define FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_HUGGING_FACE_WRITER_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct HuggingFaceOptions {
  SafetensorsOptions safetensors;

  // Payload bytes of one file. Tensors are taken in the order of the contents and never cut: a larger one gets its own
  // file.
  int64_t max_shard_size = int64_t{5} * 1000 * 1000 * 1000;

  // Files without tensors, such as a tokenizer, by their name in the directory: paths whose bytes are copied. No name
  // is one of the directory's own.
  std::map<std::string, std::string> carried = {};
};

// Creates the directory `path` from the model tensors of `contents` and `read`. As with WriteSafetensors, it appears
// whole or not at all.
absl::Status WriteHuggingFaceDirectory(const std::string& path, const StateDict& contents, const PayloadReader& read,
                                       const HuggingFaceOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_HUGGING_FACE_WRITER_H_
