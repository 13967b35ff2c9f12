// SPDX-License-Identifier: Apache-2.0
//
// Tensor names: rules for storable names, their form in messages, and their encoding as links of an HDF5 file. Pure.
#ifndef FSDP_CHECKPOINT_SOURCE_TENSOR_NAME_H_
#define FSDP_CHECKPOINT_SOURCE_TENSOR_NAME_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

inline constexpr int64_t kMaxTensorNameBytes = 64 * 1024;

// OK for a name that can be stored: not empty, at most kMaxTensorNameBytes of valid UTF-8 without NUL. kInvalidArgument
// names it.
absl::Status CheckTensorName(const std::string& name);

// OK when every name in `key` can be stored.
absl::Status CheckStateKey(const StateKey& key);

// kInvalidArgument, naming `what`, for text that is not valid UTF-8.
absl::Status CheckUtf8(const std::string& text, const std::string& what);

// Text of messages: `tensor "model/w"`.
std::string Describe(const StateKey& key);

// The name as one HDF5 link: '%' is written %25, '/' %2F, and the names "." and ".." %2E and %2E%2E.
std::string EscapeLinkName(const std::string& name);

// The path of a value in an HDF5 file: "/model/transformer.wte.weight", "/optim/state/a%2Fb/exp_avg".
std::string DatasetPath(const StateKey& key);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_TENSOR_NAME_H_
