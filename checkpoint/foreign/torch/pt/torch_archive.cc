// SPDX-License-Identifier: Apache-2.0
//
// The zip archive of torch.save since 1.6, which it writes without compression:
//
//   NAME/data.pkl     the object as a pickle; its tensors refer to storages by key
//   NAME/byteorder    "little"; since torch 2.1
//   NAME/data/KEY     the bytes of a storage, once for each key
//   NAME/version      and, in newer versions of torch, a few more: not needed
//
// Only the directory, byteorder and data.pkl are read; storages are located, not read. A storage must exist and be as
// long as the tensors that refer to it state, so that no view can reach outside it later.
#include <malloc.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"
#include "fsdp/checkpoint/foreign/zip/zip_directory.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxPickleBytes = int64_t{1} << 30;
constexpr int64_t kMaxSmallEntryBytes = 64;
constexpr size_t kManyTensors = 10'000;

class ArchiveReader {
 public:
  ArchiveReader(const FileSlice& slice, const TensorSourceOptions& options) : slice_(slice), options_(options) {}

  absl::StatusOr<TorchArchive> Read() {
    FSDP_ASSIGN_OR_RETURN(entries_, ZipDirectory::Read(slice_));
    FSDP_RETURN_IF_ERROR(FindFolder());
    FSDP_RETURN_IF_ERROR(CheckByteOrder());
    TorchArchive archive;
    FSDP_ASSIGN_OR_RETURN(archive.tree, ReadTree());
    // The values were small pieces of the heap, whereas the tree leads to large allocations: without this the free
    // pieces of a large pickle would stay in memory in addition to them.
    if (archive.tree.tensors.size() > kManyTensors) malloc_trim(0);
    archive.entry_prefix = "data/";
    archive.folder = folder_;
    for (uint32_t storage = 0; storage < archive.tree.tensors.storage_count(); ++storage) {
      FSDP_RETURN_IF_ERROR(PlaceStorage(storage, archive.tree.tensors));
    }
    return archive;
  }

 private:
  // All names begin with one folder: the name of the file when it was saved, or "archive".
  absl::Status FindFolder() {
    for (size_t i = 0; i < entries_.size(); ++i) {
      const std::string_view name = entries_.name(i);
      const size_t slash = name.find('/');
      if (slash != name.npos && name.substr(slash) == "/data.pkl") folder_ = std::string(name.substr(0, slash));
      if (absl::EndsWith(absl::string_view(name.data(), name.size()), "/constants.pkl")) {
        return absl::InvalidArgumentError(
            "it is a TorchScript archive, which holds a program; save the state_dict instead");
      }
    }
    return folder_.empty() ? NotOfTorch() : absl::OkStatus();
  }

  // Other programs pack what they save: stable-baselines3 a policy, torch.export a program, people a directory.
  absl::Status NotOfTorch() const {
    std::vector<std::string> weights;
    for (size_t i = 0; i < entries_.size(); ++i) {
      const std::string name(entries_.name(i));
      if (IsWeightFileName(SplitPath(name).name)) weights.push_back(name);
      if (absl::EndsWith(name, "archive_format")) {
        return absl::InvalidArgumentError(
            "it is an archive of torch.export, which holds a program; save the state_dict instead");
      }
    }
    const std::string advice =
        weights.empty() ? "" : absl::StrCat("; it holds ", SomeOf(weights), ": unpack it, `unzip FILE`, and give one");
    return absl::InvalidArgumentError(
        absl::StrCat("it is a zip archive without a data.pkl, so torch.save did not write it", advice));
  }

  absl::Status CheckByteOrder() const {
    if (!entries_.Find(absl::StrCat(folder_, "/byteorder"))) return absl::OkStatus();  // before 2.1
    FSDP_ASSIGN_OR_RETURN(const std::string order, ReadEntry("byteorder", kMaxSmallEntryBytes));
    if (order == "little") return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("its byte order is ", Quote(order),
                                                   ", expected \"little\"; load it with torch.load and save it again"));
  }

  absl::StatusOr<ZipEntry> FindEntry(const std::string& name) const {
    const std::optional<ZipEntry> entry = entries_.Find(absl::StrCat(folder_, "/", name));
    if (!entry) return absl::DataLossError(absl::StrCat("entry ", Quote(name), " is missing in the archive"));
    if (entry->is_stored()) return *entry;
    return absl::InvalidArgumentError(absl::StrCat("entry ", Quote(name), " is compressed (method ", entry->method,
                                                   "), but torch stores; unpack and pack it with zip -0"));
  }

  // Frees the pickle and its values before storages are located: for many tensors either takes tens of megabytes.
  absl::StatusOr<TorchTree> ReadTree() const {
    FSDP_ASSIGN_OR_RETURN(const std::string bytes, ReadEntry("data.pkl", kMaxPickleBytes));
    absl::StatusOr<TorchTree> tree = ParseTorchTree(bytes);
    return tree.ok() ? std::move(tree) : Annotate(tree.status(), "data.pkl");
  }

  // Reads a whole entry and compares its CRC immediately: data.pkl is read in one piece, unlike storages.
  absl::StatusOr<std::string> ReadEntry(const std::string& name, int64_t max_bytes) const {
    FSDP_ASSIGN_OR_RETURN(const ZipEntry entry, FindEntry(name));
    if (entry.nbytes > max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("entry ", Quote(name), " has ", entry.nbytes, " bytes, more than ", max_bytes));
    }
    FSDP_ASSIGN_OR_RETURN(std::string text, slice_.ReadText(entry.payload_offset, entry.nbytes));
    if (!options_.verify || entry.crc == 0) return text;
    const uint32_t crc = Crc32(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
    if (crc == entry.crc) return text;
    const int64_t begin = slice_.begin + entry.payload_offset;
    return absl::DataLossError(absl::StrFormat("entry %s, bytes %d to %d: CRC-32 %08x != recorded %08x", Quote(name),
                                               begin, begin + entry.nbytes - 1, crc, entry.crc));
  }

  absl::Status PlaceStorage(uint32_t storage, TorchTensors& tensors) const {
    const std::string name = absl::StrCat("data/", std::string(tensors.storage_key(storage)));
    FSDP_ASSIGN_OR_RETURN(const ZipEntry entry, FindEntry(name));
    tensors.Place(storage, slice_.begin + entry.payload_offset, entry.crc);
    if (entry.nbytes == tensors.storage_bytes(storage)) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("entry ", Quote(name), " has ", entry.nbytes, " bytes, but its storage ",
                                            tensors.storage_bytes(storage)));
  }

  const FileSlice& slice_;
  const TensorSourceOptions& options_;
  ZipDirectory entries_;
  std::string folder_;
};

}  // namespace

absl::StatusOr<TorchArchive> ReadTorchArchive(const FileSlice& slice, const TensorSourceOptions& options,
                                              TorchShards shards) {
  FSDP_ASSIGN_OR_RETURN(TorchArchive archive, ArchiveReader(slice, options).Read());
  if (shards == TorchShards::kRefused) FSDP_RETURN_IF_ERROR(CheckHoldsNoShards(archive.tree));
  return archive;
}

}  // namespace fsdp
