// SPDX-License-Identifier: Apache-2.0
//
// OpenSource: opens the checkpoint that a subcommand reads, of any format, with the options that its flags give.
#ifndef FSDP_TOOLS_CLI_CKPT_SOURCE_H_
#define FSDP_TOOLS_CLI_CKPT_SOURCE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// The options for opening a checkpoint, from the flags. Reads the file that --flat_layout names, if any; returns the
// errors of ReadFlatLayout.
absl::StatusOr<TensorSourceOptions> SourceOptionsFromFlags();

// The roles of --map, in order. kInvalidArgument quotes one that does not parse.
absl::StatusOr<std::vector<TensorRole>> RolesFromFlags();

// OpenTensorSource(path) with these options, and its errors. Of two paths that a subcommand opens only one may need
// roles, so a format without a layout is opened without them.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenSource(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CLI_CKPT_SOURCE_H_
