// SPDX-License-Identifier: Apache-2.0
//
// The format of torch.save before 1.6 (today with _use_new_zipfile_serialization=False): five consecutive pickles, and
// the storages:
//
//   magic | protocol 1001 | {"little_endian": ...} | the object | [keys] | (i64 number of elements | bytes)* by key
//
// No pickle states its length, so the head of the file is read in growing pieces until all five end inside it. A
// storage's position follows from the sizes of the storages before it. There are no checksums; the sizes that the
// object states must equal those in the file.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pickle/inert_globals.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

constexpr std::string_view kMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);  // 0x1950a86a20f9469cfc6c
constexpr int64_t kProtocol = 1001;

class LegacyReader {
 public:
  explicit LegacyReader(const FileSlice& slice) : slice_(slice) {}

  absl::StatusOr<TorchArchive> Read() {
    constexpr int64_t kFirstHead = int64_t{4} << 20;
    constexpr int64_t kMaxHead = int64_t{256} << 20;
    for (int64_t head = kFirstHead;; head = head / 2 * 3) {
      const int64_t nbytes = std::min({head, kMaxHead, slice_.nbytes});
      bytes_ = std::string();  // freed before the next one is read
      FSDP_ASSIGN_OR_RETURN(bytes_, slice_.ReadText(0, nbytes));
      // The pickles did not end in the previous head, so they have at least that many bytes, and the limit for values
      // follows.
      max_memory_ = PickleMemoryLimit(nbytes == kFirstHead ? 0 : nbytes / 3 * 2) - nbytes;
      absl::StatusOr<TorchArchive> archive = ReadHead();
      // A truncated pickle looks like a damaged one: more bytes decide. Grows by only a half, because bytes read beyond
      // the pickles use memory that the pickles are not granted.
      const bool is_cut_off = absl::IsDataLoss(archive.status()) && nbytes < std::min(kMaxHead, slice_.nbytes);
      if (!is_cut_off) return archive;
    }
  }

 private:
  absl::StatusOr<TorchArchive> ReadHead() {
    at_ = 0;
    FSDP_ASSIGN_OR_RETURN(const auto magic, Next());
    if (!magic->root().is(Kind::kBigInt) || magic->root().text() != kMagic) {
      return absl::InvalidArgumentError(
          "it begins with a pickle, but not with torch.save's: load it with pickle, and save a dict of tensors "
          "(torch.from_numpy() of arrays) with torch.save");
    }
    FSDP_ASSIGN_OR_RETURN(const auto protocol, Next());
    if (!protocol->root().is(Kind::kInt) || protocol->root().integer() != kProtocol) {
      return absl::InvalidArgumentError(absl::StrCat("the protocol of this torch file is not ", kProtocol));
    }
    FSDP_ASSIGN_OR_RETURN(const auto system, Next());
    FSDP_RETURN_IF_ERROR(CheckByteOrder(system->root()));
    FSDP_ASSIGN_OR_RETURN(const auto object, Next());
    FSDP_ASSIGN_OR_RETURN(const auto keys, Next());
    TorchArchive archive;
    FSDP_ASSIGN_OR_RETURN(archive.tree, TreeOfPickle(*object));
    FSDP_RETURN_IF_ERROR(PlaceStorages(*object, keys->root(), archive));
    return archive;
  }

  // Parses the pickle at at_, and moves at_ to its end.
  absl::StatusOr<std::unique_ptr<Pickle>> Next() {
    PickleOptions options = TorchPickleOptions();
    options.limits.max_memory = max_memory_;
    absl::StatusOr<std::unique_ptr<Pickle>> pickle = Pickle::Parse(std::string_view(bytes_).substr(at_), options);
    if (!pickle.ok()) {
      return Annotate(pickle.status(), absl::StrCat("pickle ", pickles_ + 1, " of the file, at byte ", at_));
    }
    at_ += (*pickle)->size();
    pickles_ = pickles_ % 5 + 1;
    return pickle;
  }

