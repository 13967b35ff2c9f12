// SPDX-License-Identifier: Apache-2.0
//
// A summary of any format is a Manifest: the formats without one get theirs made up here, from their headers. So the
// text, the JSON and the page are written once. Members that a format does not have (step, kind, digests) stay at their
// defaults, and the forms leave them out by the traits of the format.
#include "fsdp/tools/inspect/ckpt_summary.h"

#include <string>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/manifest_file.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/verify/latest.h"
#include "fsdp/tools/cli/ckpt_source.h"

namespace fsdp {

absl::StatusOr<CheckpointSummary> Summarise(const std::string& path) {
  CheckpointSummary summary;
  summary.asked_for = path;
  summary.path = path;
  FSDP_ASSIGN_OR_RETURN(summary.format, FindFormat(path));
  if (summary.traits().is_root) {
    FSDP_ASSIGN_OR_RETURN(summary.path, LatestCheckpoint(path, &summary.skipped));
  }
  TensorSourceOptions options;
  if (!summary.traits().is_ours) {
    FSDP_ASSIGN_OR_RETURN(options, SourceOptionsFromFlags());
  }
  FSDP_ASSIGN_OR_RETURN(SourceDescription description, summary.format->Describe(summary.path, options));
  summary.manifest = std::move(description.manifest);
  summary.metadata = std::move(description.metadata);
  summary.left_out = std::move(description.left_out);
  summary.expansion = std::move(description.expansion);
  summary.stored_bytes = std::move(description.stored_bytes);
  if (summary.traits().is_ours) {
    summary.problem = std::string(CheckFilesPresent(PosixFileSystem(), summary.path, summary.manifest).message());
  }
  return summary;
}

}  // namespace fsdp
