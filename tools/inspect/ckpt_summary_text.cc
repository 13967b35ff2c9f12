// SPDX-License-Identifier: Apache-2.0
//
// A CheckpointSummary as text and as JSON. Programs rely on the members of the JSON object (docs/ckpt.md): a member
// that a format cannot fill is null, 0 or empty, and those of a checkpoint of ours alone are left out. Names go through
// Printable() in the text, because a hostile name could otherwise write to the terminal; JSON escapes them by itself.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/quote.h"
#include "fsdp/tensor/attributes.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/inspect/attribute_json.h"
#include "fsdp/tools/inspect/ckpt_summary.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;
using Section = StateKey::Section;

int64_t PayloadBytes(const StoredTensor& tensor) { return tensor.shape.numel() * SizeOf(tensor.dtype); }

// Tensors and bytes of a section, or of a file.
struct Share {
  int64_t tensors = 0;
  int64_t bytes = 0;

  void Add(int64_t nbytes) {
    ++tensors;
    bytes += nbytes;
  }
  std::string ToString() const {
    return absl::StrCat(tensors, tensors == 1 ? " tensor, " : " tensors, ", FormatBytes(static_cast<double>(bytes)));
  }
};

// The tensors of one section: model, optimizer or extra values. One pass over the manifest for each section; it has no
// index by section.
Share ShareOfSection(const Manifest& manifest, Section section) {
  Share share;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (tensor.key.section == section) share.Add(PayloadBytes(tensor));
  }
  return share;
}

// The tensors and bytes in each file, by the file's index. A tensor counts once for each file that has a part of it.
std::vector<Share> SharesOfFiles(const Manifest& manifest) {
  std::vector<Share> shares(manifest.files.size());
  for (const StoredTensor& tensor : manifest.tensors) {
    // Intervals of one file follow each other, so a change of file is a file that was not counted yet.
    int previous = -1;
    for (const StoredInterval& part : tensor.intervals) {
      shares[part.file].bytes += part.interval.size() * SizeOf(tensor.dtype);
      if (part.file != previous) ++shares[part.file].tensors;
      previous = part.file;
    }
  }
  return shares;
}

int64_t StoredBytesOf(const CheckpointSummary& summary, size_t tensor) {
  return summary.stored_bytes.empty() ? PayloadBytes(summary.manifest.tensors[tensor]) : summary.stored_bytes[tensor];
}

// One line for a checkpoint whose tensors are larger than what its files hold of them; empty for all others.
std::string ExpansionText(const Expansion& expansion) {
  if (!expansion.expands()) return "";
  const auto bytes = [](int64_t nbytes) { return FormatBytes(static_cast<double>(nbytes)); };
  const std::string worst = Printable(expansion.worst.ToString());
  const std::string why = expansion.has_expanded_tensor()
                              ? absl::StrCat("the worst is ", worst, ", ", bytes(expansion.worst_expanded_bytes),
                                             " of ", bytes(expansion.worst_stored_bytes))
                              : absl::StrCat("different tensors are views of the same storage, such as ", worst);
  return absl::StrCat("expanded  ", bytes(expansion.expanded_bytes), " of tensors are views of ",
                      bytes(expansion.stored_bytes), "; ", why, "\n");
}

// The tensors whose statistics leave something out: the first ones, and the number of the others. --json has all.
std::string NotWhollyReadText(const std::vector<NotWhollyRead>& tensors) {
  constexpr size_t kNamed = 16;
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, tensors.size()); ++i) {
    absl::StrAppend(&text, "not wholly read  ", Printable(tensors[i].key.ToString()), "  ", tensors[i].read,
                    " elements of ", tensors[i].read + tensors[i].unread, "\n");
  }
  if (tensors.size() > kNamed) absl::StrAppend(&text, "not wholly read  ", tensors.size() - kNamed, " more tensors\n");
  return text;
}

Share ShareOfAll(const Manifest& manifest) {
  Share share;
  for (const StoredTensor& tensor : manifest.tensors) share.Add(PayloadBytes(tensor));
  return share;
}

// The first line. For formats of others it leaves out whatever their files do not say.
std::string Headline(const CheckpointSummary& summary) {
  const Manifest& manifest = summary.manifest;
  if (!summary.traits().is_ours) {
    const std::string step = manifest.save.step < 0 ? "" : absl::StrCat(" of step ", manifest.save.step);
    const std::string writers =
        summary.traits().has_writers ? absl::StrCat(", written by ", manifest.save.world_size, " ranks") : "";
    return absl::StrCat(summary.path, ": ", std::string(summary.traits().headline), step, writers, "\n");
  }
  return absl::StrCat(summary.path, ": a ", std::string(StateDictTypeName(manifest.save.type)), " checkpoint of step ",
                      manifest.save.step, ", world size ", manifest.save.world_size, ", written by ",
                      manifest.save.producer, "\n");
}

