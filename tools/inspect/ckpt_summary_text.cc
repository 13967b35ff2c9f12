// SPDX-License-Identifier: Apache-2.0
//
// A CheckpointSummary as text and as JSON. Programs rely on the members of the JSON object (docs/ckpt.md): a member
// that a format cannot fill is null, 0 or empty, and members that only a checkpoint of ours has are left out. Names go
// through Printable() in the text, because a hostile name could otherwise write to the terminal; JSON escapes them by
// itself.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/tensor/run_metadata.h"
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

// Tensors and bytes in a section or in a file.
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

// The tensors of each section, and the tensors and bytes in each file, by the file's index. A tensor counts once for
// each file that has a part of it.
struct Shares {
  Share all;
  std::map<Section, Share> sections;
  std::vector<Share> files;
};

// In one pass over the tensors, since each may be made only for it.
Shares SharesOf(const CheckpointSummary& summary) {
  Shares shares;
  shares.files.resize(summary.manifest.files.size());
  summary.ForEachTensor([&](const StoredTensor& tensor, int64_t) {
    shares.all.Add(PayloadBytes(tensor));
    shares.sections[tensor.key.section].Add(PayloadBytes(tensor));
    // Intervals in one file follow each other, so another file is one that was not counted yet.
    int previous = -1;
    for (const StoredInterval& part : tensor.intervals) {
      shares.files[part.file].bytes += part.interval.size() * SizeOf(tensor.dtype);
      if (part.file != previous) ++shares.files[part.file].tensors;
      previous = part.file;
    }
  });
  return shares;
}

// One line for a checkpoint whose tensors are larger than their data in its files; empty for all others.
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

// The tensors that were not wholly read: the first ones, and the number of the others. --json has all.
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

// The first line. For formats of others it leaves out everything that their files do not record.
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
                      Printable(manifest.save.producer), "\n");
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

std::string FilesText(const Manifest& manifest, const std::vector<Share>& shares) {
  std::string text = "files\n";
  for (size_t i = 0; i < shares.size(); ++i) {
    absl::StrAppendFormat(&text, "  %s  %s, holds %s\n", Printable(manifest.files[i].name),
                          FormatBytes(static_cast<double>(manifest.files[i].nbytes)), shares[i].ToString());
  }
  return text;
}

// The facts that the run recorded about itself, one per line.
std::string AttributesText(const RunMetadata& attributes) {
  if (attributes.empty()) {
    return "attributes  none: it does not record the config, the data and the options of the run that saved it\n";
  }
  std::string text = "attributes\n";
  for (const auto& [name, value] : attributes) {
    absl::StrAppend(&text, "  ", Printable(name), " = ", ToString(value), "\n");
  }
  return text;
}

// Paths need not be UTF-8, but JSON must be: other bytes are replaced.
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

