// SPDX-License-Identifier: Apache-2.0
//
// ConvertCheckpoint: converts any readable form to any writable one, streaming: memory stays under `max_memory` however
// large the model is, and the target appears whole or not at all.
//
//   ConvertOptions options;
//   options.target = Hdf5Target{.type = StateDictType::kSharded, .world_size = 8};
//   FSDP_ASSIGN_OR_RETURN(const ConvertReport report, ConvertCheckpoint("model.safetensors", "sharded", options));
#ifndef FSDP_CHECKPOINT_CONVERT_CONVERT_H_
#define FSDP_CHECKPOINT_CONVERT_CONVERT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/convert/name_filter.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/input_paths.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// The least ConvertOptions::max_memory: the program itself and a few blocks of payload.
inline constexpr int64_t kMinConvertMemory = int64_t{64} << 20;

struct ConvertOptions {
  // Behaviour.
  std::optional<FormatTarget> target;          // the format to write, with its options; default: DefaultTarget
  std::optional<DType> dtype;                  // of the model's floating-point tensors; default: the source's
  NameFilter::Patterns names;                  // which parameters are kept, and what they are called
  bool model_only = false;                     // leave optimizer and extra values out
  bool force = false;                          // replace an existing destination
  std::optional<int64_t> step = {};            // that a checkpoint of ours records; default: the source's
  std::optional<FlatLayout> flat_layout = {};  // TensorSourceOptions::flat_layout
  std::vector<TensorRole> map = {};            // TensorSourceOptions::map; the layout becomes a note in the report
  InputPaths also_read = {};                   // read by the caller, such as flat_layout's: never the destination
  bool skip_links = false;                     // TensorSourceOptions::skip_links; each becomes a note in the report
  bool keep_quantized = false;                 // TensorSourceOptions::keep_quantized: GGUF's blocks as they are
  // Opens the source in place of OpenTensorSource; the path then only names it: a checkpoint in an object store.
  std::function<absl::StatusOr<std::unique_ptr<TensorSource>>(const TensorSourceOptions& options)> open = {};
  // Makes another source of the opened one, which is converted instead: the merge of an adapter (merged_source.h).
  std::function<absl::StatusOr<std::unique_ptr<TensorSource>>(std::unique_ptr<TensorSource> source)> transform;
  bool allow_expanded = false;  // write tensors that are larger than the source's data (expansion.h)

  // Performance.
  int64_t max_memory = int64_t{512} << 20;  // of the whole process, in bytes; at least kMinConvertMemory
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress;

  // The same work by tensors, as small ones take longer than their bytes. Each counts as often as it takes the time of
  // reading and writing one: HDF5 counts it five times. May be empty; thread-safe, since several threads call it.
  std::function<void(int64_t tensors_done, int64_t tensors_total)> tensor_progress = {};

  FileSystem* file_system = &PosixFileSystem();  // of the destination; tests inject faults
};

// The size of the result, and notes about it.
struct ConvertReport {
  int64_t tensors = 0;
  int64_t bytes = 0;               // written payload
  int64_t step = -1;               // of the result; -1 if it is unknown
  std::vector<std::string> notes;  // sentences about parts that the target cannot hold and that were left out
};

// Converts `source` (anything that OpenTensorSource opens) to `destination`. Errors, with options named as
// "ConvertOptions::max_memory":
//   - kInvalidArgument: an option is out of its range; the result would lack the model, or hold nothing (of a source
//     without a model, a conversion that keeps all values is not an error: the report says so);
//   - kAlreadyExists: `destination` exists, without `force`;
//   - kFailedPrecondition: `force` would delete a file that does not belong to a checkpoint; `destination` is an input
//     or is inside a checkpoint (CheckOutput, with `force` or without); the tensors to write expand beyond the source,
//     without `allow_expanded`;
//   - kResourceExhausted: max_memory is too small, or the disk has no room for expanded tensors.
// On failure nothing is created and an existing destination is untouched. Blocks until the target is durable.
absl::StatusOr<ConvertReport> ConvertCheckpoint(const std::string& source, const std::string& destination,
                                                const ConvertOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CONVERT_H_
