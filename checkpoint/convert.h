// SPDX-License-Identifier: Apache-2.0
//
// ConvertCheckpoint: from any readable form to any writable one, streaming: memory stays under `max_memory` however large
// the model is, and the target appears whole or not at all.
#ifndef FSDP_CHECKPOINT_CONVERT_H_
#define FSDP_CHECKPOINT_CONVERT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tensor/dtype.h"
#include "tensor/state_dict.h"

namespace fsdp {

enum class CheckpointFormat : uint8_t { kHdf5, kSafetensors };

struct ConvertOptions {
  // Behaviour. Flags of `ckpt convert` by the same names.
  std::optional<CheckpointFormat> to;  // default: by DST's suffix, else kHdf5
  StateDictType state_dict_type = StateDictType::kFull;
  std::optional<int> world_size;       // default: the source's
  std::optional<DType> dtype;          // of the model's floating-point tensors
  std::vector<std::string> include;    // regular expressions (RE2-like ECMAScript) on names: any must match, if given
  std::vector<std::string> exclude;    // none may match
  std::vector<std::pair<std::string, std::string>> rename;  // regular expression -> replacement, in order
  bool model_only = false;
  bool force = false;                  // replace an existing DST

  // Performance.
  int64_t max_shard_size = int64_t{5} * 1000 * 1000 * 1000;  // bytes per file of a safetensors directory
  int64_t max_memory = int64_t{512} << 20;
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress;
};

struct ConvertReport {
  int64_t tensors = 0;
  int64_t bytes = 0;                // written payload
  std::vector<std::string> notes;   // what the target cannot hold and was left out, in sentences
};

absl::StatusOr<ConvertReport> ConvertCheckpoint(const std::string& source, const std::string& destination,
                                                const ConvertOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_H_