  static absl::Status CheckByteOrder(PickleValue system) {
    if (!system.is(Kind::kDict)) return absl::DataLossError("the torch file does not describe its system");
    for (int64_t i = 0; i < system.size(); ++i) {
      const auto [name, value] = system.member(i);
      if (!name.is(Kind::kString) || name.text() != "little_endian") continue;
      if (value.is(Kind::kBool) && value.boolean()) return absl::OkStatus();
      return absl::InvalidArgumentError("its byte order is big-endian, expected little");
    }
    return absl::OkStatus();
  }

  absl::Status PlaceStorages(const Pickle& object, PickleValue keys, TorchArchive& archive) const {
    // By key, a view of the pickle: the index of its first persistent id.
    absl::flat_hash_map<std::string_view, uint32_t> described;
    for (int64_t i = 0; i < object.persistent_count(); ++i) {
      FSDP_RETURN_IF_ERROR(ReadTorchStorage(object.persistent(i)).status());
      described.try_emplace(object.persistent(i).at(0).at(2).text(), static_cast<uint32_t>(i));
    }
    if (!keys.is(Kind::kList)) return absl::DataLossError("the torch file does not list its storages");
    int64_t at = at_;
    TorchTensors& tensors = archive.tree.tensors;
    archive.entry_prefix = "storage ";
    absl::flat_hash_map<std::string_view, uint32_t> wanted;  // storages of tensors, by key
    for (uint32_t i = 0; i < tensors.storage_count(); ++i) wanted[tensors.storage_key(i)] = i;
    absl::flat_hash_set<std::string_view> listed;
    for (int64_t i = 0; i < keys.size(); ++i) {
      if (!keys.at(i).is(Kind::kString)) return absl::DataLossError("a storage's key is not a string");
      const std::string key(keys.at(i).text());
      const auto storage = described.find(key);
      if (storage == described.end())
        return absl::DataLossError(absl::StrCat("storage ", Quote(key), " has no tensor"));
      FSDP_ASSIGN_OR_RETURN(const TorchStorage read, ReadTorchStorage(object.persistent(storage->second)));
      FSDP_ASSIGN_OR_RETURN(const int64_t begin, FindStorage(read, at));
      at = begin + read.nbytes;
      if (!listed.insert(storage->first).second) {
        return absl::DataLossError(absl::StrCat("storage ", Quote(key), " is listed twice"));
      }
      const auto of_tensor = wanted.find(key);
      if (of_tensor == wanted.end()) continue;
      tensors.Place(of_tensor->second, slice_.begin + begin, /*crc=*/0);
    }
    for (const auto& [key, storage] : wanted) {
      if (listed.contains(key)) continue;
      return absl::DataLossError(absl::StrCat("storage ", Quote(std::string(key)), " is missing in the file"));
    }
    return absl::OkStatus();
  }

  // The offset in the slice of the first byte of the storage whose length is at byte `at`.
  absl::StatusOr<int64_t> FindStorage(const TorchStorage& storage, int64_t at) const {
    int64_t numel = 0;
    FSDP_RETURN_IF_ERROR(slice_.Read(at, absl::MakeSpan(reinterpret_cast<std::byte*>(&numel), sizeof(numel))));
    const int64_t size = storage.element_size();
    const int64_t begin = at + static_cast<int64_t>(sizeof(numel));
    if (numel < 0 || numel > (slice_.nbytes - begin) / size) {
      return absl::DataLossError(absl::StrCat("storage ", Quote(storage.key), " of ", numel,
                                              " elements does not fit in the file: it is truncated"));
    }
    if (numel * size != storage.nbytes) {
      return absl::DataLossError(absl::StrCat("storage ", Quote(storage.key), " has ", numel * size,
                                              " bytes in the file, but its tensors state ", storage.nbytes));
    }
    return begin;
  }

  const FileSlice& slice_;
  std::string bytes_;  // the head of the file
  int64_t max_memory_ = 0;
  int64_t at_ = 0;
  int pickles_ = 0;  // read so far, of five
};

}  // namespace

absl::StatusOr<TorchArchive> ReadLegacyTorchFile(const FileSlice& slice, TorchShards shards) {
  FSDP_ASSIGN_OR_RETURN(TorchArchive archive, LegacyReader(slice).Read());
  if (shards == TorchShards::kRefused) FSDP_RETURN_IF_ERROR(CheckHoldsNoShards(archive.tree));
  return archive;
}

}  // namespace fsdp
