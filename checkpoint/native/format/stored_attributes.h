// SPDX-License-Identifier: Apache-2.0
//
// The attributes of a state dict as manifests and records hold them: one JSON object, its members sorted by name, its
// values scalars (docs/checkpoint_format.md, RunMetadata). Pure.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_STORED_ATTRIBUTES_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_STORED_ATTRIBUTES_H_

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/tensor/run_metadata.h"

namespace fsdp {

// Bounds for saving and reading; a real run has about sixty attributes of a few dozen bytes.
inline constexpr size_t kMaxAttributes = 4096;
inline constexpr size_t kMaxAttributeNameBytes = 256;
inline constexpr size_t kMaxAttributesBytes = size_t{1} << 20;  // of all names and strings together

// OK when `attributes` can be saved. kInvalidArgument, naming the attribute, for a name that is empty or too long, for
// a name or a string that is not UTF-8 or holds NUL, for a double that is infinite or NaN, and for too many of them.
absl::Status CheckAttributes(const RunMetadata& attributes);

// The JSON object, one member a line, indented by `indent`. Precondition: CheckAttributes is OK.
std::string EncodeAttributes(const RunMetadata& attributes, const std::string& indent);

// The inverse: the same values, with every bit of doubles. kDataLoss, naming the member, for a value that is not a
// scalar, an integer beyond int64, and anything that CheckAttributes refuses. `object` must come from ParseJson, which
// refuses integers beyond 64 bits: in a document they are doubles already.
absl::StatusOr<RunMetadata> DecodeAttributes(const nlohmann::json& object);
absl::StatusOr<RunMetadata> DecodeAttributes(const JsonView& object);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_STORED_ATTRIBUTES_H_
