// SPDX-License-Identifier: Apache-2.0
//
// The values of a pickle of plain values, each checked when it is read. Errors have the value's place in the pickle.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_PLAIN_PICKLE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_PLAIN_PICKLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"

namespace fsdp {

// kDataLoss and kInvalidArgument: "byte 17 of the pickle: WHAT".
absl::Status BrokenPickle(PickleValue value, const std::string& what);
absl::Status UnsupportedPickle(PickleValue value, const std::string& what);

// The following are kDataLoss for a value of another kind.

// The member `name` of a dict of at most 64 members; the last, as in Python, if a name occurs twice.
absl::StatusOr<PickleValue> PickleMember(PickleValue dict, std::string_view name);

absl::StatusOr<std::string> PickleText(PickleValue value, size_t max_bytes);

// From 0 to `limit` - 1.
absl::StatusOr<int64_t> PickleInteger(PickleValue value, int64_t limit);

// A rank as a key: an int, or, after a way through JSON, its digits.
absl::StatusOr<int64_t> PickleRank(PickleValue key, int64_t limit);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_PLAIN_PICKLE_H_
