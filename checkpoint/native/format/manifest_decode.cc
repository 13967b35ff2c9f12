// SPDX-License-Identifier: Apache-2.0
//
// Reads manifests and records, which may be damaged or hostile. The order of the checks matters:
//
//   1. The seal: a digest over the text. It finds every accidental damage before a byte is parsed.
//   2. JSON, with duplicate names and deep nesting refused. It is read in place (json_view.h), and its values have a
//      limit on memory (decode_budget.h).
//   3. Format and version, so that a text of a later release is reported as such and not as damaged.
//   4. Header, units, files (stored_files_json.h), and then tensors and texts (stored_values_json.h), which refer to
//      files by name.
//
// The seal is not a signature, so a crafted text passes it; hence every number is bounded, a file name cannot leave the
// directory, and the byte ranges of tensors and texts must be inside an extent of their file. A decoded manifest can
// then be used without further checks. Members that this release does not know are kept as text and written back by
// repair, as docs/checkpoint_format.md demands of readers of a minor version.
//
// Decoders return an error without the place; each caller adds the name of the file, tensor or text that it knows.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/format/named_step.h"
#include "fsdp/checkpoint/native/format/sealed_json.h"
#include "fsdp/checkpoint/native/format/stored_attributes.h"
#include "fsdp/checkpoint/native/format/stored_files_json.h"
#include "fsdp/checkpoint/native/format/stored_values_json.h"
#include "fsdp/checkpoint/source/decode_budget.h"
#include "fsdp/checkpoint/source/json_view.h"

namespace fsdp {
namespace {

// Every member that a manifest or a record can have. Both kinds of text are checked in the same way, and each caller
// takes the members of its kind.
struct Document : RecordHeader, StoredValues {
  StoredParity parity;
  std::string unknown;
};

absl::Status Broken(const std::string& what) { return absl::DataLossError(what); }

// Programs print it in a line of their own words.
absl::StatusOr<std::string> DecodeProducer(const JsonView& document) {
  constexpr size_t kMaxBytes = 256;
  FSDP_ASSIGN_OR_RETURN(std::string producer, StringMember(document, "producer"));
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (producer.size() <= kMaxBytes && std::none_of(producer.begin(), producer.end(), is_control)) return producer;
  return Broken(absl::StrCat("member \"producer\" is ", Quote(producer), ", expected at most ", kMaxBytes,
                             " bytes without control characters"));
}

// The name of the checkpoint, if it is not a step's; empty otherwise.
absl::StatusOr<std::string> DecodeName(const JsonView& document, int64_t step) {
  if (!document.Find("name")) return std::string();
  FSDP_ASSIGN_OR_RETURN(std::string name, StringMember(document, "name"));
  const absl::Status status = CheckCheckpointName(name, step);
  return status.ok() ? absl::StatusOr<std::string>(std::move(name))
                     : Broken(absl::StrCat("member \"name\": ", status.message()));
}

absl::Status DecodeFileNames(const JsonView& object, const char* member, const FileIndex& index,
                             std::vector<bool>& is_named, std::vector<int>& out) {
  FSDP_ASSIGN_OR_RETURN(const JsonView names, ArrayMember(object, member));
  for (const JsonView value : names) {
    const std::optional<std::string> name = value.string();
    if (!name) return Broken(absl::StrCat("member \"", member, "\" is not an array of strings"));
    FSDP_ASSIGN_OR_RETURN(const int file, FindFile(*name, index));
    if (is_named[file]) return Broken(absl::StrCat("parity names file ", Quote(*name), " twice"));
    is_named[file] = true;
    out.push_back(file);
  }
  return absl::OkStatus();
}

// Each file of a parity code has one row of its matrix, so no file may be named twice, as data or as parity.
absl::Status DecodeParity(const JsonView& document, const FileIndex& index, StoredParity& out) {
  const std::optional<JsonView> parity = document.Find("parity");
  if (!parity) return absl::OkStatus();
  if (!parity->is_object()) return Broken("member \"parity\" is not an object");
  std::vector<bool> is_named(index.size());
  FSDP_RETURN_IF_ERROR(DecodeFileNames(*parity, "data", index, is_named, out.data));
  return DecodeFileNames(*parity, "files", index, is_named, out.files);
}

// True for a number as we print it: no sign, no blanks, no leading zeros.
bool IsDecimal(const std::string& text) {
  const bool is_digits = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  return is_digits && !text.empty() && (text == "0" || text[0] != '0');
}

// Any minor version of a known major one is read. A later major version names the release that reads it.
absl::Status CheckVersion(const JsonView& document) {
  FSDP_ASSIGN_OR_RETURN(const std::string version, StringMember(document, "version"));
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  int major = 0;
  if (parts.size() != 2 || !IsDecimal(parts[0]) || !IsDecimal(parts[1]) || !absl::SimpleAtoi(parts[0], &major) ||
      major < 1) {
    return Broken(absl::StrCat(Quote(version), " is not a format version, two numbers such as \"", kFormatMajor, ".",
                               kFormatMinor, "\""));
  }
  if (major <= kFormatMajor) return absl::OkStatus();
  const absl::StatusOr<std::string> release = StringMember(document, "readable_by");
  return absl::UnimplementedError(absl::StrCat(
      "format version ", Printable(version), " is newer than ", kFormatMajor, ".", kFormatMinor, ", which ", kProducer,
      " reads; ", release.ok() ? Printable(*release) : absl::StrCat("fsdp ", major, ".0.0 or later"), " reads it"));
}

// Only records have "rank" and "parity_files".
absl::Status DecodeRankOf(const JsonView& document, RecordHeader& header) {
  if (!document.Find("rank")) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const int64_t rank, IntegerMember(document, "rank"));
  if (rank >= header.save.world_size) return Broken(absl::StrCat("rank ", rank, " of ", header.save.world_size));
  header.rank = static_cast<int>(rank);
  if (!document.Find("parity_files")) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const int64_t parity, IntegerMember(document, "parity_files"));
  if (parity > kMaxParityFiles) {
    return Broken(absl::StrCat(parity, " parity files, expected at most ", kMaxParityFiles));
  }
  header.parity_files = static_cast<int>(parity);
  return absl::OkStatus();
}

