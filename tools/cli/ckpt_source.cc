// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/cli/ckpt_source.h"

#include "absl/flags/flag.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/tools/cli/ckpt_flags.h"

namespace fsdp {

absl::StatusOr<TensorSourceOptions> SourceOptionsFromFlags() {
  TensorSourceOptions options;
  // An empty path, the flag's default, gives an empty layout.
  FSDP_ASSIGN_OR_RETURN(options.flat_layout, ReadFlatLayout(absl::GetFlag(FLAGS_flat_layout)));
  options.skip_links = absl::GetFlag(FLAGS_skip_links);
  options.model_only = absl::GetFlag(FLAGS_model_only);  // only diff has it, of the commands that come here
  FSDP_ASSIGN_OR_RETURN(options.map, RolesFromFlags());
  return options;
}

absl::StatusOr<std::vector<TensorRole>> RolesFromFlags() { return RolesOfMapFlag(absl::GetFlag(FLAGS_map).values); }

absl::StatusOr<std::unique_ptr<TensorSource>> OpenSource(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(TensorSourceOptions options, SourceOptionsFromFlags());
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(path));
  if (!driver->traits().has_layout) options.map.clear();
  return OpenTensorSource(path, options);
}

}  // namespace fsdp
