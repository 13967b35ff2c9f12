// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/directory_values.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/open_files.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxArrays = 1'000'000;
constexpr int kMaxDepth = 40;  // of folders: 32 dimensions with "/" between their numbers, and some for the name

// True if `folder` has the metadata of an array. False for any other file.
absl::StatusOr<bool> IsArray(const std::string& folder) {
  for (const char* name : {".zarray", "zarr.json"}) {
    FSDP_ASSIGN_OR_RETURN(const bool is_there, IsThere(JoinPath(folder, name)));
    if (is_there) return true;
  }
  return false;
}

absl::StatusOr<bool> IsFolder(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfEntry(path));
  return type == fs::file_type::directory;
}

// zarr's plain layout: a key is the path of a file below the directory.
class DirectoryValues final : public KeyValues {
 public:
  explicit DirectoryValues(const std::string& directory) : files_(directory) {}

  absl::Status Open() {
    FSDP_RETURN_IF_ERROR(FindArrays("", 0));
    std::sort(arrays_.begin(), arrays_.end());
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<ValuePlace>> Find(const std::string& key) const override {
    const absl::StatusOr<OpenFiles::Opened> opened = files_.Open(key);
    if (absl::IsNotFound(opened.status())) return std::nullopt;
    FSDP_RETURN_IF_ERROR(opened.status());
    FSDP_RETURN_IF_ERROR(CheckIsDownloaded(*opened->file));
    return ValuePlace{.bytes = {}, .file = key, .offset = 0, .nbytes = opened->nbytes};
  }

  absl::Status Read(const ValuePlace& place, int64_t offset, absl::Span<std::byte> out) const override {
    FSDP_ASSIGN_OR_RETURN(const OpenFiles::Opened opened, files_.Open(place.file));
    return opened.file->Read(offset + place.offset, out);
  }

  absl::Status VisitKeys(const std::string& name,
                         const std::function<void(std::string_view rest)>& visit) const override {
    return VisitFolder(JoinPath(files_.directory(), name), "", 0, visit);
  }

  const std::vector<std::string>& arrays() const override { return arrays_; }

  // Each array's metadata and chunks.
  std::vector<std::string> files() const override {
    std::vector<std::string> files;
    for (const std::string& array : arrays_) {
      // A folder that can no longer be listed: its reads report it.
      (void)VisitKeys(array,
                      [&](std::string_view rest) { files.push_back(absl::StrCat(array, "/", std::string(rest))); });
    }
    std::sort(files.begin(), files.end());
    return files;
  }

 private:
  // Folders of folders are groups of zarr; links are not followed, because they could lead around in a circle.
  absl::Status FindArrays(const std::string& group, int depth) {
    const std::string path = group.empty() ? files_.directory() : JoinPath(files_.directory(), group);
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(path));
    for (const std::string& name : names) {
      const std::string folder = JoinPath(path, name);
      FSDP_ASSIGN_OR_RETURN(const bool is_folder, IsFolder(folder));
      if (!is_folder) continue;
      const std::string inside = group.empty() ? name : absl::StrCat(group, "/", name);
      FSDP_ASSIGN_OR_RETURN(const bool is_group, IsGroup(folder));
      if (is_group) {
        if (depth < kMaxDepth) FSDP_RETURN_IF_ERROR(FindArrays(inside, depth + 1));
        continue;
      }
      FSDP_ASSIGN_OR_RETURN(const bool is_array, IsArray(folder));
      if (is_array) arrays_.push_back(inside);
      if (arrays_.size() > kMaxArrays) {
        return absl::ResourceExhaustedError(absl::StrCat(path, ": more than ", kMaxArrays, " arrays"));
      }
    }
    return absl::OkStatus();
  }

  // Version 2 has a file for it. Version 3 has the same name for arrays and groups.
  static absl::StatusOr<bool> IsGroup(const std::string& folder) {
    FSDP_ASSIGN_OR_RETURN(const bool is_group, IsThere(JoinPath(folder, ".zgroup")));
    if (is_group) return true;
    FSDP_ASSIGN_OR_RETURN(const bool is_version_3, IsThere(JoinPath(folder, "zarr.json")));
    if (!is_version_3) return false;
    constexpr int64_t kMaxGroupBytes = 4096;  // an array's is refused later, if it is damaged
    const absl::StatusOr<std::string> text = ReadFile(PosixFileSystem(), JoinPath(folder, "zarr.json"), kMaxGroupBytes);
    const absl::StatusOr<JsonView> json = text.ok() ? JsonView::Parse(*text) : text.status();
    return json.ok() && StringMember(*json, "node_type").value_or("") == "group";
  }

  static absl::Status VisitFolder(const std::string& folder, const std::string& prefix, int depth,
                                  const std::function<void(std::string_view rest)>& visit) {
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(folder));
    for (const std::string& name : names) {
      const std::string path = JoinPath(folder, name);
      FSDP_ASSIGN_OR_RETURN(const bool is_folder, IsFolder(path));
      if (!is_folder) {
        visit(absl::StrCat(prefix, name));
      } else if (depth < kMaxDepth) {
        FSDP_RETURN_IF_ERROR(VisitFolder(path, absl::StrCat(prefix, name, "/"), depth + 1, visit));
      }
    }
    return absl::OkStatus();
  }

  mutable OpenFiles files_;
  std::vector<std::string> arrays_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<KeyValues>> OpenDirectoryValues(const std::string& directory) {
  auto values = std::make_unique<DirectoryValues>(directory);
  const absl::Status status = values->Open();
  if (!status.ok()) return Annotate(status, directory);
  return values;
}

absl::StatusOr<bool> HasZarrArray(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(directory));
  for (const std::string& name : names) {
    FSDP_ASSIGN_OR_RETURN(const bool is_folder, IsFolder(JoinPath(directory, name)));
    if (!is_folder) continue;
    const absl::StatusOr<bool> is_array = IsArray(JoinPath(directory, name));
    // Any directory may have folders of others, such as lost+found.
    if (absl::IsPermissionDenied(is_array.status())) continue;
    FSDP_RETURN_IF_ERROR(is_array.status());
    if (*is_array) return true;
  }
  return false;
}

}  // namespace fsdp
