// SPDX-License-Identifier: Apache-2.0
//
// Recognises the format of a path and opens it; source/load.cc does the loading.
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/load_together.h"
#include "fsdp/checkpoint/source/source_notes.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

absl::Status LoadCheckpoint(const std::string& path, StateDict& wanted, const LoadOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckLoadMemory(wanted, options));
  const absl::StatusOr<std::unique_ptr<TensorSource>> source =
      OpenTensorSource(path, SourceOptionsFor(wanted, options));
  if (!source.ok()) return NameLoadOptions(source.status());
  return LoadFrom(**source, path, wanted, options);
}

absl::Status LoadCheckpoint(const std::string& path, StateDict& wanted, ProcessGroup& group,
                            const LoadOptions& options) {
  return LoadTogether(path, wanted, group, options, FindFormat);
}

absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path, ProcessGroup& group,
                                              std::vector<std::string>* skipped) {
  return ResolveTogether(path, group, FindFormat, skipped);
}

absl::StatusOr<StateDict> DescribeCheckpoint(const std::string& path, const DescribeOptions& options) {
  const absl::StatusOr<std::unique_ptr<TensorSource>> source =
      OpenTensorSource(path, {.flat_layout = options.flat_layout,
                              .model_only = options.model_only,
                              .skip_links = options.skip_links,
                              .map = options.map});
  if (!source.ok()) return NameOptions(source.status(), "DescribeOptions");
  if (options.notes != nullptr) *options.notes = SourceNotes(**source, "DescribeOptions");
  return (*source)->contents();
}

absl::StatusOr<int64_t> CheckpointStep(const std::string& path, const std::optional<FlatLayout>& flat_layout,
                                       const std::vector<TensorRole>& map) {
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(path));
  // skip_links: the step is never behind a link.
  const TensorSourceOptions options = {.flat_layout = flat_layout, .skip_links = true, .map = map};
  if (driver->traits().is_ours) {  // the manifest has the step, even if other files are damaged
    FSDP_RETURN_IF_ERROR(NameLoadOptions(driver->CheckApply(options)));
    return NativeCheckpointStep(path);
  }
  const absl::StatusOr<std::unique_ptr<TensorSource>> source = driver->OpenChecked(path, options);
  if (!source.ok()) return NameLoadOptions(source.status());
  if ((*source)->step() >= 0) return (*source)->step();
  return absl::InvalidArgumentError(absl::StrCat(path, " does not record its step; only its weights can be read"));
}

}  // namespace fsdp
