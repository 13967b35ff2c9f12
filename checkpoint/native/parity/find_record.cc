// SPDX-License-Identifier: Apache-2.0
//
// A record is sealed JSON (sealed_json.h) in a dataset that HDF5 aligns to kRecordAlignment, so it can be found without
// the metadata of the HDF5 file, which may be damaged: look at each page for the first bytes of a record, then continue
// page by page until the text ends with a seal whose digest is right. Payload may contain the bytes of a record, for
// example of another file, so a record only counts if it names this very offset as its own.
//
// Every page is read and digested once, whatever the file holds: the digest of a text grows with it, and a page with
// the first bytes of a record ends the text before it, since no record has them inside.
#include "fsdp/checkpoint/native/parity/find_record.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/format/record.h"
#include "fsdp/checkpoint/native/format/sealed_json.h"
#include "fsdp/checkpoint/native/tree/tree_layout.h"

namespace fsdp {
namespace {

// The first bytes of every record; see manifest_encode.cc.
constexpr std::string_view kBeginning = "{\n  \"format\": \"fsdp rank record\",\n";
constexpr std::string_view kEnd = "\"}\n";

// The digits of a seal and the end of its text.
constexpr int64_t kSealBytes = 32 + static_cast<int64_t>(kEnd.size());

absl::Status ReadRange(const File& file, const ByteRange& range, std::string& out) {
  out.resize(range.nbytes);
  return file.Read(range.offset, absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size()));
}

// Adds the next page of a text to its digest. True if the page ends with the right seal of the text.
bool EndsInSeal(std::string_view page, DigestBuilder& text) {
  const size_t before = std::max<int64_t>(0, std::ssize(page) - kSealBytes);
  text.Update(page.substr(0, before));
  const bool is_sealed =
      before > 0 &&
      absl::EndsWith(absl::string_view(page.data(), page.size()), absl::string_view(kEnd.data(), kEnd.size())) &&
      text.Finish().ToHex() == SealOf(page);
  text.Update(page.substr(before));
  return is_sealed;
}

absl::StatusOr<FileRecord> DecodeAt(int64_t offset, const std::string& text) {
  FSDP_ASSIGN_OR_RETURN(FileRecord record, DecodeRecord(text));
  const ByteRange range = {offset, static_cast<int64_t>(text.size())};
  if (record.files.empty() || record.rank < 0 || !(record.files[0].record == range)) {
    return absl::DataLossError("a record that does not describe its own file");
  }
  // A record cannot contain its own digests; computed here, they make it comparable with the manifest's.
  StoredExtent extent = {range, {}};
  for (size_t at = 0; at < text.size(); at += kBlockBytes) {
    extent.digests.push_back(DigestOf(std::string_view(text).substr(at, kBlockBytes)));
  }
  InsertExtent(std::move(extent), record.files[0]);
  return record;
}

}  // namespace

absl::Status CheckSaveOf(FileSystem& files, const std::string& directory, const Manifest& manifest) {
  // A majority, since a few swapped rank files must not discredit an intact manifest.
  size_t rank_files = 0;
  std::map<std::string, size_t> others;  // files by save id
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const StoredFile& stored = manifest.files[i];
    if (!stored.record || stored.origin) continue;
    ++rank_files;
    const absl::StatusOr<std::unique_ptr<File>> file = OpenCheckpointFile(files, directory, stored.name);
    if (!file.ok()) continue;
    if (CheckRecord(**file, manifest, static_cast<int>(i)).ok()) return absl::OkStatus();
    const absl::StatusOr<FileRecord> record = FindRecord(**file);
    if (!record.ok()) continue;
    if (record->save.id == manifest.save.id) return absl::OkStatus();
    ++others[record->save.id];
  }
  for (const auto& [save_id, count] : others) {
    if (others.size() > 1 || count * 2 <= rank_files) break;
    return absl::DataLossError(absl::StrCat(kManifestName, " is of another save than the rank files: save id ",
                                            Printable(manifest.save.id), ", and theirs ", Printable(save_id)));
  }
  return absl::OkStatus();
}

absl::StatusOr<FileRecord> FindRecord(const File& file) {
  FSDP_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  std::string bytes;
  int64_t begin = -1;    // of the text that may be a record; -1: of none
  DigestBuilder digest;  // of that text
  for (int64_t offset = 0; offset < size; offset += kRecordAlignment) {
    const ByteRange page = {offset, std::min(kRecordAlignment, size - offset)};
    FSDP_RETURN_IF_ERROR(ReadRange(file, {offset, std::min(page.nbytes, std::ssize(kBeginning))}, bytes));
    if (bytes == kBeginning) {
      begin = offset;
      digest.Reset();
    }
    if (begin < 0) continue;
    FSDP_RETURN_IF_ERROR(ReadRange(file, page, bytes));
    const ByteRange text = {begin, page.end() - begin};
    const bool is_sealed = EndsInSeal(bytes, digest);
    if (!is_sealed && text.nbytes < kMaxManifestBytes) continue;
    begin = -1;
    if (!is_sealed) continue;
    FSDP_RETURN_IF_ERROR(ReadRange(file, text, bytes));
    // If it cannot be decoded, the bytes only look like a record, and the true one may follow.
    absl::StatusOr<FileRecord> record = DecodeAt(text.offset, bytes);
    if (record.ok()) return record;
  }
  return absl::DataLossError("no undamaged record");
}

}  // namespace fsdp
