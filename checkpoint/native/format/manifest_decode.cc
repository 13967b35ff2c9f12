// SPDX-License-Identifier: Apache-2.0
//
// Reads manifests and records, which may be damaged or hostile. The order of the checks matters:
//
//   1. The seal: a digest over the text. It finds every accidental damage before a byte is parsed.
//   2. JSON, with duplicate names and deep nesting refused (json_document.h).
//   3. Format and version, so that a text of a later release is reported as such and not as damaged.
//   4. Header, units, files, and then tensors and texts, which refer to files by name.
//
// The seal is not a signature, so a crafted text passes it; hence every number is bounded, a file name cannot leave the
// directory, and the byte ranges of tensors and texts must be inside an extent of their file. A decoded manifest can
// then be used without further checks. Members that this release does not know are kept as text and written back by
// repair, as docs/checkpoint_format.md demands of readers of a minor version.
//
// Decoders return an error without the place; each caller adds the name of the file, tensor or text that it knows.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/format/named_step.h"
#include "fsdp/checkpoint/native/format/sealed_json.h"
#include "fsdp/checkpoint/native/format/stored_attributes.h"
#include "fsdp/checkpoint/source/json_document.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

using nlohmann::json;
// From the name of a file to its index in StoredValues::files. JSON refers to files by name.
using FileIndex = absl::flat_hash_map<std::string, int>;

// Every member that a manifest or a record can have. Both kinds of text are checked in the same way, and each caller
// takes the members of its kind.
struct Document : RecordHeader, StoredValues {
  StoredParity parity;
  std::string unknown;
};

absl::Status Broken(const std::string& what) { return absl::DataLossError(what); }

// `status`, with `what` as the place.
absl::Status In(const std::string& what, const absl::Status& status) { return Annotate(status, what); }

// Guarantees that range.end() does not overflow.
absl::StatusOr<ByteRange> DecodeRange(const json& object) {
  FSDP_ASSIGN_OR_RETURN(const int64_t offset, IntegerMember(object, "offset"));
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, IntegerMember(object, "bytes"));
  if (nbytes > std::numeric_limits<int64_t>::max() - offset) return Broken("offset and bytes overflow");
  return ByteRange{offset, nbytes};
}

absl::StatusOr<Digest> DecodeDigest(const json& value) {
  const std::string* hex = value.get_ptr<const json::string_t*>();
  if (hex == nullptr) return Broken("a digest is not a string");
  absl::StatusOr<Digest> digest = ParseDigest(*hex);
  return digest.ok() ? digest : absl::StatusOr<Digest>(Broken(absl::StrCat(Quote(*hex), " is not a digest")));
}

// Programs print it in a line of their own words.
absl::StatusOr<std::string> DecodeProducer(const json& document) {
  constexpr size_t kMaxBytes = 256;
  FSDP_ASSIGN_OR_RETURN(std::string producer, StringMember(document, "producer"));
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (producer.size() <= kMaxBytes && std::none_of(producer.begin(), producer.end(), is_control)) return producer;
  return Broken(absl::StrCat("member \"producer\" is ", Quote(producer), ", expected at most ", kMaxBytes,
                             " bytes without control characters"));
}

// The name of the checkpoint, if it is not a step's; empty otherwise.
absl::StatusOr<std::string> DecodeName(const json& document, int64_t step) {
  if (!document.contains("name")) return std::string();
  FSDP_ASSIGN_OR_RETURN(std::string name, StringMember(document, "name"));
  const absl::Status status = CheckCheckpointName(name, step);
  return status.ok() ? absl::StatusOr<std::string>(std::move(name))
                     : Broken(absl::StrCat("member \"name\": ", status.message()));
}

// Object stores and staged directories have it in the names of things, so it must be as NewSaveId makes it.
absl::StatusOr<std::string> DecodeSaveId(const json& object) {
  FSDP_ASSIGN_OR_RETURN(std::string id, StringMember(object, "save_id"));
  if (ParseDigest(id).ok()) return id;
  return Broken(absl::StrCat("member \"save_id\" is ", Quote(id), ", expected 32 lower-case hexadecimal digits"));
}

