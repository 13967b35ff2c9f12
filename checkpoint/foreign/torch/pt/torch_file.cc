// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/zip/zip_directory.h"
#include "fsdp/checkpoint/foreign/zip/zip_format.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/nearby_reads.h"

namespace fsdp {

void ExpectStorages(const TorchArchive& archive, EntryChecksums& checksums) {
  for (uint32_t storage = 0; storage < archive.tree.tensors.storage_count(); ++storage) {
    // 0 means that the archive has no CRC for the storage, so there is nothing to compare.
    if (archive.tree.tensors.storage_crc(storage) == 0) continue;
    const StoragePlace place = archive.place(storage);
    checksums.Expect(place.entry, {place.offset, place.offset + place.nbytes}, place.crc);
  }
}

Interval StorageTable::range(size_t i) const {
  const TorchTensors& tensors = archive_.tree.tensors;
  const auto storage = static_cast<uint32_t>(i);
  const int64_t begin = tensors.storage_offset(storage);
  return {begin, begin + tensors.storage_bytes(storage)};
}

StoragePlace TorchArchive::place(uint32_t storage) const {
  const TorchTensors& tensors = tree.tensors;
  return {tensors.storage_offset(storage), tensors.storage_bytes(storage), tensors.storage_crc(storage),
          absl::StrCat(entry_prefix, std::string(tensors.storage_key(storage)))};
}

bool HasDTensors(const std::string& path) {
  const auto search = [](const File& file) -> absl::StatusOr<bool> {
    constexpr int64_t kSearchedBytes = int64_t{1} << 20;
    FSDP_ASSIGN_OR_RETURN(const FileSlice slice, FileSlice::Whole(file));
    FSDP_ASSIGN_OR_RETURN(const std::string head, slice.ReadText(0, std::min<int64_t>(slice.nbytes, 4)));
    FileSlice pickle = slice;
    if (head.size() == 4 && ZipInteger(head, 0, 4) == kZipLocalSignature) {
      FSDP_ASSIGN_OR_RETURN(const ZipDirectory entries, ZipDirectory::Read(slice));
      pickle.nbytes = 0;
      for (size_t i = 0; i < entries.size(); ++i) {
        const std::string_view name = entries.name(i);
        if (!absl::EndsWith(absl::string_view(name.data(), name.size()), "/data.pkl")) continue;
        const ZipEntry entry = entries[i];
        pickle = {&file, entry.payload_offset, entry.nbytes};
      }
    }
    FSDP_ASSIGN_OR_RETURN(const std::string text, pickle.ReadText(0, std::min(pickle.nbytes, kSearchedBytes)));
    return absl::StrContains(text, "_rebuild_wrapper_subclass") && absl::StrContains(text, "DTensor");
  };
  const absl::StatusOr<std::unique_ptr<File>> file = PosixFileSystem().Open(path);
  return file.ok() && search(**file).value_or(false);
}

absl::StatusOr<std::unique_ptr<TorchFile>> TorchFile::Open(const std::string& path,
                                                           const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> opened, PosixFileSystem().Open(path));
  std::unique_ptr<TorchFile> file(new TorchFile(std::make_unique<NearbyReads>(std::move(opened))));
  const auto read = [&]() -> absl::StatusOr<TorchArchive> {
    FSDP_ASSIGN_OR_RETURN(const FileSlice slice, FileSlice::Whole(*file->file_));
    FSDP_ASSIGN_OR_RETURN(const std::string head, slice.ReadText(0, std::min<int64_t>(slice.nbytes, 4)));
    // A shorter file goes to the legacy reader, whose error says that it is truncated.
    file->is_zip_ = head.size() == 4 && ZipInteger(head, 0, 4) == kZipLocalSignature;
    return file->is_zip_ ? ReadTorchArchive(slice, options) : ReadLegacyTorchFile(slice);
  };
  absl::StatusOr<TorchArchive> archive = read();
  if (!archive.ok()) {
    FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(*file->file_));
    return Annotate(archive.status(), path);
  }
  file->archive_ = *std::move(archive);
  if (!options.verify) return file;
  // Only now: the metadata was read from the plain file, and ReadTorchArchive compared its CRC itself.
  file->verify_ = true;
  file->file_ = std::make_unique<ChecksummedFile>(std::move(file->file_), file->checksums_);
  return file;
}

const File& TorchFile::payload() const {
  // Once, and before the first read of payload, as ExpectTable requires.
  std::call_once(expected_, [this] {
    if (verify_) checksums_->ExpectTable(storages_);
  });
  return *file_;
}

// Valid for every tensor: the readers have checked that its storage exists.
StoragePlace TorchFile::place(int index) const { return archive_.place(archive_.tree.tensors.storage_of(index)); }

int64_t TorchFile::offset(int index) const {
  return archive_.tree.tensors.storage_offset(archive_.tree.tensors.storage_of(index));
}

}  // namespace fsdp
