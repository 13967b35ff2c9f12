// SPDX-License-Identifier: Apache-2.0
//
// ConvertCheckpoint: from any readable form to any writable one, streaming: memory stays under `max_memory` however
// large the model is, and the target appears whole or not at all.
#ifndef FSDP_CHECKPOINT_CONVERT_CONVERT_H_
#define FSDP_CHECKPOINT_CONVERT_CONVERT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/convert/name_filter.h"
#include "fsdp/checkpoint/format/flat_layout.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

enum class CheckpointFormat : uint8_t { kHdf5, kSafetensors, kTorch, kDcp };

struct ConvertOptions {
  // Behaviour. Flags of `ckpt convert` by the same names.
  std::optional<CheckpointFormat> to;            // default: by DST's suffix, else kHdf5
  std::optional<StateDictType> state_dict_type;  // of kHdf5; default: kFull
  std::optional<int> world_size;                 // of kSharded and kLocal, and of kDcp; default: the source's
  std::optional<DType> dtype;                    // of the model's floating-point tensors; default: the source's
  NameFilter::Patterns names;                    // which parameters are kept, and what they are called
  int parity = 0;                                // parity files of kSharded and kLocal
  bool model_only = false;                       // leave optimizer and extra values out
  bool force = false;                            // replace an existing DST
  std::optional<FlatLayout> flat_layout = {};    // TensorSourceOptions::flat_layout

  // Payload bytes of one file of a safetensors directory; default: 5 GB.
  std::optional<int64_t> max_shard_size;

  // Performance.
  int64_t max_memory = int64_t{512} << 20;
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress;

  FileSystem* file_system = &PosixFileSystem();  // that is written to; tests inject faults
};

struct ConvertReport {
  int64_t tensors = 0;
  int64_t bytes = 0;               // written payload
  std::vector<std::string> notes;  // what the target cannot hold and was left out, in sentences
};

// What is wrong with `options` for `destination` whatever the source is: kInvalidArgument for options that contradict
// each other or apply to another target, kUnimplemented for targets that this release does not write.
absl::Status CheckConvertOptions(const std::string& destination, const ConvertOptions& options);

// Reads `source` (anything that OpenTensorSource opens) and makes `destination` of it. kAlreadyExists when that exists
// and is not to be replaced; kFailedPrecondition when it holds files that a checkpoint does not, which `force` would
// delete. On failure nothing is made and an existing destination is untouched. Blocks until the target is durable.
absl::StatusOr<ConvertReport> ConvertCheckpoint(const std::string& source, const std::string& destination,
                                                const ConvertOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CONVERT_H_
