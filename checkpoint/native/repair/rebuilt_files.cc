// SPDX-License-Identifier: Apache-2.0
//
// Nothing in the checkpoint changes before Install, so a failed or interrupted repair leaves it as it was. Install is
// not atomic and need not be: every file that it installs is correct by itself, and the manifest comes last. After a
// crash between two renames the next repair finds fewer damaged files and finishes the work.
#include "fsdp/checkpoint/native/repair/rebuilt_files.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/parity/parity_files.h"
#include "fsdp/checkpoint/native/repair/records_left.h"
#include "fsdp/checkpoint/native/save/sharded_index.h"
#include "fsdp/checkpoint/storage/durable_name.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr char kPrefix[] = ".repair-";

}  // namespace

bool IsRebuiltDirectoryName(const std::string& name) {
  return absl::StartsWith(name, kPrefix) && IsNonce(name.substr(sizeof(kPrefix) - 1));
}

RebuiltFiles::RebuiltFiles(FileSystem& files, std::string checkpoint)
    : files_(files),
      checkpoint_(std::move(checkpoint)),
      nonce_(NewNonce()),
      path_(JoinPath(checkpoint_, absl::StrCat(kPrefix, nonce_))) {}

RebuiltFiles::~RebuiltFiles() {
  if (is_made_) (void)RemoveTree(files_, path_);
}

absl::StatusOr<std::string> RebuiltFiles::Add(const std::string& name) {
  // Made by the first Add: a repair that finds nothing to rebuild leaves no trace.
  if (!std::exchange(is_made_, true)) FSDP_RETURN_IF_ERROR(files_.MakeDirectory(path_));
  names_.push_back(name);
  return JoinPath(path_, name);
}

absl::Status RebuiltFiles::Drop(const std::string& name) {
  names_.erase(std::remove(names_.begin(), names_.end(), name), names_.end());
  return files_.Unlink(JoinPath(path_, name));
}

const std::string& RebuiltFiles::DirectoryOf(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end() ? path_ : checkpoint_;
}

absl::StatusOr<Manifest> RebuiltFiles::WriteIndex(const std::vector<FileRecord>& records, ThreadPool& pool) {
  FSDP_ASSIGN_OR_RETURN(std::vector<TreeFile::Text> texts, TextsOf(records[0]));
  FSDP_RETURN_IF_ERROR(Add(kCheckpointFileName).status());
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<const ShardedIndex> index,
                        ShardedIndex::Create(records[0].save, records[0].units, records, std::move(texts)));
  return index->Write(files_, path_, records, pool);
}

// The texts, which only the first rank file stores.
absl::StatusOr<std::vector<TreeFile::Text>> RebuiltFiles::TextsOf(const FileRecord& record) {
  std::vector<TreeFile::Text> texts;
  const std::string& name = record.files[0].name;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Open(JoinPath(DirectoryOf(name), name)));
  for (const StoredText& stored : record.texts) {
    std::string text(stored.range.nbytes, '\0');
    FSDP_RETURN_IF_ERROR(
        file->Read(stored.range.offset, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
    texts.push_back({stored.key, std::move(text)});
  }
  return texts;
}

absl::Status RebuiltFiles::WriteParity(int count, Manifest& manifest, ThreadPool& pool) {
  std::vector<ParityPlan::DataFile> data;
  for (const StoredFile& stored : manifest.files) {
    if (!IsRankFileName(stored.name)) continue;
    data.push_back({stored.name, stored.nbytes});
    // WriteParityBlocks reads from one directory, so files that need no repair are linked into it.
    if (DirectoryOf(stored.name) != path_) {
      FSDP_RETURN_IF_ERROR(files_.Link(JoinPath(checkpoint_, stored.name), JoinPath(path_, stored.name)));
    }
  }
  FSDP_ASSIGN_OR_RETURN(const ParityPlan plan, PlanParity(std::move(data), count));
  for (const std::string& name : plan.parity) {
    // CreateParityFiles refuses existing names. The rank files linked above are not in names_, so Install leaves them.
    if (DirectoryOf(name) == path_) FSDP_RETURN_IF_ERROR(Drop(name));
  }
  FSDP_RETURN_IF_ERROR(CreateParityFiles(files_, path_, plan));
  FSDP_ASSIGN_OR_RETURN(const std::vector<Digest> digests,
                        WriteParityBlocks(files_, path_, plan, ParityShare(plan, 1, 0), pool));
  AddParity(plan, {digests}, manifest);
  // Before the manifest in the order of Install, which refers to them.
  names_.insert(names_.end(), plan.parity.begin(), plan.parity.end());
  return absl::OkStatus();
}

absl::Status RebuiltFiles::WriteManifest(const Manifest& manifest) {
  const std::string text = EncodeManifest(manifest);
  FSDP_ASSIGN_OR_RETURN(const std::string path, Add(kManifestName));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Create(path));
  FSDP_RETURN_IF_ERROR(
      file->Write(0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())));
  return file->Sync();
}

std::string RebuiltFiles::DisplacedName(const std::string& name) const {
  return absl::StrCat(".", name, ".aside-", nonce_);
}

absl::Status RebuiltFiles::Install() {
  for (const std::string& name : names_) {
    const std::string from = JoinPath(path_, name);
    const std::string to = JoinPath(checkpoint_, name);
    // A rename replaces a file but not a directory.
    if (files_.List(to).ok()) FSDP_RETURN_IF_ERROR(files_.Rename(to, JoinPath(checkpoint_, DisplacedName(name))));
    FSDP_RETURN_IF_ERROR(files_.Replace(from, to));
    FSDP_RETURN_IF_ERROR(SyncNameOf(files_, to));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
