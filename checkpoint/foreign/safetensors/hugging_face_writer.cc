// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_writer.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/staged_path.h"

namespace fsdp {
namespace {

int64_t PayloadBytes(const SafetensorsEntry& entry) { return entry.shape.numel() * SizeOf(entry.dtype); }

int64_t PayloadBytes(const std::vector<SafetensorsEntry>& entries) {
  int64_t bytes = 0;
  for (const SafetensorsEntry& entry : entries) bytes += PayloadBytes(entry);
  return bytes;
}

// Fills files in order, by the rule of huggingface_hub's split_torch_state_dict_into_shards: a tensor above the limit
// gets its own file, without ending the current file. Thus equal models give equal directories.
std::vector<std::vector<SafetensorsEntry>> SplitIntoFiles(std::vector<SafetensorsEntry> entries,
                                                          int64_t max_shard_size) {
  std::vector<std::vector<SafetensorsEntry>> files;
  std::vector<SafetensorsEntry> current;
  int64_t current_bytes = 0;
  for (SafetensorsEntry& entry : entries) {
    const int64_t bytes = PayloadBytes(entry);
    if (bytes > max_shard_size) {
      files.push_back({std::move(entry)});
      continue;
    }
    if (current_bytes + bytes > max_shard_size) {
      files.push_back(std::exchange(current, {}));
      current_bytes = 0;
    }
    current.push_back(std::move(entry));
    current_bytes += bytes;
  }
  // A model without tensors is still one file.
  if (!current.empty() || files.empty()) files.push_back(std::move(current));
  return files;
}

// Syncs the text, like the files of tensors, before the directory is committed.
absl::Status WriteTextFile(FileSystem& files, const std::string& path, const std::string& text) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(path));
  FSDP_RETURN_IF_ERROR(
      file->Write(0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())));
  return file->Sync();
}

}  // namespace

absl::Status WriteHuggingFaceDirectory(const std::string& path, const StateDict& contents, const PayloadReader& read,
                                       const HuggingFaceOptions& options) {
  FileSystem& file_system = *options.safetensors.file_system;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedPath> staged,
                        StagedPath::CreateDirectory(file_system, path, {.overwrite = options.safetensors.overwrite}));
  HuggingFaceIndex index;
  std::vector<SafetensorsEntry> entries = ModelEntries(contents);
  index.total_size = PayloadBytes(entries);
  std::vector<std::vector<SafetensorsEntry>> files = SplitIntoFiles(std::move(entries), options.max_shard_size);
  // Files are written one after the other, each by all threads; progress counts over all of them.
  int64_t bytes_before = 0;
  SafetensorsOptions file_options = options.safetensors;
  if (options.safetensors.progress) {
    file_options.progress = [&](int64_t done, int64_t) {
      options.safetensors.progress(bytes_before + done, index.total_size);
    };
  }
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = files.size() == 1 ? std::string(kHuggingFaceModelName)
                                               : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
    // Before the entries are moved into the writer.
    for (const SafetensorsEntry& entry : files[i]) index.weight_map[entry.name] = name;
    const int64_t file_bytes = PayloadBytes(files[i]);
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, file_system.Create(JoinPath(staged->path(), name)));
    FSDP_RETURN_IF_ERROR(FillSafetensorsFile(*file, std::move(files[i]), read, file_options));
    bytes_before += file_bytes;
  }
  // transformers reads the index only if there is no model.safetensors.
  if (files.size() > 1) {
    FSDP_ASSIGN_OR_RETURN(const std::string text, EncodeHuggingFaceIndex(index));
    FSDP_RETURN_IF_ERROR(WriteTextFile(file_system, JoinPath(staged->path(), kHuggingFaceIndexName), text));
  }
  for (const auto& [name, source] : options.carried) {
    constexpr int64_t kMaxBytes = int64_t{1} << 30;
    FSDP_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(PosixFileSystem(), source, kMaxBytes));
    FSDP_RETURN_IF_ERROR(WriteTextFile(file_system, JoinPath(staged->path(), name), bytes));
  }
  return staged->Commit();
}

}  // namespace fsdp