absl::StatusOr<StoredExtent> DecodeExtent(const json& object) {
  StoredExtent extent;
  FSDP_ASSIGN_OR_RETURN(extent.range, DecodeRange(object));
  FSDP_ASSIGN_OR_RETURN(const json* digests, ArrayMember(object, "digests"));
  if (extent.range.nbytes == 0) return Broken(absl::StrCat("an empty extent at byte ", extent.range.offset));
  if (object.contains("block")) {
    FSDP_ASSIGN_OR_RETURN(extent.block_bytes, IntegerMember(object, "block"));
    if (!IsDigestBlock(extent.block_bytes)) {
      return Broken(absl::StrCat(Describe(extent.range), " have digests of blocks of ", extent.block_bytes,
                                 " bytes, expected a power of two from 65536 to ", kBlockBytes));
    }
  }
  const int64_t blocks = extent.blocks();
  if (static_cast<int64_t>(digests->size()) != blocks) {
    return Broken(absl::StrCat(Describe(extent.range), " have ", digests->size(), " digests, expected ", blocks));
  }
  extent.digests.reserve(blocks);
  for (const json& value : *digests) {
    FSDP_ASSIGN_OR_RETURN(const Digest digest, DecodeDigest(value));
    extent.digests.push_back(digest);
  }
  return extent;
}

