// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/format/stored_files_json.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// The shortest valid elements (MostElements).
constexpr std::string_view kShortestFile =
    R"({"name":"a","bytes":0,"rest_digest":"00000000000000000000000000000000","extents":[]})";
constexpr std::string_view kShortestExtent = R"({"offset":0,"bytes":1,"digests":["00000000000000000000000000000000"]})";

absl::Status Broken(const std::string& what) { return absl::DataLossError(what); }

// `status`, with `what` as the place.
absl::Status In(const std::string& what, const absl::Status& status) { return Annotate(status, what); }

absl::StatusOr<Digest> DecodeDigest(const JsonView& value) {
  const std::optional<std::string> hex = value.string();
  if (!hex) return Broken("a digest is not a string");
  absl::StatusOr<Digest> digest = ParseDigest(*hex);
  return digest.ok() ? digest : absl::StatusOr<Digest>(Broken(absl::StrCat(Quote(*hex), " is not a digest")));
}

// As many digests as blocks, so that a block's digest is found by its number.
absl::StatusOr<StoredExtent> DecodeExtent(const JsonView& object) {
  StoredExtent extent;
  FSDP_ASSIGN_OR_RETURN(extent.range, DecodeRange(object));
  FSDP_ASSIGN_OR_RETURN(const JsonView digests, ArrayMember(object, "digests"));
  if (extent.range.nbytes == 0) return Broken(absl::StrCat("an empty extent at byte ", extent.range.offset));
  if (object.Find("block")) {
    FSDP_ASSIGN_OR_RETURN(extent.block_bytes, IntegerMember(object, "block"));
    if (!IsDigestBlock(extent.block_bytes)) {
      return Broken(absl::StrCat(Describe(extent.range), " have digests of blocks of ", extent.block_bytes,
                                 " bytes, expected a power of two from 65536 to ", kBlockBytes));
    }
  }
  const int64_t blocks = extent.blocks();
  if (digests.size() != blocks) {
    return Broken(absl::StrCat(Describe(extent.range), " have ", digests.size(), " digests, expected ", blocks));
  }
  extent.digests.reserve(blocks);
  for (const JsonView value : digests) {
    FSDP_ASSIGN_OR_RETURN(const Digest digest, DecodeDigest(value));
    extent.digests.push_back(digest);
  }
  return extent;
}

// OK when extents are sorted and disjoint, and they and the record are inside the file. ExtentAt needs this order.
absl::Status CheckRanges(const StoredFile& file) {
  std::vector<ByteRange> ranges;
  ranges.reserve(file.extents.size());
  for (const StoredExtent& extent : file.extents) ranges.push_back(extent.range);
  const bool sorted = std::is_sorted(ranges.begin(), ranges.end(),
                                     [](const ByteRange& a, const ByteRange& b) { return a.offset < b.offset; });
  if (!sorted) return Broken("its extents are not sorted");
  int64_t end = 0;
  for (const ByteRange& range : ranges) {
    if (range.offset < end) return Broken(absl::StrCat(Describe(range), " overlap the extent before"));
    end = range.end();
  }
  if (end > file.nbytes) return Broken(absl::StrCat("an extent ends at byte ", end, " of ", file.nbytes));
  if (file.record && file.record->end() > file.nbytes) return Broken("its record reaches behind its end");
  return absl::OkStatus();
}

