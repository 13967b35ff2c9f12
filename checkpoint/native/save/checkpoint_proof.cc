// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/save/checkpoint_proof.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/parity/find_record.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// The first member of every manifest (manifest_encode.cc), searched for in its first kMarkBytes.
constexpr char kManifestMark[] = "\"format\": \"fsdp checkpoint\"";
constexpr int64_t kMarkBytes = 4096;

constexpr char kHdf5Signature[] = "\x89HDF\r\n\x1a\n";

absl::Status Unproven(const std::string& why) { return absl::FailedPreconditionError(why); }

absl::Status CheckIsDirectory(const std::string& path) {
  // Of the entry itself: a link to a checkpoint elsewhere must not get that checkpoint deleted.
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfEntry(path));
  if (type == fs::file_type::directory) return absl::OkStatus();
  return Unproven(type == fs::file_type::symlink ? "it is a symbolic link" : "it is not a directory");
}

// The first bytes of a file, at most `nbytes`.
absl::StatusOr<std::string> HeadOf(const File& file, int64_t nbytes) {
  FSDP_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  std::string head(std::min(size, nbytes), '\0');
  FSDP_RETURN_IF_ERROR(file.Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(head.data()), head.size())));
  return head;
}

// OK if it has the mark; kNotFound if it does not; or the error of reading it, after which neither is known.
absl::Status CheckManifestMark(FileSystem& files, const std::string& path) {
  // Before the open: opening a device or a FIFO may have side effects.
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfEntry(path));
  if (type != fs::file_type::regular) return absl::NotFoundError("no file");
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Open(path));
  FSDP_ASSIGN_OR_RETURN(const std::string text, HeadOf(*file, kMarkBytes));
  return absl::StrContains(text, kManifestMark) ? absl::OkStatus() : absl::NotFoundError("no mark");
}

// The same for a record. Names and first bytes are checked first: in another program's file FindRecord would read every
// page to the end.
absl::Status CheckHasRecord(FileSystem& files, const std::string& directory, const std::string& name) {
  const std::string path = JoinPath(directory, name);
  if (!IsRankFileName(name)) return absl::NotFoundError("no rank file");
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfEntry(path));
  if (type != fs::file_type::regular) return absl::NotFoundError("no file");
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Open(path));
  FSDP_ASSIGN_OR_RETURN(const std::string head, HeadOf(*file, sizeof(kHdf5Signature) - 1));
  if (head != kHdf5Signature) return absl::NotFoundError("no HDF5 file");
  const absl::Status found = FindRecord(*file).status();
  return absl::IsDataLoss(found) ? absl::NotFoundError(found.message()) : found;
}

// Describes the contents of a directory that is not proven.
std::string Describe(const std::vector<std::string>& names) {
  if (names.empty()) return "it is empty";
  const auto other =
      std::find_if(names.begin(), names.end(), [](const auto& name) { return !IsCheckpointFileName(name); });
  if (other != names.end())
    return absl::StrCat("it holds ", Printable(*other), " and no manifest.json of this project");
  return "neither its manifest.json nor a record in a rank file is one of this project";
}

// True for the names that NFS and FUSE give to a file that is deleted while it is open.
bool IsLeftByFileSystem(const std::string& name) {
  return absl::StartsWith(name, ".nfs") || absl::StartsWith(name, ".fuse_hidden");
}

bool IsOfRepair(const std::string& name) {
  constexpr char kPrefix[] = ".repair-";
  return absl::StartsWith(name, kPrefix) && IsNonce(name.substr(sizeof(kPrefix) - 1));
}

// True for an entry that only a save makes: a file, or a directory to test whether the file system exchanges names
// (staged_checkpoint.cc).
bool IsOfSave(const std::string& name, fs::file_type type) {
  if (name == "exchange" || name == "exchange-with") return type == fs::file_type::directory;
  return (IsCheckpointFileName(name) || IsLeftByFileSystem(name)) && type == fs::file_type::regular;
}

}  // namespace

absl::Status CheckIsOurCheckpoint(FileSystem& files, const std::string& directory) {
  FSDP_RETURN_IF_ERROR(CheckIsDirectory(directory));
  absl::Status unread = CheckManifestMark(files, JoinPath(directory, kManifestName));
  if (unread.ok()) return unread;
  if (absl::IsNotFound(unread)) unread = absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    const absl::Status found = CheckHasRecord(files, directory, name);
    if (found.ok()) return found;
    if (!absl::IsNotFound(found)) unread.Update(found);
  }
  return unread.ok() ? Unproven(Describe(names)) : unread;
}

absl::Status ProveDeletable(FileSystem& files, const std::string& directory) {
  FSDP_RETURN_IF_ERROR(CheckIsOurCheckpoint(files, directory));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    const bool is_named_by_a_save = IsCheckpointFileName(name) || IsLeftByFileSystem(name);
    // The directory of a crashed repair: it holds only rebuilt files and links.
    if (IsOfRepair(name)) continue;
    // A directory with the name of a file may hold other data; of a link only the link itself is deleted.
    FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfEntry(JoinPath(directory, name)));
    if (is_named_by_a_save && type != fs::file_type::directory) continue;
    return Unproven(absl::StrCat("it holds ", Printable(name), ", which no save wrote: move that out first"));
  }
  return absl::OkStatus();
}

absl::Status ProveLeftover(FileSystem& files, const std::string& directory) {
  const absl::Status proven = CheckIsOurCheckpoint(files, directory);
  if (proven.ok()) return proven;
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfEntry(directory));
  if (type != fs::file_type::directory) return proven;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  // Weaker than a proof by contents: only for names with a nonce, and for SetAsideCheckpoint, which deletes nothing.
  for (const std::string& name : names) {
    FSDP_ASSIGN_OR_RETURN(const fs::file_type entry, TypeOfEntry(JoinPath(directory, name)));
    if (!IsOfSave(name, entry)) return proven;
  }
  return absl::OkStatus();
}

}  // namespace fsdp
