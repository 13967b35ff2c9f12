// SPDX-License-Identifier: Apache-2.0
//
// A record describes everything in its file except the digest of the record itself, which it cannot contain. The extent
// of the record comes from another place: from the writer's message (WrittenFile), or from the manifest. InsertExtent
// adds it, after which the record and the manifest can be compared member by member.
#include "fsdp/checkpoint/native/format/record.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

const StoredExtent* FindExtent(const StoredFile& file, const ByteRange& range) {
  const auto it = std::find_if(file.extents.begin(), file.extents.end(),
                               [&](const StoredExtent& extent) { return extent.range == range; });
  return it == file.extents.end() ? nullptr : &*it;
}

// The bytes of the record at `range`, not verified.
absl::StatusOr<std::string> ReadText(const File& file, const ByteRange& range) {
  if (range.nbytes > kMaxManifestBytes) {
    return absl::DataLossError(
        absl::StrCat("a record of ", range.nbytes, " bytes, expected at most ", kMaxManifestBytes));
  }
  std::string text(range.nbytes, '\0');
  FSDP_RETURN_IF_ERROR(file.Read(range.offset, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
  return text;
}

absl::StatusOr<FileRecord> DecodeRankRecord(const std::string& text) {
  FSDP_ASSIGN_OR_RETURN(FileRecord record, DecodeRecord(text));
  if (!record.files.empty() && record.rank >= 0) return record;
  return absl::DataLossError(absl::StrCat("the record names ", record.files.size(), " files and rank ", record.rank));
}

absl::Status CheckDigests(const std::string& text, const StoredExtent& extent) {
  for (size_t block = 0; block < extent.digests.size(); ++block) {
    const Digest actual = DigestOf(std::string_view(text).substr(block * extent.block_bytes, extent.block_bytes));
    if (actual != extent.digests[block]) {
      return absl::DataLossError(absl::StrCat(Describe(extent.range), " (record): digest ", actual.ToHex(),
                                              " != recorded ", extent.digests[block].ToHex()));
    }
  }
  return absl::OkStatus();
}

// Reads the record as its writer described it, checking size, digest and seal.
absl::StatusOr<FileRecord> ReadWritten(const File& file, const WrittenFile& written) {
  FSDP_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  if (size != written.nbytes) {
    return absl::DataLossError(absl::StrCat("it has ", size, " bytes, but its writer wrote ", written.nbytes));
  }
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadText(file, written.record.range));
  FSDP_RETURN_IF_ERROR(CheckDigests(text, written.record));
  FSDP_ASSIGN_OR_RETURN(FileRecord record, DecodeRankRecord(text));
  InsertExtent(written.record, record.files[0]);
  return record;
}

// A linked file keeps the record of the save that wrote it, with the name that it had there.
absl::Status Compare(const FileRecord& record, const Manifest& manifest, const StoredFile& file) {
  const StoredOrigin origin = file.origin.value_or(StoredOrigin{manifest.save.id, manifest.save.step, file.name});
  if (record.save.id != origin.save_id) {
    return absl::DataLossError(
        absl::StrCat("it is of another save: save id ", Printable(record.save.id), " != ", Printable(origin.save_id)));
  }
  const StoredFile& recorded = record.files[0];
  if (recorded.name != origin.name) {
    return absl::DataLossError(absl::StrCat("it is ", Printable(recorded.name), " of this save"));
  }
  if (record.save.step != origin.step || recorded.nbytes != file.nbytes || recorded.extents != file.extents ||
      recorded.rest_digest != file.rest_digest) {
    return absl::DataLossError("its record differs from the manifest");
  }
  return absl::OkStatus();
}

absl::Status Named(const std::string& name, const absl::Status& status) {
  if (status.ok()) return status;
  return Annotate(status, name);
}

}  // namespace

WrittenFile Written(const FileRecord& record) {
  const StoredFile& file = record.files[0];
  WrittenFile written = {.name = file.name, .nbytes = file.nbytes, .record = *FindExtent(file, *file.record)};
  for (size_t i = 1; i < record.files.size(); ++i) {
    written.links.emplace_back(record.files[i].name, record.files[i].nbytes);
  }
  return written;
}

absl::StatusOr<FileRecord> ReadRecord(FileSystem& files, const std::string& directory, const WrittenFile& written) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Open(JoinPath(directory, written.name)));
  absl::StatusOr<FileRecord> record = ReadWritten(*file, written);
  return record.ok() ? std::move(record) : absl::StatusOr<FileRecord>(Named(written.name, record.status()));
}

absl::Status CheckRecord(const File& file, const Manifest& manifest, int index) {
  const StoredFile& stored = manifest.files[index];
  if (!stored.record) return absl::OkStatus();
  const auto check = [&]() -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::string text, ReadText(file, *stored.record));
    // The common case: the record has the digest in the manifest. Any other text is decoded to distinguish damage from
    // an intact file of another rank or save.
    const StoredExtent* extent = FindExtent(stored, *stored.record);
    if (extent != nullptr && CheckDigests(text, *extent).ok()) return absl::OkStatus();
    absl::StatusOr<FileRecord> record = DecodeRankRecord(text);
    if (!record.ok()) {
      return absl::DataLossError(
          absl::StrCat(Describe(*stored.record), " (record): ", std::string(record.status().message())));
    }
    if (extent != nullptr) InsertExtent(*extent, record->files[0]);
    return Compare(*record, manifest, stored);
  };
  return Named(stored.name, check());
}

}  // namespace fsdp
