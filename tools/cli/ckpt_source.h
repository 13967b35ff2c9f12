// SPDX-License-Identifier: Apache-2.0
//
// OpenSource: what a subcommand reads, opened as its flags say.
#ifndef FSDP_TOOLS_CLI_CKPT_SOURCE_H_
#define FSDP_TOOLS_CLI_CKPT_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// What the flags say about opening a checkpoint: --flat_layout, whose file is read.
absl::StatusOr<TensorSourceOptions> SourceOptionsFromFlags();

// OpenTensorSource(path) with these options.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenSource(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CLI_CKPT_SOURCE_H_
