// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/keras/keras_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/hdf5/confined_hdf5.h"
#include "fsdp/checkpoint/foreign/keras/keras_optimizer.h"
#include "fsdp/checkpoint/foreign/keras/keras_source.h"
#include "fsdp/checkpoint/foreign/zip/file_slice.h"
#include "fsdp/checkpoint/foreign/zip/zip_directory.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr char kWeights[] = "model.weights.h5";
constexpr int64_t kMaxIndexBytes = int64_t{64} << 20;
constexpr size_t kMaxFiles = 10'000;
constexpr int64_t kMostIndexed = 100'000;  // groups and files in an index: a name takes ten times its text
constexpr size_t kMostNamed = 20;

void LeaveOut(const Hdf5Listing& listing, KerasFiles& files) {
  for (const Hdf5LeftOut& left_out : listing.left_out) files.left_out.push_back(Describe(left_out));
  const int64_t more = listing.left_out_count - static_cast<int64_t>(listing.left_out.size());
  if (more > 0) files.left_out.push_back(absl::StrCat(more, " more links"));
}

// The HDF5 library runs in a process of its own, confined, because the file may be hostile; only the places of datasets
// come back, and their values are read from here without the library.
// Adds the HDF5 file that is `part` of `path`, or all of it.
absl::Status AddPart(const std::string& path, const std::optional<Interval>& part, std::unique_ptr<File> file,
                     KerasFiles& files) {
  // A damaged file can make the library loop. An honest one has a dataset in a kilobyte or more, and is listed at over
  // a hundred thousand of them in a second.
  constexpr int64_t kBytesInASecond = int64_t{32} << 20;
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, file->Size());
  ConfinedHdf5Options confined;
  confined.part = part;
  confined.cpu_seconds = static_cast<int>(std::min<int64_t>(confined.cpu_seconds, 1 + nbytes / kBytesInASecond));
  absl::StatusOr<Hdf5Listing> listed = ListUntrustedHdf5(path, confined);
  if (!listed.ok()) {
    FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(*file));
    return listed.status();
  }
  Hdf5Listing& listing = *listed;
  LeaveOut(listing, files);
  const auto number = static_cast<int>(files.parts.size());
  files.parts.push_back({std::move(file), part ? part->begin : 0});
  files.part_of.resize(files.part_of.size() + listing.datasets.size(), number);
  std::move(listing.datasets.begin(), listing.datasets.end(), std::back_inserter(files.listing.datasets));
  std::move(listing.groups.begin(), listing.groups.end(), std::back_inserter(files.listing.groups));
  return absl::OkStatus();
}

// A .keras archive is a zip file that stores the HDF5 file as it is, so the file is read where it is, at an offset.
absl::StatusOr<KerasFiles> OpenArchive(const std::string& path, bool verify) {
  KerasFiles files;
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, PosixFileSystem().Open(path));
  FSDP_ASSIGN_OR_RETURN(const FileSlice archive, FileSlice::Whole(*file));
  std::optional<ZipEntry> weights;
  const auto read = [&]() -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const ZipDirectory directory, ZipDirectory::Read(archive));
    for (size_t i = 0; i < directory.size(); ++i) {
      const ZipEntry entry = directory[i];
      if (entry.name == kWeights) {
        weights = entry;
      } else if (entry.name == "config.json" && entry.is_stored() && entry.nbytes <= kMaxKerasConfigBytes) {
        FSDP_ASSIGN_OR_RETURN(files.config, archive.ReadText(entry.payload_offset, entry.nbytes));
        const auto bytes =
            absl::MakeConstSpan(reinterpret_cast<const std::byte*>(files.config.data()), files.config.size());
        if (verify && entry.crc != 0 && Crc32(bytes) != entry.crc) {
          return absl::DataLossError("the CRC-32 of config.json is not the recorded one");
        }
      } else if (entry.name != "metadata.json" && files.left_out.size() < kMostNamed) {
        files.left_out.push_back(absl::StrCat(Quote(entry.name), " (no weights)"));
      }
    }
    if (!weights)
      return absl::InvalidArgumentError(absl::StrCat("it has no ", kWeights, ": it was saved without weights"));
    if (weights->is_stored()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(kWeights, " is compressed, but Keras stores it: unpack it and give it"));
  };
  const absl::Status status = read();
  if (!status.ok()) return Annotate(status, path);
  const Interval part = {weights->payload_offset, weights->payload_offset + weights->nbytes};
  if (verify && weights->crc != 0) {
    files.checksums->Expect(kWeights, part, weights->crc);
    file = std::make_unique<ChecksummedFile>(std::move(file), files.checksums);
  }
  FSDP_RETURN_IF_ERROR(AddPart(path, part, std::move(file), files));
  return files;
}

// The files that have a part of each group, by its path.
using WeightMap = std::map<std::string, std::set<std::string>>;