// "  model/wte.weight  float32 [257, 48]  49 kB  rank-00000-of-00003.h5[0, 4128) ...": each file with its elements.
std::string TensorLine(const StoredTensor& tensor, const Manifest& manifest, int64_t stored_bytes) {
  std::string line =
      absl::StrFormat("  %s  %s %s  %s ", Printable(tensor.key.ToString()), std::string(DTypeName(tensor.dtype)),
                      tensor.shape.ToString(), FormatBytes(static_cast<double>(PayloadBytes(tensor))));
  if (stored_bytes < PayloadBytes(tensor)) {
    absl::StrAppend(&line, "(", FormatBytes(static_cast<double>(stored_bytes)), " expanded) ");
  }
  for (const StoredInterval& part : tensor.intervals) {
    absl::StrAppend(&line, " ", manifest.files[part.file].name, part.interval.ToString());
  }
  return line + "\n";
}

std::string FilesText(const Manifest& manifest) {
  std::string text = "files\n";
  const std::vector<Share> shares = SharesOfFiles(manifest);
  for (size_t i = 0; i < shares.size(); ++i) {
    absl::StrAppendFormat(&text, "  %s  %s, holds %s\n", Printable(manifest.files[i].name),
                          FormatBytes(static_cast<double>(manifest.files[i].nbytes)), shares[i].ToString());
  }
  return text;
}

// The facts that the run recorded about itself, one a line.
std::string AttributesText(const Attributes& attributes) {
  if (attributes.empty()) {
    return "attributes  none: it does not record the config, the data and the options of the run that saved it\n";
  }
  std::string text = "attributes\n";
  for (const auto& [name, value] : attributes) {
    absl::StrAppend(&text, "  ", Printable(name), " = ", ToString(value), "\n");
  }
  return text;
}

// Paths need not be UTF-8, and JSON must be: bytes that are not are replaced.
std::string ToText(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

Json ToJson(const Share& share) { return {{"tensors", share.tensors}, {"bytes", share.bytes}}; }

// "offset" is in bytes in the file, "begin" and "end" are elements of the whole tensor.
Json TensorJson(const StoredTensor& tensor, const Manifest& manifest, int64_t stored_bytes) {
  Json json = {{"name", tensor.key.ToString()},
               {"dtype", DTypeName(tensor.dtype)},
               {"shape", std::vector<int64_t>(tensor.shape.dims().begin(), tensor.shape.dims().end())},
               {"bytes", PayloadBytes(tensor)},
               {"stored_bytes", stored_bytes},
               {"aliases", tensor.aliases},
               {"shards", Json::array()}};
  for (const StoredInterval& part : tensor.intervals) {
    json["shards"].push_back({{"file", manifest.files[part.file].name},
                              {"begin", part.interval.begin},
                              {"end", part.interval.end},
                              {"offset", part.offset}});
  }
  return json;
}

// Null where the checkpoint records none.
Json AttributesJson(const Attributes& attributes) {
  Json json;
  for (const auto& [name, value] : attributes) json[name] = AttributeJson(value);
  return json;
}

// The members that only checkpoints of ours have.
void AddOwnMembers(const Manifest& manifest, Json& json) {
  json["kind"] = StateDictTypeName(manifest.save.type);
  json["writers"] = manifest.save.writers;
  json["save_id"] = manifest.save.id;
  json["producer"] = manifest.save.producer;
  json["attributes"] = AttributesJson(manifest.save.attributes);
}

}  // namespace

