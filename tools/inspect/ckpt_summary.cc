// SPDX-License-Identifier: Apache-2.0
//
// A summary of any format is a Manifest: for the formats without one it is made here, from their headers. So the text,
// the JSON and the page are each written once. Members that a format does not have (step, kind, digests) stay at their
// defaults, and the output leaves them out by the traits of the format.
#include "fsdp/tools/inspect/ckpt_summary.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/checkpoint_manifest.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/read/verified_reader.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/object/remote_checkpoint.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/unread.h"
#include "fsdp/tools/cli/ckpt_source.h"
#include "fsdp/tools/inspect/whole_step.h"

namespace fsdp {

namespace {

// Takes the newest step of a ROOT whose metadata are whole, and reads no other file: a step may be a terabyte.
absl::Status TakeNewestStep(const std::string& root, CheckpointSummary& summary) {
  std::vector<UnreadEntry> unread;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> steps, ListCheckpoints(root, &unread));
  for (const UnreadEntry& entry : unread) summary.skipped.push_back(entry.ToString());
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    absl::StatusOr<Manifest> manifest = ReadWholeStep(root, *step);
    if (manifest.ok()) {
      summary.path = JoinPath(root, *step);
      summary.manifest = *std::move(manifest);
      return absl::OkStatus();
    }
    summary.skipped.push_back(absl::StrCat(
        *step, IsUnread(manifest.status()) ? " cannot be read here: " : " is damaged: ", manifest.status().message()));
  }
  return absl::NotFoundError(absl::StrCat(root, " holds no checkpoint", steps.empty() ? "" : " that is whole; ",
                                          absl::StrJoin(summary.skipped, "; ")));
}

// Reads the short texts of a checkpoint of ours. One that cannot be read is left out: the others are shown all the
// same.
void ReadShortTexts(CheckpointSummary& summary) {
  VerifiedReader reader(PosixFileSystem(), summary.path, summary.manifest, VerifiedReader::Digests::kCompare);
  for (const StoredText& text : summary.manifest.texts) {
    if (text.range.nbytes > kShortTextBytes || summary.short_texts.size() == kMostShortTexts) continue;
    std::string value(text.range.nbytes, '\0');
    const absl::Status read = reader.Read(text.file, text.range, reinterpret_cast<std::byte*>(value.data()),
                                          [&] { return Quote(text.key.ToString()); });
    if (read.ok()) summary.short_texts.emplace(text.key, std::move(value));
  }
}

// Reads only the manifest of a checkpoint in an object store, and a list of its files.
absl::StatusOr<CheckpointSummary> SummariseRemote(const std::string& asked_for) {
  FSDP_ASSIGN_OR_RETURN(const S3Url url, ParseS3Url(asked_for));
  FSDP_ASSIGN_OR_RETURN(const RemoteLocation found, FindRemote(asked_for));
  FSDP_ASSIGN_OR_RETURN(RemoteManifest remote, ReadRemoteManifest(*found.store, found.step));
  CheckpointSummary summary;
  summary.asked_for = url.ToString();
  summary.path = found.store->UrlOf(found.step);
  summary.manifest = std::move(remote.manifest);
  const absl::Status present = CheckRemoteFiles(*found.store, found.step, summary.manifest);
  // A missing file is a property of the checkpoint, to be shown; any other error is the store's.
  if (!present.ok() && !absl::IsDataLoss(present)) return present;
  summary.problem = std::string(present.message());
  return summary;
}

// Makes a manifest from the description of another format.
void TakeDescription(SourceDescription description, CheckpointSummary& summary) {
  if (description.source != nullptr) {
    for (const auto& [key, value] : description.source->contents().entries()) {
      const auto* text = std::get_if<std::string>(&value);
      if (text == nullptr || std::ssize(*text) > kShortTextBytes) continue;
      if (summary.short_texts.size() < kMostShortTexts) summary.short_texts.emplace(key, *text);
    }
  }
  for (const DescribedFile& file : description.files) {
    StoredFile& stored = summary.manifest.files.emplace_back();
    stored.name = file.name;
    stored.nbytes = file.nbytes;
  }
  summary.manifest.tensors = std::move(description.tensors);
  summary.manifest.texts = std::move(description.texts);
  summary.manifest.save.step = std::max<int64_t>(description.step, 0);
  summary.manifest.save.has_step = description.step >= 0;
  summary.manifest.save.world_size = description.world_size;
  summary.described_files = std::move(description.files);
  summary.metadata = std::move(description.metadata);
  summary.left_out = std::move(description.left_out);
  summary.layout = std::move(description.layout);
  summary.expansion = std::move(description.expansion);
  summary.source = std::move(description.source);
}

}  // namespace

void CheckpointSummary::ForEachTensor(
    const std::function<void(const StoredTensor& tensor, int64_t stored_bytes)>& use) const {
  if (source != nullptr) return DescribeTensors(*source, described_files, use);
  for (const StoredTensor& tensor : manifest.tensors) use(tensor, tensor.shape.numel() * SizeOf(tensor.dtype));
}

void CheckpointSummary::FillManifest() {
  // A page needs the tensors twice and sorted; text and JSON take them one by one.
  if (source == nullptr || !manifest.tensors.empty()) return;
  ForEachTensor([this](const StoredTensor& tensor, int64_t) { manifest.tensors.push_back(tensor); });
}

absl::StatusOr<CheckpointSummary> Summarise(const std::string& path) {
  if (IsS3Url(path)) return SummariseRemote(path);
  CheckpointSummary summary;
  summary.asked_for = path;
  summary.path = path;
  FSDP_ASSIGN_OR_RETURN(summary.format, FindFormat(path));
  FSDP_ASSIGN_OR_RETURN(const TensorSourceOptions source, SourceOptionsFromFlags());
  FSDP_RETURN_IF_ERROR(summary.format->CheckApply(source));
  if (summary.traits().is_root) {
    FSDP_RETURN_IF_ERROR(TakeNewestStep(path, summary));
    ReadShortTexts(summary);
    return summary;
  }
  if (summary.traits().is_ours) {
    FSDP_ASSIGN_OR_RETURN(summary.manifest, ReadCheckpointManifest(summary.path));
    summary.problem = std::string(CheckFilesPresent(PosixFileSystem(), summary.path, summary.manifest).message());
    ReadShortTexts(summary);
    return summary;
  }
  FSDP_ASSIGN_OR_RETURN(SourceDescription description, summary.format->Describe(summary.path, source));
  TakeDescription(std::move(description), summary);
  return summary;
}

}  // namespace fsdp
