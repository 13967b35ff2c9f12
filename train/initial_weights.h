// SPDX-License-Identifier: Apache-2.0
//
// LoadInitialWeights: what --init_from names, read into a model's live state.
#ifndef FSDP_TRAIN_INITIAL_WEIGHTS_H_
#define FSDP_TRAIN_INITIAL_WEIGHTS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Fills `wanted`, a model's shards, from whatever LoadCheckpoint reads. Models are published under two spellings, with
// `base_prefix` ("transformer.", "model.") before the names of all but the head and without; both are read, and
// options.flat_layout, which has the prefix, is tried in both. Errors as LoadCheckpoint's.
absl::Status LoadInitialWeights(const std::string& path, std::string_view base_prefix, StateDict& wanted,
                                const LoadOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_INITIAL_WEIGHTS_H_
