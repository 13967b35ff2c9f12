// SPDX-License-Identifier: Apache-2.0
//
// OpenGgufSource: a model of llama.cpp, one file or all parts of a split, as a TensorSource. Tensors keep llama.cpp's
// names, in the order of rows that other programs use. Blocks of quantized types are converted to float32 as they are
// read, as llama.cpp converts them, or, with options.keep_quantized, carried as uint8 of gguf-py's shape, [rows, bytes
// of a row], with their types in the metadata (block_types.h); all other types are read as they are. Keys become
// metadata (gguf_value.h). The format has no checksums, no step and no optimizer.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// Reads the headers of all parts (gguf_split.h has the errors). kInvalidArgument, with their names and types, when
// tensors are of a type that this release does not read (Q8_1, Q8_K, Q1_0, which gguf-py does not read either; blocks
// in a big-endian file), unless options.skip_links leaves them out.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenGgufSource(const std::string& path,
                                                             const TensorSourceOptions& options = {});

// The same for an open file that is not a part, whose path appears in messages: for tests and fuzzing.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenGgufFile(std::unique_ptr<File> file,
                                                           const TensorSourceOptions& options);

// The traits of every source that this opens, and of its driver.
const FormatTraits& GgufTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_SOURCE_H_
