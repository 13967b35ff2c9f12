// SPDX-License-Identifier: Apache-2.0
//
// Writes manifests and records by hand and not through a JSON library, for two reasons. The form is part of the format:
// one line per tensor, text, file and extent, so that people can read and compare manifests, and equal manifests have
// equal bytes. And a record must have a length that is known before its numbers are (tree_file.cc), which needs a text
// whose length grows with its numbers only. Only strings that need escapes go through nlohmann.
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/format/sealed_json.h"
#include "fsdp/checkpoint/native/format/stored_attributes.h"
#include "fsdp/checkpoint/source/json_token.h"

namespace fsdp {
namespace {

std::string Quoted(const std::string& text) {
  if (IsPlainJson(text)) return absl::StrCat("\"", text, "\"");
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Quoted(std::string_view text) { return Quoted(std::string(text)); }

// Appends `items`, each by `encode`, as an array with one item a line. In place, like everything that may be most of a
// text: of a million tensors it has 250 MB, and each copy would take as much again.
template <typename Item, typename Encode>
void AppendLines(const std::vector<Item>& items, const std::string& indent, Encode encode, std::string& out) {
  if (items.empty()) return absl::StrAppend(&out, "[]");
  const char* separator = "[\n";
  for (const Item& item : items) {
    absl::StrAppend(&out, separator, indent, "  ", encode(item));
    separator = ",\n";
  }
  absl::StrAppend(&out, "\n", indent, "]");
}

template <typename Item, typename Encode>
std::string Inline(const std::vector<Item>& items, Encode encode) {
  return absl::StrCat(
      "[", absl::StrJoin(items, ", ", [&](std::string* out, const Item& item) { out->append(encode(item)); }), "]");
}

std::string EncodeUnit(const FlatUnitLayout& unit) {
  return absl::StrCat("{\"name\": ", Quoted(unit.name), ", \"unsharded_numel\": ", unit.unsharded_numel,
                      ", \"parameters\": ",
                      Inline(unit.parameters,
                             [](const FlatUnitLayout::Entry& entry) {
                               return absl::StrCat("{\"fqn\": ", Quoted(entry.fqn), ", \"offset\": ", entry.offset,
                                                   ", \"numel\": ", entry.numel, "}");
                             }),
                      "}");
}

// The members that identify a value. An optimizer state also has a separate "state", since the name "optim/a.b/exp_avg"
// does not show at which slash the state's name begins.
std::string EncodeKey(const StateKey& key) {
  std::string out = absl::StrCat("\"name\": ", Quoted(key.ToString()));
  if (!key.state.empty()) absl::StrAppend(&out, ", \"state\": ", Quoted(key.state));
  return out;
}

std::string EncodeInterval(const StoredInterval& stored, const StoredValues& values) {
  return absl::StrCat("{\"begin\": ", stored.interval.begin, ", \"end\": ", stored.interval.end,
                      ", \"file\": ", Quoted(values.files[stored.file].name), ", \"offset\": ", stored.offset, "}");
}

std::string EncodeTensor(const StoredTensor& tensor, const StoredValues& values) {
  std::string out = absl::StrCat("{", EncodeKey(tensor.key));
  if (!tensor.aliases.empty()) {
    absl::StrAppend(&out,
                    ", \"aliases\": ", Inline(tensor.aliases, [](const std::string& alias) { return Quoted(alias); }));
  }
  absl::StrAppend(&out, ", \"dtype\": ", Quoted(DTypeName(tensor.dtype)), ", \"shape\": [",
                  absl::StrJoin(tensor.shape.dims(), ", "), "], \"intervals\": ",
                  Inline(tensor.intervals, [&](const StoredInterval& i) { return EncodeInterval(i, values); }),
                  tensor.unknown, "}");
  return out;
}

std::string EncodeText(const StoredText& text, const StoredValues& values) {
  return absl::StrCat("{", EncodeKey(text.key), ", \"file\": ", Quoted(values.files[text.file].name),
                      ", \"offset\": ", text.range.offset, ", \"bytes\": ", text.range.nbytes, "}");
}

std::string EncodeExtent(const StoredExtent& extent) {
  // Without the member a reader assumes kBlockBytes.
  const std::string block = extent.block_bytes == kBlockBytes ? "" : absl::StrCat(", \"block\": ", extent.block_bytes);
  return absl::StrCat(
      "{\"offset\": ", extent.range.offset, ", \"bytes\": ", extent.range.nbytes, block,
      ", \"digests\": ", Inline(extent.digests, [](const Digest& digest) { return Quoted(digest.ToHex()); }), "}");
}

void AppendFile(const StoredFile& file, std::string& out) {
  absl::StrAppend(&out, "{\"name\": ", Quoted(file.name), ", \"bytes\": ", file.nbytes);
  if (file.record) {
    absl::StrAppend(&out, ", \"record\": {\"offset\": ", file.record->offset, ", \"bytes\": ", file.record->nbytes,
                    "}");
  }
  if (file.origin) {
    absl::StrAppend(&out, ", \"origin\": {\"save_id\": ", Quoted(file.origin->save_id),
                    ", \"step\": ", file.origin->step, ", \"name\": ", Quoted(file.origin->name), "}");
  }
  absl::StrAppend(&out, ", \"rest_digest\": ", Quoted(file.rest_digest.ToHex()), ", \"extents\": ");
  AppendLines(file.extents, "    ", EncodeExtent, out);
  absl::StrAppend(&out, file.unknown, "}");
}

// How the ranks form a mesh: `writers` ranks hold different parts, and world_size / writers ranks hold each part.
std::string EncodeMesh(const SaveIdentity& save) {
  const int shards = save.type == StateDictType::kFull ? save.world_size : save.writers;
  const bool divides = shards > 0 && save.world_size % shards == 0;
  return absl::StrCat("{\"replicate\": ", divides ? save.world_size / shards : 1,
                      ", \"shard\": ", divides ? shards : save.world_size, "}");
}

// The members that manifests and records begin with.
std::string EncodeIdentity(const SaveIdentity& save, const char* format) {
  return absl::StrCat("{\n  \"format\": \"", format, "\",\n  \"version\": \"", kFormatMajor, ".", kFormatMinor,
                      "\",\n  \"producer\": ", Quoted(save.producer), ",\n  \"save_id\": ", Quoted(save.id),
                      save.name.empty() ? "" : absl::StrCat(",\n  \"name\": ", Quoted(save.name)),
                      ",\n  \"step\": ", save.step, save.has_step ? "" : ",\n  \"step_is_unknown\": true",
                      ",\n  \"state_dict_type\": ", Quoted(StateDictTypeName(save.type)),
                      ",\n  \"world_size\": ", save.world_size, ",\n  \"writers\": ", save.writers);
}

// Omitted if empty, as in checkpoints from before attributes existed.
std::string EncodeRunAttributes(const SaveIdentity& save) {
  return save.attributes.empty() ? "" : absl::StrCat(",\n  \"attributes\": ", EncodeAttributes(save.attributes, "  "));
}

void AppendMeshAndUnits(const SaveIdentity& save, const std::vector<FlatUnitLayout>& units, std::string& out) {
  absl::StrAppend(&out, ",\n  \"mesh\": ", EncodeMesh(save), ",\n  \"units\": ");
  AppendLines(units, "  ", EncodeUnit, out);
}

// About the length of `values` as text: enough for most, so that the text does not grow in steps.
size_t LengthOf(const StoredValues& values) {
  size_t length = 1000;
  for (const StoredTensor& tensor : values.tensors)
    length += 100 + tensor.key.fqn.size() + 100 * tensor.intervals.size();
  for (const StoredFile& file : values.files) length += 1000 + 100 * file.extents.size();
  return length;
}

void AppendValues(const StoredValues& values, std::string& out) {
  out.reserve(out.size() + LengthOf(values));
  absl::StrAppend(&out, ",\n  \"tensors\": ");
  AppendLines(
      values.tensors, "  ", [&](const StoredTensor& item) { return EncodeTensor(item, values); }, out);
  absl::StrAppend(&out, ",\n  \"texts\": ");
  AppendLines(
      values.texts, "  ", [&](const StoredText& item) { return EncodeText(item, values); }, out);
  absl::StrAppend(&out, ",\n  \"files\": ");
  const char* separator = "[\n";
  for (const StoredFile& file : values.files) {
    absl::StrAppend(&out, separator, "    ");
    AppendFile(file, out);
    separator = ",\n";
  }
  absl::StrAppend(&out, values.files.empty() ? "[]" : "\n  ]");
}

std::string EncodeParity(const Manifest& manifest) {
  if (manifest.parity.files.empty()) return "";
  const auto name = [&](int file) { return Quoted(manifest.files[file].name); };
  return absl::StrCat(",\n  \"parity\": {\"data\": ", Inline(manifest.parity.data, name),
                      ", \"files\": ", Inline(manifest.parity.files, name), "}");
}

}  // namespace

std::string EncodeManifest(const Manifest& manifest) {
  // Unknown members come last, so that a file that repair writes again differs from the original only in what repair
  // changed.
  std::string out = absl::StrCat(EncodeIdentity(manifest.save, "fsdp checkpoint"), EncodeRunAttributes(manifest.save));
  AppendMeshAndUnits(manifest.save, manifest.units, out);
  AppendValues(manifest, out);
  absl::StrAppend(&out, EncodeParity(manifest), manifest.unknown);
  return Seal(std::move(out));
}

std::string EncodeRecord(const FileRecord& record, int64_t nbytes) {
  const std::string parity =
      record.parity_files > 0 ? absl::StrCat(",\n  \"parity_files\": ", record.parity_files) : "";
  std::string out = absl::StrCat(EncodeIdentity(record.save, "fsdp rank record"), ",\n  \"rank\": ", record.rank,
                                 parity, EncodeRunAttributes(record.save));
  AppendMeshAndUnits(record.save, record.units, out);
  AppendValues(record, out);
  absl::StrAppend(&out, record.unknown);
  return Seal(std::move(out), nbytes);
}

}  // namespace fsdp