// OK when extents are sorted and disjoint, and they and the record are inside the file. ExtentAt needs this order.
absl::Status CheckRanges(const StoredFile& file) {
  std::vector<ByteRange> ranges;
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

absl::StatusOr<StoredFile> DecodeFile(const json& object) {
  StoredFile file;
  FSDP_ASSIGN_OR_RETURN(file.name, StringMember(object, "name"));
  FSDP_RETURN_IF_ERROR(CheckFileName(file.name));
  FSDP_ASSIGN_OR_RETURN(file.nbytes, IntegerMember(object, "bytes"));
  if (const auto record = object.find("record"); record != object.end()) {
    FSDP_ASSIGN_OR_RETURN(file.record, DecodeRange(*record));
  }
  if (const auto origin = object.find("origin"); origin != object.end()) {
    file.origin.emplace();
    FSDP_ASSIGN_OR_RETURN(file.origin->save_id, DecodeSaveId(*origin));
    FSDP_ASSIGN_OR_RETURN(file.origin->step, IntegerMember(*origin, "step"));
    FSDP_ASSIGN_OR_RETURN(file.origin->name, StringMember(*origin, "name"));
    FSDP_RETURN_IF_ERROR(In("member \"origin\"", CheckFileName(file.origin->name)));
  }
  const auto digest = object.find("rest_digest");
  if (digest == object.end()) return Broken("member \"rest_digest\" is missing");
  FSDP_ASSIGN_OR_RETURN(file.rest_digest, DecodeDigest(*digest));
  FSDP_ASSIGN_OR_RETURN(const json* extents, ArrayMember(object, "extents"));
  for (const json& value : *extents) {
    FSDP_ASSIGN_OR_RETURN(StoredExtent extent, DecodeExtent(value));
    file.extents.push_back(std::move(extent));
  }
  FSDP_RETURN_IF_ERROR(CheckRanges(file));
  file.unknown = UnknownMembers(object, {"name", "bytes", "record", "origin", "rest_digest", "extents"});
  return file;
}

absl::Status DecodeFiles(const json& document, StoredValues& values, FileIndex& index) {
  FSDP_ASSIGN_OR_RETURN(const json* files, ArrayMember(document, "files"));
  int64_t nbytes = 0;
  for (const json& value : *files) {
    absl::StatusOr<StoredFile> file = DecodeFile(value);
    if (!file.ok()) return In(absl::StrCat("file ", NameOf(value)), file.status());
    if (!index.emplace(file->name, static_cast<int>(values.files.size())).second) {
      return Broken(absl::StrCat("file ", Quote(file->name), " is named twice"));
    }
    if (file->name == kManifestName) return Broken("it names itself among the files");
    if (__builtin_add_overflow(nbytes, file->nbytes, &nbytes)) {
      return Broken(absl::StrCat("the files up to ", Quote(file->name), " have 2^63 bytes or more"));
    }
    values.files.push_back(*std::move(file));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> DecodeFileName(const json& object, const FileIndex& index) {
  FSDP_ASSIGN_OR_RETURN(const std::string name, StringMember(object, "file"));
  const auto it = index.find(name);
  if (it == index.end()) return Broken(absl::StrCat("file ", Quote(name), " is not among the files"));
  return it->second;
}

// OK when `range` is inside one extent of the file.
absl::Status CheckInExtent(const StoredFile& file, const ByteRange& range) {
  const auto after =
      std::upper_bound(file.extents.begin(), file.extents.end(), range.offset,
                       [](int64_t offset, const StoredExtent& extent) { return offset < extent.range.offset; });
  const bool inside = after != file.extents.begin() && range.end() <= std::prev(after)->range.end();
  if (inside) return absl::OkStatus();
  return Broken(absl::StrCat(Describe(range), " of ", file.name, " are not inside an extent"));
}

absl::StatusOr<StateKey> DecodeKey(const json& object) {
  FSDP_ASSIGN_OR_RETURN(const std::string name, StringMember(object, "name"));
  StateKey key;
  if (name == "optim/param_groups") {
    key = StateKey::ParamGroups();
  } else if (absl::StartsWith(name, "model/")) {
    key = StateKey::Model(name.substr(6));
  } else if (absl::StartsWith(name, "extra/")) {
    key = StateKey::Extra(name.substr(6));
  } else if (absl::StartsWith(name, "optim/state/")) {
    FSDP_ASSIGN_OR_RETURN(const std::string state, StringMember(object, "state"));
    // Both the FQN and the state may contain slashes, so only the separate "state" member tells how to cut the name.
    const std::string fqn_and_slash = name.substr(12, name.size() - 12 - std::min(name.size() - 12, state.size()));
    if (fqn_and_slash.empty() || fqn_and_slash.back() != '/' || !absl::EndsWith(name, state)) {
      return Broken(absl::StrCat("the name does not end with its state ", Quote(state)));
    }
    key = StateKey::OptimState(fqn_and_slash.substr(0, fqn_and_slash.size() - 1), state);
  } else {
    return Broken("the name has no known section");
  }
  const absl::Status valid = CheckStateKey(key);
  return valid.ok() ? absl::StatusOr<StateKey>(std::move(key)) : Broken(std::string(valid.message()));
}

absl::StatusOr<StoredInterval> DecodeInterval(const json& object, const StoredTensor& tensor,
                                              const StoredValues& values, const FileIndex& index) {
  StoredInterval stored;
  FSDP_ASSIGN_OR_RETURN(stored.interval.begin, IntegerMember(object, "begin"));
  FSDP_ASSIGN_OR_RETURN(stored.interval.end, IntegerMember(object, "end"));
  FSDP_ASSIGN_OR_RETURN(stored.file, DecodeFileName(object, index));
  FSDP_ASSIGN_OR_RETURN(stored.offset, IntegerMember(object, "offset"));
  if (stored.interval.begin > stored.interval.end || stored.interval.end > tensor.shape.numel()) {
    return Broken(absl::StrCat("interval ", stored.interval.ToString(), " of ", tensor.shape.numel(), " elements"));
  }
  // An empty interval has no bytes, so its offset needs no extent. Neither multiplication nor sum below may wrap: a
  // negative size would pass CheckInExtent.
  if (stored.interval.empty()) return stored;
  ByteRange range = {stored.offset, 0};
  if (__builtin_mul_overflow(stored.interval.size(), SizeOf(tensor.dtype), &range.nbytes) ||
      range.nbytes > std::numeric_limits<int64_t>::max() - range.offset) {
    return Broken("the offset overflows");
  }
  FSDP_RETURN_IF_ERROR(CheckInExtent(values.files[stored.file], range));
  return stored;
}

// Intervals are sorted here, so that readers can bisect; whether they cover the tensor is left to CheckCovered, since a
// record has only some of them.
absl::StatusOr<StoredTensor> DecodeTensor(const json& object, const StoredValues& values, const FileIndex& index) {
  StoredTensor tensor;
  FSDP_ASSIGN_OR_RETURN(tensor.key, DecodeKey(object));
  FSDP_ASSIGN_OR_RETURN(const std::string dtype, StringMember(object, "dtype"));
  if (tensor.key.section == StateKey::Section::kParamGroups) return Broken("param_groups are a text");
  const absl::StatusOr<DType> known = ParseDType(dtype);
  if (!known.ok()) return Broken(absl::StrCat("unknown dtype ", Quote(dtype)));
  tensor.dtype = *known;
  FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, IntegerArrayMember(object, "shape"));
  const absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) return Broken(std::string(shape.status().message()));
  tensor.shape = *shape;
  if (object.contains("aliases")) {
    FSDP_ASSIGN_OR_RETURN(tensor.aliases, StringArrayMember(object, "aliases"));
  }
  FSDP_ASSIGN_OR_RETURN(const json* intervals, ArrayMember(object, "intervals"));
  for (const json& value : *intervals) {
    FSDP_ASSIGN_OR_RETURN(const StoredInterval stored, DecodeInterval(value, tensor, values, index));
    tensor.intervals.push_back(stored);
  }
  std::sort(tensor.intervals.begin(), tensor.intervals.end(),
            [](const StoredInterval& a, const StoredInterval& b) { return a.interval.begin < b.interval.begin; });
  tensor.unknown = UnknownMembers(object, {"name", "state", "dtype", "shape", "aliases", "intervals"});
  return tensor;
}

absl::StatusOr<StoredText> DecodeText(const json& object, const StoredValues& values, const FileIndex& index) {
  StoredText text;
  FSDP_ASSIGN_OR_RETURN(text.key, DecodeKey(object));
  FSDP_ASSIGN_OR_RETURN(text.file, DecodeFileName(object, index));
  FSDP_ASSIGN_OR_RETURN(text.range, DecodeRange(object));
  if (text.range.nbytes > kMaxTextBytes) return Broken(absl::StrCat("a text of ", text.range.nbytes, " bytes"));
  if (text.range.nbytes > 0) FSDP_RETURN_IF_ERROR(CheckInExtent(values.files[text.file], text.range));
  return text;
}

// A name denotes one value: no two tensors, texts or aliases may share one. Readers add up the bytes of all tensors.
absl::Status DecodeValues(const json& document, const FileIndex& index, StoredValues& values) {
  std::set<StateKey> keys;
  std::set<std::string> aliases;
  int64_t total = 0;
  FSDP_ASSIGN_OR_RETURN(const json* tensors, ArrayMember(document, "tensors"));
  for (const json& value : *tensors) {
    absl::StatusOr<StoredTensor> tensor = DecodeTensor(value, values, index);
    if (!tensor.ok()) return In(absl::StrCat("tensor ", NameOf(value)), tensor.status());
    if (!keys.insert(tensor->key).second) return Broken(absl::StrCat("tensor ", NameOf(value), " is named twice"));
    int64_t nbytes = 0;
    if (__builtin_mul_overflow(tensor->shape.numel(), SizeOf(tensor->dtype), &nbytes) ||
        __builtin_add_overflow(total, nbytes, &total)) {
      return Broken(absl::StrCat("the tensors up to ", NameOf(value), " have 2^63 bytes or more"));
    }
    for (const std::string& alias : tensor->aliases) {
      if (const absl::Status valid = CheckTensorName(alias); !valid.ok()) return Broken(std::string(valid.message()));
      if (!aliases.insert(alias).second) return Broken(absl::StrCat("alias ", Quote(alias), " is named twice"));
    }
    values.tensors.push_back(*std::move(tensor));
  }
  FSDP_ASSIGN_OR_RETURN(const json* texts, ArrayMember(document, "texts"));
  for (const json& value : *texts) {
    absl::StatusOr<StoredText> text = DecodeText(value, values, index);
    if (!text.ok()) return In(absl::StrCat("text ", NameOf(value)), text.status());
    if (!keys.insert(text->key).second) return Broken(absl::StrCat("text ", NameOf(value), " is named twice"));
    values.texts.push_back(*std::move(text));
  }
  for (const std::string& alias : aliases) {
    if (keys.count(StateKey::Model(alias)) != 0) {
      return Broken(absl::StrCat(Quote(alias), " is a tensor and an alias"));
    }
  }
  return absl::OkStatus();
}

// Parameters of a unit must be inside its flat parameter: views and loads compute offsets from them.
absl::Status DecodeUnits(const json& document, std::vector<FlatUnitLayout>& out) {
  FSDP_ASSIGN_OR_RETURN(const json* units, ArrayMember(document, "units"));
  for (const json& value : *units) {
    FlatUnitLayout unit;
    FSDP_ASSIGN_OR_RETURN(unit.name, StringMember(value, "name"));
    FSDP_ASSIGN_OR_RETURN(unit.unsharded_numel, IntegerMember(value, "unsharded_numel"));
    FSDP_ASSIGN_OR_RETURN(const json* parameters, ArrayMember(value, "parameters"));
    for (const json& parameter : *parameters) {
      FlatUnitLayout::Entry entry;
      FSDP_ASSIGN_OR_RETURN(entry.fqn, StringMember(parameter, "fqn"));
      if (const absl::Status valid = CheckTensorName(entry.fqn); !valid.ok()) {
        return Broken(absl::StrCat("unit ", Quote(unit.name), ": ", valid.message()));
      }
      FSDP_ASSIGN_OR_RETURN(entry.offset, IntegerMember(parameter, "offset"));
      FSDP_ASSIGN_OR_RETURN(entry.numel, IntegerMember(parameter, "numel"));
      if (entry.offset > unit.unsharded_numel || entry.numel > unit.unsharded_numel - entry.offset) {
        return Broken(absl::StrCat("unit ", Quote(unit.name), ": parameter ", Quote(entry.fqn), " is outside of it"));
      }
      unit.parameters.push_back(std::move(entry));
    }
    out.push_back(std::move(unit));
  }
  return absl::OkStatus();
}

absl::Status DecodeFileNames(const json& object, const char* member, const FileIndex& index, std::vector<int>& out) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, StringArrayMember(object, member));
  for (const std::string& name : names) {
    const auto it = index.find(name);
    if (it == index.end()) return Broken(absl::StrCat("file ", Quote(name), " is not among the files"));
    out.push_back(it->second);
  }
  return absl::OkStatus();
}