// Null if the checkpoint records none.
Json AttributesJson(const RunMetadata& attributes) {
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

void SummaryText(const CheckpointSummary& summary, bool tensors, const TextSink& sink) {
  const Manifest& manifest = summary.manifest;
  Shares shares = SharesOf(summary);
  std::string text;
  for (const std::string& skipped : summary.skipped) absl::StrAppend(&text, "skipped: ", skipped, "\n");
  if (summary.path != summary.asked_for) {
    absl::StrAppend(&text, summary.asked_for, ": the newest step ", summary.is_verified ? "that verifies " : "", "is ",
                    summary.path, summary.is_verified ? "" : "; its values are not verified", "\n");
  }
  absl::StrAppend(&text, Headline(summary), "tensors\n", "  model      ", shares.sections[Section::kModel].ToString(),
                  "\n");
  if (!summary.traits().model_only) {
    absl::StrAppend(&text, "  optimizer  ", shares.sections[Section::kOptimState].ToString(), "\n");
    absl::StrAppend(&text, "  extra      ", shares.sections[Section::kExtra].ToString(), "\n");
    absl::StrAppend(&text, "texts\n");
    for (const StoredText& stored : manifest.texts) {
      absl::StrAppend(&text, "  ", Printable(stored.key.ToString()), "  ",
                      FormatBytes(static_cast<double>(stored.range.nbytes)), "\n");
    }
  }
  if (summary.traits().is_ours) {
    absl::StrAppend(&text, "flat units  ", manifest.units.size(), "\n", AttributesText(manifest.save.attributes));
  }
  summary.ForEachTensor([&](const StoredTensor& tensor, int64_t) {
    for (const std::string& alias : tensor.aliases) {
      absl::StrAppend(&text, "alias  ", Printable(alias), " is ", Printable(tensor.key.fqn), "\n");
    }
  });
  for (const auto& [name, value] : summary.metadata) {
    absl::StrAppend(&text, "metadata  ", Printable(name), " = ", Printable(value), "\n");
  }
  for (const std::string& left_out : summary.left_out) absl::StrAppend(&text, "left out  ", left_out, "\n");
  absl::StrAppend(&text, ExpansionText(summary.expansion), NotWhollyReadText(summary.partly_read),
                  FilesText(manifest, shares.files));
  // The list of tensors may be larger than memory, so it is passed on tensor by tensor.
  sink(text);
  if (!tensors) return;
  sink("each tensor, and the elements that a file holds of it\n");
  summary.ForEachTensor(
      [&](const StoredTensor& tensor, int64_t stored_bytes) { sink(TensorLine(tensor, manifest, stored_bytes)); });
}

// The object of `json` is left open for the tensors: they are its last member, and each is written separately.
void SummaryJson(const CheckpointSummary& summary, bool tensors, const TextSink& sink) {
  const Manifest& manifest = summary.manifest;
  Shares shares = SharesOf(summary);
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
  json["tensor_count"] = shares.all.tensors;
  json["bytes"] = shares.all.bytes;
  json["stored_bytes"] = summary.source == nullptr ? shares.all.bytes : summary.expansion.stored_bytes;
  json["model"] = ToJson(shares.sections[Section::kModel]);
  json["optim"] = ToJson(shares.sections[Section::kOptimState]);
  json["extra"] = ToJson(shares.sections[Section::kExtra]);
  json["texts"] = Json::array();
  for (const StoredText& text : manifest.texts) json["texts"].push_back(text.key.ToString());
  json["aliases"] = Json::object();
  summary.ForEachTensor([&](const StoredTensor& tensor, int64_t) {
    for (const std::string& alias : tensor.aliases) json["aliases"][alias] = tensor.key.fqn;
  });
  json["units"] = Json::array();
  for (const FlatUnitLayout& unit : manifest.units) {
    json["units"].push_back(
        {{"name", unit.name}, {"parameters", unit.parameters.size()}, {"numel", unit.unsharded_numel}});
  }
  json["metadata"] = summary.metadata;
  json["left_out"] = summary.left_out;
  json["not_wholly_read"] = Json::array();
  for (const NotWhollyRead& tensor : summary.partly_read) {
    json["not_wholly_read"].push_back(
        {{"tensor", tensor.key.ToString()}, {"read", tensor.read}, {"unread", tensor.unread}});
  }
  json["files"] = Json::array();
  for (size_t i = 0; i < shares.files.size(); ++i) {
    json["files"].push_back({{"name", manifest.files[i].name},
                             {"bytes", manifest.files[i].nbytes},
                             {"tensors", shares.files[i].tensors},
                             {"payload_bytes", shares.files[i].bytes}});
  }
  std::string text = ToText(json);
  if (!tensors) return sink(text);
  text.resize(text.rfind("\n}"));
  sink(text);
  bool is_first = true;
  summary.ForEachTensor([&](const StoredTensor& tensor, int64_t stored_bytes) {
    std::string element = absl::StrCat("\n", ToText(TensorJson(tensor, manifest, stored_bytes)));
    element.pop_back();  // its newline; strings of JSON contain none, so all others begin lines to indent
    sink(absl::StrCat(is_first ? ",\n  \"tensors\": [" : ",", absl::StrReplaceAll(element, {{"\n", "\n    "}})));
    is_first = false;
  });
  sink(is_first ? ",\n  \"tensors\": []\n}\n" : "\n  ]\n}\n");
}

std::string ProblemJson(const std::string& path, const absl::Status& status) {
  // A URL that is refused may hold a password, which must not reach a log.
  const bool is_refused = IsS3Url(path) && !ParseS3Url(path).ok();
  return ToText({{"path", is_refused ? WithoutPassword(path) : path}, {"problem", WithFlagNames(status.message())}});
}

}  // namespace fsdp
