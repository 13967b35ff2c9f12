// SPDX-License-Identifier: Apache-2.0
//
// The zip archive of torch.save since 1.6, which it writes without compression:
//
//   NAME/data.pkl     the object as a pickle; its tensors refer to storages by key
//   NAME/byteorder    "little"; since torch 2.1
//   NAME/data/KEY     the bytes of a storage, once for each key
//   NAME/version      and, in newer versions of torch, a few more: not needed
//
// Read are the directory, byteorder and data.pkl; storages are placed, not read. A storage must exist and be as long as
// the tensors that refer to it state, so that no view can reach outside of it later.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/torch/pickle/torch_globals.h"
#include "fsdp/checkpoint/torch/pt/torch_file.h"
#include "fsdp/checkpoint/torch/zip/entry_checksums.h"
#include "fsdp/checkpoint/torch/zip/zip_directory.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxPickleBytes = int64_t{1} << 30;
constexpr int64_t kMaxSmallEntryBytes = 64;

class ArchiveReader {
 public:
  ArchiveReader(const FileSlice& slice, const TensorSourceOptions& options) : slice_(slice), options_(options) {}

  absl::StatusOr<TorchArchive> Read() {
    FSDP_ASSIGN_OR_RETURN(entries_, ReadZipDirectory(slice_));
    for (const ZipEntry& entry : entries_) by_name_[entry.name] = &entry;
    FSDP_RETURN_IF_ERROR(FindFolder());
    FSDP_RETURN_IF_ERROR(CheckByteOrder());
    TorchArchive archive;
    FSDP_ASSIGN_OR_RETURN(archive.tree, ReadTree());
    archive.storages.reserve(archive.tree.tensors.size());
    for (const TorchTensor& tensor : archive.tree.tensors) {
      FSDP_RETURN_IF_ERROR(AddStorage(tensor.storage, archive));
    }
    return archive;
  }

 private:
  // All names begin with one folder: the name that the file had when it was saved, or "archive".
  absl::Status FindFolder() {
    for (const ZipEntry& entry : entries_) {
      const size_t slash = entry.name.find('/');
      if (slash != entry.name.npos && entry.name.substr(slash) == "/data.pkl") folder_ = entry.name.substr(0, slash);
      if (absl::EndsWith(entry.name, "/constants.pkl")) {
        return absl::InvalidArgumentError(
            "it is a TorchScript archive, which holds a program; save the state_dict instead");
      }
    }
    if (!folder_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("it is a zip archive without a data.pkl, so torch.save did not write it");
  }

  absl::Status CheckByteOrder() const {
    if (by_name_.count(absl::StrCat(folder_, "/byteorder")) == 0) return absl::OkStatus();  // before 2.1
    FSDP_ASSIGN_OR_RETURN(const std::string order, ReadEntry("byteorder", kMaxSmallEntryBytes));
    if (order == "little") return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("its byte order is ", Quote(order), ", expected \"little\""));
  }

  absl::StatusOr<const ZipEntry*> FindEntry(const std::string& name) const {
    const auto at = by_name_.find(absl::StrCat(folder_, "/", name));
    if (at == by_name_.end())
      return absl::DataLossError(absl::StrCat("entry ", Quote(name), " is missing in the archive"));
    if (at->second->is_stored()) return at->second;
    return absl::InvalidArgumentError(absl::StrCat("entry ", Quote(name), " is compressed (method ", at->second->method,
                                                   "), but torch stores; unpack and pack it with zip -0"));
  }

  // The pickle and its values are gone when storages are placed: of many tensors either takes tens of megabytes.
  absl::StatusOr<TorchTree> ReadTree() const {
    FSDP_ASSIGN_OR_RETURN(const std::string bytes, ReadEntry("data.pkl", kMaxPickleBytes));
    const auto in_pickle = [](const absl::Status& status) { return Annotate(status, "data.pkl"); };
    const auto pickle = Pickle::Parse(bytes, {.is_allowed = IsTorchGlobal, .advice = AdviceOnGlobal});
    if (!pickle.ok()) return in_pickle(pickle.status());
    absl::StatusOr<TorchTree> tree = TreeOfPickle(**pickle);
    return tree.ok() ? std::move(tree) : in_pickle(tree.status());
  }

  // A whole entry, with its CRC compared at once: data.pkl is read in one piece, unlike storages.
  absl::StatusOr<std::string> ReadEntry(const std::string& name, int64_t max_bytes) const {
    FSDP_ASSIGN_OR_RETURN(const ZipEntry* entry, FindEntry(name));
    if (entry->nbytes > max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("entry ", Quote(name), " has ", entry->nbytes, " bytes, more than ", max_bytes));
    }
    FSDP_ASSIGN_OR_RETURN(std::string text, slice_.ReadText(entry->payload_offset, entry->nbytes));
    if (!options_.verify || entry->crc == 0) return text;
    const uint32_t crc = Crc32(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
    if (crc == entry->crc) return text;
    const int64_t begin = slice_.begin + entry->payload_offset;
    return absl::DataLossError(absl::StrFormat("entry %s, bytes %d to %d: CRC-32 %08x != recorded %08x", Quote(name),
                                               begin, begin + entry->nbytes - 1, crc, entry->crc));
  }

  // Places the storage of a tensor; tensors that share it must agree on its size.
  absl::Status AddStorage(const TorchStorage& storage, TorchArchive& archive) const {
    const auto [at, is_new] = archive.storages.try_emplace(storage.key);
    if (is_new) {
      const std::string name = absl::StrCat("data/", storage.key);
      FSDP_ASSIGN_OR_RETURN(const ZipEntry* entry, FindEntry(name));
      at->second = {slice_.begin + entry->payload_offset, entry->nbytes, entry->crc, name};
    }
    if (at->second.nbytes == storage.nbytes) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("entry ", Quote(at->second.entry), " has ", at->second.nbytes,
                                            " bytes, but its storage ", storage.nbytes));
  }

  const FileSlice& slice_;
  const TensorSourceOptions& options_;
  std::vector<ZipEntry> entries_;
  absl::flat_hash_map<std::string_view, const ZipEntry*> by_name_;  // names are those of entries_
  std::string folder_;
};

}  // namespace

absl::StatusOr<TorchArchive> ReadTorchArchive(const FileSlice& slice, const TensorSourceOptions& options) {
  return ArchiveReader(slice, options).Read();
}

}  // namespace fsdp