absl::Status CheckNames(int64_t count) {
  if (count <= kMostIndexed) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("\"weight_map\" has more than ", kMostIndexed, " names"));
}

// A name of a file comes from the file: it must be next to the index.
absl::StatusOr<WeightMap> ParseIndex(std::string_view text) {
  FSDP_ASSIGN_OR_RETURN(const JsonView json, JsonView::Parse(text));
  const std::optional<JsonView> map = json.Find("weight_map");
  if (!map || !map->is_object()) return absl::DataLossError("it has no \"weight_map\"");
  WeightMap result;
  int64_t names = map->size();
  FSDP_RETURN_IF_ERROR(CheckNames(names));
  for (const auto& [group, value] : map->members()) {
    FSDP_RETURN_IF_ERROR(CheckNames(names += value.size()));
    std::set<std::string>& files = result[group];
    if (const std::optional<std::string> file = value.string()) files.insert(*file);
    for (const JsonView item : value) files.insert(item.string().value_or(""));
    for (const std::string& file : files) {
      if (!file.empty() && file.find('/') == file.npos && file[0] != '.' && file.find('\0') == file.npos) continue;
      return absl::DataLossError(
          absl::StrCat("group ", Quote(group), " is in ", Quote(file), ", which is no file beside it"));
    }
    if (files.empty()) return absl::DataLossError(absl::StrCat("group ", Quote(group), " is in no file"));
  }
  return result;
}

// Otherwise a part of another save with the same names would be taken for one of this model.
// Every group must be in the files that the index says, and in no other.
absl::Status CheckIndex(const WeightMap& index, const KerasFiles& files) {
  WeightMap found;
  const auto add = [&](const std::string& group, int part) {
    found[group].insert(SplitPath(files.parts[part].file->path()).name);
  };
  for (size_t i = 0; i < files.listing.datasets.size(); ++i) {
    const std::string& path = files.listing.datasets[i].path;
    add(path.substr(0, path.rfind('/')), files.part_of[i]);
  }
  for (const auto& [group, names] : found) {
    const auto at = index.find(group);
    if (at != index.end() && std::includes(at->second.begin(), at->second.end(), names.begin(), names.end())) continue;
    return absl::DataLossError(absl::StrCat("the variables of ", Quote(group), " are in ", *names.begin(),
                                            ", where the index does not place them"));
  }
  for (const auto& [group, names] : index) {
    const auto at = found.find(group);
    if (at == found.end())
      return absl::DataLossError(absl::StrCat("the variables of ", Quote(group), " are in no file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<KerasFiles> OpenIndexed(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), path, kMaxIndexBytes));
  const absl::StatusOr<WeightMap> index = ParseIndex(text);
  if (!index.ok()) return ErrorOfText(Annotate(index.status(), path), path, text);
  std::set<std::string> names;
  for (const auto& [group, files] : *index) names.insert(files.begin(), files.end());
  if (names.size() > kMaxFiles)
    return absl::InvalidArgumentError(absl::StrCat(path, " names ", names.size(), " files"));
  KerasFiles files;
  files.index = path;
  for (const std::string& name : names) {
    const std::string part = JoinPath(SplitPath(path).directory, name);
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, PosixFileSystem().Open(part));
    FSDP_RETURN_IF_ERROR(AddPart(part, std::nullopt, std::move(file), files));
  }
  const absl::Status status = CheckIndex(*index, files);
  if (!status.ok()) return Annotate(status, path);
  return files;
}

// "model_00001.weights.h5" next to "model.weights.json" is a part.
absl::Status CheckIsWhole(const std::string& path) {
  const auto [directory, name] = SplitPath(path);
  const size_t end = name.rfind(".weights.h5");
  const size_t line = end == name.npos ? name.npos : name.rfind('_', end);
  if (line == name.npos || end - line != 6) return absl::OkStatus();
  const std::string index = JoinPath(directory, absl::StrCat(name.substr(0, line), kKerasIndexEnding));
  if (!PosixFileSystem().Exists(index)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, " is one of several files of a model: give ", index));
}

}  // namespace

absl::StatusOr<KerasFiles> OpenKerasFiles(const std::string& path, const TensorSourceOptions& options) {
  if (absl::EndsWith(path, kKerasIndexEnding)) return OpenIndexed(path);
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, PosixFileSystem().Open(path));
  FSDP_ASSIGN_OR_RETURN(const FileSlice slice, FileSlice::Whole(*file));
  FSDP_ASSIGN_OR_RETURN(const std::string head, slice.ReadText(0, std::min<int64_t>(slice.nbytes, 2)));
  if (head == "PK") return OpenArchive(path, options.verify);
  FSDP_RETURN_IF_ERROR(CheckIsWhole(path));
  KerasFiles files;
  FSDP_RETURN_IF_ERROR(AddPart(path, std::nullopt, std::move(file), files));
  return files;
}

}  // namespace fsdp