absl::StatusOr<StoredFile> DecodeFile(const JsonView& object) {
  StoredFile file;
  FSDP_ASSIGN_OR_RETURN(file.name, StringMember(object, "name"));
  FSDP_RETURN_IF_ERROR(CheckFileName(file.name));
  FSDP_ASSIGN_OR_RETURN(file.nbytes, IntegerMember(object, "bytes"));
  if (const auto record = object.Find("record")) {
    FSDP_ASSIGN_OR_RETURN(file.record, DecodeRange(*record));
  }
  if (const auto origin = object.Find("origin")) {
    file.origin.emplace();
    FSDP_ASSIGN_OR_RETURN(file.origin->save_id, DecodeSaveId(*origin));
    FSDP_ASSIGN_OR_RETURN(file.origin->step, IntegerMember(*origin, "step"));
    FSDP_ASSIGN_OR_RETURN(file.origin->name, StringMember(*origin, "name"));
    FSDP_RETURN_IF_ERROR(In("member \"origin\"", CheckFileName(file.origin->name)));
  }
  const std::optional<JsonView> digest = object.Find("rest_digest");
  if (!digest) return Broken("member \"rest_digest\" is missing");
  FSDP_ASSIGN_OR_RETURN(file.rest_digest, DecodeDigest(*digest));
  FSDP_ASSIGN_OR_RETURN(const JsonView extents, ArrayMember(object, "extents"));
  file.extents.reserve(MostElements(extents, kShortestExtent));
  for (const JsonView value : extents) {
    FSDP_ASSIGN_OR_RETURN(StoredExtent extent, DecodeExtent(value));
    file.extents.push_back(std::move(extent));
  }
  FSDP_RETURN_IF_ERROR(CheckRanges(file));
  file.unknown = UnknownMembers(object, {"name", "bytes", "record", "origin", "rest_digest", "extents"});
  return file;
}

// The memory of a file and its entry in the index. Each extent is copied once to compare ranges.
size_t MemoryOf(const StoredFile& file) {
  constexpr size_t kIndexBytes = 64;
  constexpr size_t kMallocBytes = 16;
  size_t nbytes = sizeof(file) + kIndexBytes + HeapBytes(file.name) + HeapBytes(file.unknown);
  if (file.origin) nbytes += HeapBytes(file.origin->save_id) + HeapBytes(file.origin->name);
  for (const StoredExtent& extent : file.extents) {
    nbytes += sizeof(extent) + sizeof(extent.range) + kMallocBytes + extent.digests.size() * sizeof(Digest);
  }
  return nbytes;
}

}  // namespace

// A manifest is data: names must be plain file names and distinct, sums must not overflow, and what is made of it is
// counted against a budget while it grows.
absl::Status DecodeFiles(const JsonView& document, DecodeBudget& budget, std::vector<StoredFile>& files,
                         FileIndex& index) {
  FSDP_ASSIGN_OR_RETURN(const JsonView array, ArrayMember(document, "files"));
  const size_t count = MostElements(array, kShortestFile);
  // Not reallocated below: the index has views of short names, which are inside their file.
  files.reserve(count);
  index.reserve(count);
  int64_t nbytes = 0;
  for (const JsonView value : array) {
    absl::StatusOr<StoredFile> decoded = DecodeFile(value);
    if (!decoded.ok()) return In(absl::StrCat("file ", NameOf(value)), decoded.status());
    if (index.contains(decoded->name)) return Broken(absl::StrCat("file ", Quote(decoded->name), " is named twice"));
    if (decoded->name == kManifestName) return Broken("it names itself among the files");
    if (__builtin_add_overflow(nbytes, decoded->nbytes, &nbytes)) {
      return Broken(absl::StrCat("the files up to ", Quote(decoded->name), " have 2^63 bytes or more"));
    }
    FSDP_RETURN_IF_ERROR(budget.Take(MemoryOf(*decoded)));
    files.push_back(*std::move(decoded));
    index.emplace(files.back().name, static_cast<int>(files.size()) - 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> FindFile(std::string_view name, const FileIndex& index) {
  const auto it = index.find(name);
  if (it != index.end()) return it->second;
  return Broken(absl::StrCat("file ", Quote(name), " is not among the files"));
}

absl::StatusOr<ByteRange> DecodeRange(const JsonView& object) {
  FSDP_ASSIGN_OR_RETURN(const int64_t offset, IntegerMember(object, "offset"));
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, IntegerMember(object, "bytes"));
  if (nbytes > std::numeric_limits<int64_t>::max() - offset) return Broken("offset and bytes overflow");
  return ByteRange{offset, nbytes};
}

absl::StatusOr<std::string> DecodeSaveId(const JsonView& object) {
  FSDP_ASSIGN_OR_RETURN(std::string id, StringMember(object, "save_id"));
  if (ParseDigest(id).ok()) return id;
  return Broken(absl::StrCat("member \"save_id\" is ", Quote(id), ", expected 32 lower-case hexadecimal digits"));
}

}  // namespace fsdp