// The members that manifests and records begin with. Bounds on writers and parity files also bound what readers
// allocate.
absl::Status DecodeHeader(const JsonView& document, RecordHeader& header) {
  SaveIdentity& save = header.save;
  FSDP_ASSIGN_OR_RETURN(save.id, DecodeSaveId(document));
  FSDP_ASSIGN_OR_RETURN(save.producer, DecodeProducer(document));
  FSDP_ASSIGN_OR_RETURN(save.step, IntegerMember(document, "step"));
  if (const auto unknown = document.Find("step_is_unknown")) {
    if (unknown->text() != "true" || save.step != 0) {
      return Broken(absl::StrCat("\"step_is_unknown\" of step ", save.step, ", expected true and step 0"));
    }
    save.has_step = false;
  }
  FSDP_ASSIGN_OR_RETURN(save.name, DecodeName(document, save.step));
  FSDP_ASSIGN_OR_RETURN(const std::string type, StringMember(document, "state_dict_type"));
  const absl::StatusOr<StateDictType> known = ParseStateDictType(type);
  if (!known.ok()) return Broken(absl::StrCat("unknown state dict type ", Quote(type)));
  save.type = *known;
  FSDP_ASSIGN_OR_RETURN(const int64_t world_size, IntegerMember(document, "world_size"));
  FSDP_ASSIGN_OR_RETURN(const int64_t writers, IntegerMember(document, "writers"));
  if (constexpr int64_t kMost = std::numeric_limits<int>::max(); world_size > kMost) {
    return Broken(absl::StrCat("a world of ", world_size, " ranks, expected at most ", kMost));
  }
  if (world_size < 1 || writers < 1 || writers > world_size) {
    return Broken(absl::StrCat(writers, " writers of a world of ", world_size, " ranks"));
  }
  if (writers > kMaxRankFiles) return Broken(absl::StrCat(writers, " writers, expected at most ", kMaxRankFiles));
  save.world_size = static_cast<int>(world_size);
  save.writers = static_cast<int>(writers);
  if (const auto attributes = document.Find("attributes")) {
    FSDP_ASSIGN_OR_RETURN(save.attributes, DecodeAttributes(*attributes));
  }
  return DecodeRankOf(document, header);
}

absl::StatusOr<Document> Decode(std::string_view text, const std::string& format) {
  FSDP_RETURN_IF_ERROR(CheckSeal(text));
  FSDP_ASSIGN_OR_RETURN(const JsonView root, JsonView::Parse(text));
  FSDP_ASSIGN_OR_RETURN(const std::string actual, StringMember(root, "format"));
  if (actual != format) return Broken(absl::StrCat("format ", Quote(actual), " is not ", Quote(format)));
  FSDP_RETURN_IF_ERROR(CheckVersion(root));
  FSDP_ASSIGN_OR_RETURN(const std::string digest, StringMember(root, "digest"));
  // The seal was found by its distance from the end, before JSON was parsed; make sure that it is this member.
  if (digest != std::string(SealOf(text))) return Broken("its last member is not its digest");
  Document document;
  DecodeBudget budget(text.size());
  FileIndex files;
  // Files come before parity and values, which refer to them through `files`.
  FSDP_RETURN_IF_ERROR(DecodeHeader(root, document));
  FSDP_RETURN_IF_ERROR(DecodeUnits(root, budget, document.units));
  FSDP_RETURN_IF_ERROR(DecodeFiles(root, budget, document.files, files));
  FSDP_RETURN_IF_ERROR(DecodeParity(root, files, document.parity));
  FSDP_RETURN_IF_ERROR(DecodeValues(root, files, budget, document));
  document.unknown = UnknownMembers(
      root, {"format",  "version",    "producer",        "save_id",      "name",       "step",  "step_is_unknown",
             "writers", "world_size", "state_dict_type", "parity_files", "attributes", "rank",  "mesh",
             "units",   "tensors",    "texts",           "files",        "parity",     "digest"});
  FSDP_RETURN_IF_ERROR(budget.Take(HeapBytes(document.unknown)));
  return document;
}

}  // namespace

absl::StatusOr<Manifest> DecodeManifest(std::string_view text) {
  FSDP_ASSIGN_OR_RETURN(Document document, Decode(text, "fsdp checkpoint"));
  Manifest manifest;
  static_cast<StoredValues&>(manifest) = std::move(static_cast<StoredValues&>(document));
  manifest.save = std::move(document.save);
  manifest.units = std::move(document.units);
  manifest.parity = std::move(document.parity);
  manifest.unknown = std::move(document.unknown);
  manifest.digest = std::string(SealOf(text));
  return manifest;
}

absl::StatusOr<FileRecord> DecodeRecord(std::string_view text) {
  FSDP_ASSIGN_OR_RETURN(Document document, Decode(text, "fsdp rank record"));
  FileRecord record;
  static_cast<StoredValues&>(record) = std::move(static_cast<StoredValues&>(document));
  static_cast<RecordHeader&>(record) = std::move(static_cast<RecordHeader&>(document));
  record.unknown = std::move(document.unknown);
  return record;
}

}  // namespace fsdp
