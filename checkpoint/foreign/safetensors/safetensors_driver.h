// SPDX-License-Identifier: Apache-2.0
//
// The driver for safetensors: a file, or a Hugging Face directory (model.safetensors, or an index of several files).
#ifndef FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_DRIVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

// A destination that ends with ".safetensors" becomes one file, any other a Hugging Face directory. The format holds
// only the model's tensors and string metadata.
struct SafetensorsTarget {
  // Payload bytes of one file of a directory, at least 1. A larger tensor gets its own file.
  int64_t max_shard_size = int64_t{5} * 1000 * 1000 * 1000;

  // Files without tensors that are copied into a directory, such as a tokenizer: by their name there, their path.
  std::map<std::string, std::string> carried = {};
};

const FormatDriver& SafetensorsDriver();
std::unique_ptr<FormatWriter> WriterFor(const SafetensorsTarget& target);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_DRIVER_H_
