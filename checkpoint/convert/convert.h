// SPDX-License-Identifier: Apache-2.0
//
// ConvertCheckpoint: from any readable form to any writable one, streaming: memory stays under `max_memory` however
// large the model is, and the target appears whole or not at all.
//
//   ConvertOptions options;
//   options.target = Hdf5Target{.type = StateDictType::kSharded, .world_size = 8};
//   FSDP_ASSIGN_OR_RETURN(const ConvertReport report, ConvertCheckpoint("model.safetensors", "sharded", options));
#ifndef FSDP_CHECKPOINT_CONVERT_CONVERT_H_
#define FSDP_CHECKPOINT_CONVERT_CONVERT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/convert/name_filter.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/input_paths.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// The least ConvertOptions::max_memory: the program itself and a few blocks of payload.
inline constexpr int64_t kMinConvertMemory = int64_t{64} << 20;

struct ConvertOptions {
  // Behaviour.
  std::optional<FormatTarget> target;          // what is made, with that format's options; default: DefaultTarget
  std::optional<DType> dtype;                  // of the model's floating-point tensors; default: the source's
  NameFilter::Patterns names;                  // which parameters are kept, and what they are called
  bool model_only = false;                     // leave optimizer and extra values out
  bool force = false;                          // replace an existing destination
  std::optional<FlatLayout> flat_layout = {};  // TensorSourceOptions::flat_layout
  InputPaths also_read = {};                   // files that the caller read, such as flat_layout's: no destinations
  bool skip_links = false;                     // TensorSourceOptions::skip_links; each is a note of the report
  bool allow_expanded = false;                 // write tensors that are larger than what the source holds (expansion.h)

  // Performance.
  int64_t max_memory = int64_t{512} << 20;  // of the whole process, in bytes; at least kMinConvertMemory
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress;

  FileSystem* file_system = &PosixFileSystem();  // that is written to; tests inject faults
};

// The size of the result, and sentences about it.
struct ConvertReport {
  int64_t tensors = 0;
  int64_t bytes = 0;               // written payload
  std::vector<std::string> notes;  // what the target cannot hold and was left out, in sentences
};

// Reads `source` (anything that OpenTensorSource opens) and makes `destination` of it. kInvalidArgument when an option
// is out of its range; kAlreadyExists when `destination` exists and is not to be replaced; kFailedPrecondition when it
// holds files that a checkpoint does not, which `force` would delete, when it is what is read or lies in a checkpoint
// (CheckOutput, with `force` or without), and when the tensors to write expand beyond the source without
// `allow_expanded`; kResourceExhausted when max_memory does not do, and when the disk has no room for expanded tensors.
// Messages call an option "ConvertOptions::max_memory". On failure nothing is made and an existing destination is
// untouched. Blocks until the target is durable.
absl::StatusOr<ConvertReport> ConvertCheckpoint(const std::string& source, const std::string& destination,
                                                const ConvertOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CONVERT_H_