std::string SummaryText(const CheckpointSummary& summary, bool tensors) {
  const Manifest& manifest = summary.manifest;
  std::string text;
  for (const std::string& skipped : summary.skipped) absl::StrAppend(&text, "skipped: ", skipped, "\n");
  if (summary.path != summary.asked_for) {
    absl::StrAppend(&text, summary.asked_for, ": the newest step ", summary.is_remote ? "" : "that verifies ", "is ",
                    summary.path, "\n");
  }
  absl::StrAppend(&text, Headline(summary), "tensors\n", "  model      ",
                  ShareOfSection(manifest, Section::kModel).ToString(), "\n");
  if (!summary.traits().model_only) {
    absl::StrAppend(&text, "  optimizer  ", ShareOfSection(manifest, Section::kOptimState).ToString(), "\n");
    absl::StrAppend(&text, "  extra      ", ShareOfSection(manifest, Section::kExtra).ToString(), "\n");
    absl::StrAppend(&text, "texts\n");
    for (const StoredText& stored : manifest.texts) {
      absl::StrAppend(&text, "  ", Printable(stored.key.ToString()), "  ",
                      FormatBytes(static_cast<double>(stored.range.nbytes)), "\n");
    }
  }
  if (summary.traits().is_ours) {
    absl::StrAppend(&text, "flat units  ", manifest.units.size(), "\n", AttributesText(manifest.save.attributes));
  }
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const std::string& alias : tensor.aliases) {
      absl::StrAppend(&text, "alias  ", Printable(alias), " is ", Printable(tensor.key.fqn), "\n");
    }
  }
  for (const auto& [name, value] : summary.metadata) {
    absl::StrAppend(&text, "metadata  ", Printable(name), " = ", Printable(value), "\n");
  }
  for (const std::string& left_out : summary.left_out) absl::StrAppend(&text, "left out  ", left_out, "\n");
  absl::StrAppend(&text, ExpansionText(summary.expansion), NotWhollyReadText(summary.not_wholly_read),
                  FilesText(manifest));
  if (tensors) {
    absl::StrAppend(&text, "each tensor, and the elements that a file holds of it\n");
    for (size_t i = 0; i < manifest.tensors.size(); ++i) {
      text += TensorLine(manifest.tensors[i], manifest, StoredBytesOf(summary, i));
    }
  }
  return text;
}

std::string SummaryJson(const CheckpointSummary& summary, bool tensors) {
  const Manifest& manifest = summary.manifest;
  Json json = {{"path", summary.path},
               {"format", summary.format->name()},
               {"kind", "full"},
               {"step", nullptr},
               {"world_size", 1}};
  if (summary.path != summary.asked_for) json["root"] = summary.asked_for;
  if (!summary.skipped.empty()) json["skipped"] = summary.skipped;
  if (!summary.problem.empty()) json["problem"] = summary.problem;
  if (summary.traits().has_writers) json["world_size"] = manifest.save.world_size;
  if (summary.traits().is_ours || manifest.save.step >= 0) json["step"] = manifest.save.step;
  if (summary.traits().is_ours) AddOwnMembers(manifest, json);
  const Share all = ShareOfAll(manifest);
  json["tensor_count"] = all.tensors;
  json["bytes"] = all.bytes;
  json["stored_bytes"] = summary.stored_bytes.empty() ? all.bytes : summary.expansion.stored_bytes;
  json["model"] = ToJson(ShareOfSection(manifest, Section::kModel));
  json["optim"] = ToJson(ShareOfSection(manifest, Section::kOptimState));
  json["extra"] = ToJson(ShareOfSection(manifest, Section::kExtra));
  json["texts"] = Json::array();
  for (const StoredText& text : manifest.texts) json["texts"].push_back(text.key.ToString());
  json["aliases"] = Json::object();
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const std::string& alias : tensor.aliases) json["aliases"][alias] = tensor.key.fqn;
  }
  json["units"] = Json::array();
  for (const FlatUnitLayout& unit : manifest.units) {
    json["units"].push_back(
        {{"name", unit.name}, {"parameters", unit.parameters.size()}, {"numel", unit.unsharded_numel}});
  }
  json["metadata"] = summary.metadata;
  json["left_out"] = summary.left_out;
  json["not_wholly_read"] = Json::array();
  for (const NotWhollyRead& tensor : summary.not_wholly_read) {
    json["not_wholly_read"].push_back(
        {{"tensor", tensor.key.ToString()}, {"read", tensor.read}, {"unread", tensor.unread}});
  }
  json["files"] = Json::array();
  const std::vector<Share> shares = SharesOfFiles(manifest);
  for (size_t i = 0; i < shares.size(); ++i) {
    json["files"].push_back({{"name", manifest.files[i].name},
                             {"bytes", manifest.files[i].nbytes},
                             {"tensors", shares[i].tensors},
                             {"payload_bytes", shares[i].bytes}});
  }
  if (tensors) {
    json["tensors"] = Json::array();
    for (size_t i = 0; i < manifest.tensors.size(); ++i) {
      json["tensors"].push_back(TensorJson(manifest.tensors[i], manifest, StoredBytesOf(summary, i)));
    }
  }
  return ToText(json);
}

std::string ProblemJson(const std::string& path, const absl::Status& status) {
  return ToText({{"path", path}, {"problem", WithFlagNames(status.message())}});
}

}  // namespace fsdp
