// SPDX-License-Identifier: Apache-2.0
//
// OpenSource: opens the checkpoint that a subcommand reads, of any format, with the options that its flags give.
#ifndef FSDP_TOOLS_CLI_CKPT_SOURCE_H_
#define FSDP_TOOLS_CLI_CKPT_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// The options for opening a checkpoint, from the flags. Reads the file that --flat_layout names, if any; returns the
// errors of ReadFlatLayout.
absl::StatusOr<TensorSourceOptions> SourceOptionsFromFlags();

// OpenTensorSource(path) with these options, and its errors.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenSource(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CLI_CKPT_SOURCE_H_