// Each file of a parity code has one row of its matrix, so no file may be named twice, as data or as parity.
absl::Status DecodeParity(const json& document, const FileIndex& index, StoredParity& out) {
  const auto parity = document.find("parity");
  if (parity == document.end()) return absl::OkStatus();
  if (!parity->is_object()) return Broken("member \"parity\" is not an object");
  FSDP_RETURN_IF_ERROR(DecodeFileNames(*parity, "data", index, out.data));
  FSDP_RETURN_IF_ERROR(DecodeFileNames(*parity, "files", index, out.files));
  std::set<int> all(out.data.begin(), out.data.end());
  all.insert(out.files.begin(), out.files.end());
  if (all.size() == out.data.size() + out.files.size()) return absl::OkStatus();
  return Broken("parity names a file twice");
}

// True for a number as we print it: no sign, no blanks, no leading zeros.
bool IsDecimal(const std::string& text) {
  const bool is_digits = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  return is_digits && !text.empty() && (text == "0" || text[0] != '0');
}

// Any minor version of a known major one is read. A later major version names the release that reads it.
absl::Status CheckVersion(const json& document) {
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

// The members that manifests and records begin with. Bounds on writers and parity files also bound what readers
// allocate.
absl::Status DecodeHeader(const json& document, RecordHeader& header) {
  SaveIdentity& save = header.save;
  FSDP_ASSIGN_OR_RETURN(save.id, DecodeSaveId(document));
  FSDP_ASSIGN_OR_RETURN(save.producer, DecodeProducer(document));
  FSDP_ASSIGN_OR_RETURN(save.step, IntegerMember(document, "step"));
  FSDP_ASSIGN_OR_RETURN(save.name, DecodeName(document, save.step));
  FSDP_ASSIGN_OR_RETURN(const std::string type, StringMember(document, "state_dict_type"));
  const absl::StatusOr<StateDictType> known = ParseStateDictType(type);
  if (!known.ok()) return Broken(absl::StrCat("unknown state dict type ", Quote(type)));
  save.type = *known;
  FSDP_ASSIGN_OR_RETURN(const int64_t world_size, IntegerMember(document, "world_size"));
  FSDP_ASSIGN_OR_RETURN(const int64_t writers, IntegerMember(document, "writers"));
  if (world_size < 1 || writers < 1 || writers > world_size || world_size > std::numeric_limits<int>::max()) {
    return Broken(absl::StrCat(writers, " writers of a world of ", world_size, " ranks"));
  }
  if (writers > kMaxRankFiles) return Broken(absl::StrCat(writers, " writers, expected at most ", kMaxRankFiles));
  save.world_size = static_cast<int>(world_size);
  save.writers = static_cast<int>(writers);
  if (const auto attributes = document.find("attributes"); attributes != document.end()) {
    FSDP_ASSIGN_OR_RETURN(save.attributes, DecodeAttributes(*attributes));
  }
  // Only records have "rank" and "parity_files".
  if (!document.contains("rank")) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const int64_t rank, IntegerMember(document, "rank"));
  if (rank >= world_size) return Broken(absl::StrCat("rank ", rank, " of ", world_size));
  header.rank = static_cast<int>(rank);
  if (!document.contains("parity_files")) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const int64_t parity, IntegerMember(document, "parity_files"));
  if (parity > kMaxParityFiles) {
    return Broken(absl::StrCat(parity, " parity files, expected at most ", kMaxParityFiles));
  }
  header.parity_files = static_cast<int>(parity);
  return absl::OkStatus();
}

