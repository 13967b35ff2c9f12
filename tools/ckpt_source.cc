// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_source.h"

#include "absl/flags/flag.h"
#include "base/status_macros.h"
#include "checkpoint/torch/flat_layout.h"
#include "tools/ckpt_flags.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<TensorSource>> OpenSource(const std::string& path) {
  TensorSourceOptions options;
  ASSIGN_OR_RETURN(options.flat_layout, ReadFlatLayout(absl::GetFlag(FLAGS_flat_layout)));
  return OpenTensorSource(path, options);
}

}  // namespace fsdp
