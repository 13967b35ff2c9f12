// SPDX-License-Identifier: Apache-2.0
//
// The files of a model that is split: NAME-00001-of-00003.gguf and its siblings. Each has split.no (from 0),
// split.count and split.tensors.count (of all files together); the other keys are in the first. Names lead from one
// file to the others, keys prove that they are the right ones.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_SPLIT_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_SPLIT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_header.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// All stay open. The largest models have about a hundred.
inline constexpr int kMaxGgufParts = 256;

// "model-00002-of-00003.gguf": stem "model", number 2, count 3.
struct GgufPartName {
  std::string stem;
  int number = 0;
  int count = 0;
};
std::optional<GgufPartName> ParseGgufPartName(std::string_view name);

struct GgufPart {
  std::unique_ptr<File> file;
  GgufHeader header;
};

// A GGUF file in `directory`, by its name, if all of them are parts of one model, or one whole file; otherwise empty.
// Errors of listing.
absl::StatusOr<std::string> GgufFileIn(const std::string& directory);

// Opens the file `path`, or GgufFileIn a directory, and, if it is a part, all parts, in order. kNotFound names a part
// that is missing; kDataLoss one whose keys belong to another place or another split; kInvalidArgument a part under
// another name, and a name of a part whose keys do not say that it is one.
absl::StatusOr<std::vector<GgufPart>> OpenGgufParts(const std::string& path);

// The same for one open file, which must not be a part: for tests and fuzzing.
absl::StatusOr<std::vector<GgufPart>> OpenGgufPart(std::unique_ptr<File> file);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_SPLIT_H_