absl::StatusOr<Document> Decode(std::string_view text, const std::string& format) {
  FSDP_RETURN_IF_ERROR(CheckSeal(text));
  FSDP_ASSIGN_OR_RETURN(const json root, ParseJson(text));
  FSDP_ASSIGN_OR_RETURN(const std::string actual, StringMember(root, "format"));
  if (actual != format) return Broken(absl::StrCat("format ", Quote(actual), " is not ", Quote(format)));
  FSDP_RETURN_IF_ERROR(CheckVersion(root));
  FSDP_ASSIGN_OR_RETURN(const std::string digest, StringMember(root, "digest"));
  // The seal was found by its distance from the end, before JSON was parsed; make sure that it is this member.
  if (digest != std::string(SealOf(text))) return Broken("its last member is not its digest");
  Document document;
  FileIndex files;
  // Files come before parity and values, which refer to them through `files`.
  FSDP_RETURN_IF_ERROR(DecodeHeader(root, document));
  FSDP_RETURN_IF_ERROR(DecodeUnits(root, document.units));
  FSDP_RETURN_IF_ERROR(DecodeFiles(root, document, files));
  FSDP_RETURN_IF_ERROR(DecodeParity(root, files, document.parity));
  FSDP_RETURN_IF_ERROR(DecodeValues(root, files, document));
  document.unknown = UnknownMembers(
      root, {"format", "version", "producer", "save_id", "name", "step", "state_dict_type", "world_size", "writers",
             "rank", "parity_files", "attributes", "mesh", "units", "tensors", "texts", "files", "parity", "digest"});
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
