// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_summary.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/file_system.h"
#include "checkpoint/hdf5_file_source.h"
#include "checkpoint/latest.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/path_kind.h"
#include "checkpoint/safetensors_source.h"

namespace fsdp {
namespace {

void AddFile(const SafetensorsFile& file, CheckpointSummary& summary) {
  summary.metadata.insert(file.header().metadata.begin(), file.header().metadata.end());
  const int index = static_cast<int>(summary.manifest.files.size());
  StoredFile& stored = summary.manifest.files.emplace_back();
  stored.name = std::filesystem::path(file.path()).filename();
  stored.nbytes = file.payload_offset();
  for (const SafetensorsEntry& entry : file.header().entries) {
    StoredTensor& tensor = summary.manifest.tensors.emplace_back();
    tensor.key = StateKey::Model(entry.name);
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    tensor.intervals = {{{0, entry.shape.numel()}, index, file.payload_offset() + entry.begin}};
    stored.nbytes = file.payload_offset() + entry.end;
  }
}

}  // namespace

absl::StatusOr<CheckpointSummary> Summarise(const std::string& path) {
  CheckpointSummary summary;
  summary.asked_for = path;
  summary.path = path;
  ASSIGN_OR_RETURN(const PathKind kind, RecognisePath(path));
  if (kind == PathKind::kSafetensorsFile || kind == PathKind::kHuggingFaceDirectory) {
    summary.format = "safetensors";
    summary.manifest.step = -1;
    ASSIGN_OR_RETURN(const auto files, OpenSafetensorsFiles(path));
    for (const std::unique_ptr<SafetensorsFile>& file : files) AddFile(*file, summary);
    return summary;
  }
  if (kind == PathKind::kHdf5File) {
    summary.format = "hdf5 file";
    ASSIGN_OR_RETURN(summary.manifest, DescribeHdf5File(path));
    return summary;
  }
  summary.format = "hdf5";
  if (kind == PathKind::kRoot) {
    ASSIGN_OR_RETURN(summary.path, LatestCheckpoint(path, &summary.skipped));
  }
  ASSIGN_OR_RETURN(summary.manifest, ReadManifest(PosixFileSystem(), summary.path));
  summary.problem = std::string(CheckFilesPresent(PosixFileSystem(), summary.path, summary.manifest).message());
  return summary;
}

}  // namespace fsdp
