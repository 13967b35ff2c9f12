// SPDX-License-Identifier: Apache-2.0
//
// A summary of any format is a Manifest: the formats without one get theirs made up here, from their headers. So the
// text, the JSON and the page are written once. Members that a format does not have (step, kind, digests) stay at their
// defaults, and the forms leave them out by `format`.
#include "fsdp/tools/inspect/ckpt_summary.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/manifest_file.h"
#include "fsdp/checkpoint/formats/path_kind.h"
#include "fsdp/checkpoint/hdf5/hdf5_file_source.h"
#include "fsdp/checkpoint/safetensors/safetensors_source.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/verify/latest.h"
#include "fsdp/tools/cli/ckpt_source.h"

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

// The index of the file at `path`, which is added to the manifest if it is new.
int FileIndex(const std::string& path, CheckpointSummary& summary) {
  const std::string name = std::filesystem::path(path).filename();
  std::vector<StoredFile>& files = summary.manifest.files;
  const auto at = std::find_if(files.begin(), files.end(), [&](const StoredFile& file) { return file.name == name; });
  if (at != files.end()) return static_cast<int>(at - files.begin());
  std::error_code ignored;
  StoredFile& file = files.emplace_back();
  file.name = name;
  file.nbytes = static_cast<int64_t>(std::filesystem::file_size(path, ignored));
  return static_cast<int>(files.size() - 1);
}

// Adds a place to `tensor` as intervals of row-major elements. A box that spans whole rows is one interval. A box that
// cuts a dimension is one run for each index of the dimensions before the last one that it cuts: those from `whole` on
// are held whole, dimension whole - 1 is cut, so a run covers count[whole - 1] of its indices, and there are count[0] *
// ... * count[whole - 2] runs.
void AddPlace(const TensorPlace& place, int file, StoredTensor& tensor) {
  constexpr int64_t kMostRuns = 4096;  // of a tensor; more than anyone reads, and bounded
  const int rank = tensor.shape.rank();
  int whole = rank;  // dimensions from here on are held whole
  while (whole > 0 && place.box.count[whole - 1] == tensor.shape.dim(whole - 1)) --whole;
  int64_t run = whole > 0 ? place.box.count[whole - 1] : 1;
  for (int d = whole; d < rank; ++d) run *= tensor.shape.dim(d);
  int64_t runs = 1;
  for (int d = 0; d < whole - 1; ++d) runs *= place.box.count[d];
  for (int64_t i = 0; i < std::min(runs, kMostRuns); ++i) {
    int64_t begin = 0;
    int64_t rest = i;
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t index = d < whole - 1 ? rest % place.box.count[d] : 0;
      if (d < whole - 1) rest /= place.box.count[d];
      begin += (place.box.start[d] + index) * stride;
      stride *= tensor.shape.dim(d);
    }
    tensor.intervals.push_back({{begin, begin + run}, file, place.offset + i * run * SizeOf(tensor.dtype)});
  }
}

// A torch file or a DCP directory. A tensor whose elements do not lie together has no place, and so no intervals.
void AddSource(const TensorSource& source, CheckpointSummary& summary) {
  Manifest& manifest = summary.manifest;
  manifest.save.step = source.step();
  manifest.save.world_size = source.world_size();
  for (const auto& [key, value] : source.contents().entries()) {
    if (const auto* text = std::get_if<std::string>(&value)) {
      manifest.texts.push_back({key, 0, {0, static_cast<int64_t>(text->size())}});
      continue;
    }
    StoredTensor& tensor = manifest.tensors.emplace_back();
    tensor.key = key;
    tensor.dtype = std::get<ShardedTensor>(value).dtype;
    tensor.shape = std::get<ShardedTensor>(value).shape;
    for (const auto& [alias, target] : source.contents().aliases) {
      if (key == StateKey::Model(target)) tensor.aliases.push_back(alias);
    }
    const absl::StatusOr<std::vector<TensorPlace>> places = source.Places(key);
    if (!places.ok() || tensor.shape.numel() == 0) continue;
    for (const TensorPlace& place : *places) AddPlace(place, FileIndex(place.file, summary), tensor);
    std::sort(tensor.intervals.begin(), tensor.intervals.end(),
              [](const StoredInterval& a, const StoredInterval& b) { return a.interval.begin < b.interval.begin; });
  }
}

}  // namespace

absl::StatusOr<CheckpointSummary> Summarise(const std::string& path) {
  CheckpointSummary summary;
  summary.asked_for = path;
  summary.path = path;
  FSDP_ASSIGN_OR_RETURN(const PathKind kind, RecognisePath(path));
  if (kind == PathKind::kSafetensorsFile || kind == PathKind::kHuggingFaceDirectory) {
    summary.format = "safetensors";
    summary.manifest.save.step = -1;
    FSDP_ASSIGN_OR_RETURN(const auto files, OpenSafetensorsFiles(path));
    for (const std::unique_ptr<SafetensorsFile>& file : files) AddFile(*file, summary);
    return summary;
  }
  if (kind == PathKind::kHdf5File) {
    summary.format = "hdf5 file";
    FSDP_ASSIGN_OR_RETURN(summary.manifest, DescribeHdf5File(path));
    return summary;
  }
  summary.format = FormatName(kind);
  if (summary.format != "hdf5") {
    FSDP_ASSIGN_OR_RETURN(const auto source, OpenSource(path));
    AddSource(*source, summary);
    return summary;
  }
  if (kind == PathKind::kRoot) {
    FSDP_ASSIGN_OR_RETURN(summary.path, LatestCheckpoint(path, &summary.skipped));
  }
  FSDP_ASSIGN_OR_RETURN(summary.manifest, ReadManifest(PosixFileSystem(), summary.path));
  summary.problem = std::string(CheckFilesPresent(PosixFileSystem(), summary.path, summary.manifest).message());
  return summary;
}

}  // namespace fsdp
