// SPDX-License-Identifier: Apache-2.0
//
// A CheckpointSummary as text and as JSON. Programs rely on the members of the JSON object (docs/ckpt.md): a member
// that a format cannot fill is null, 0 or empty, and members that only a checkpoint of ours has are left out. Names go
// through Printable() in the text, because a hostile name could otherwise write to the terminal; JSON escapes them by
// itself.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/escape_text.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/shell_word.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_dtype.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/tensor/run_metadata.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/inspect/attribute_json.h"
#include "fsdp/tools/inspect/ckpt_summary.h"
#include "fsdp/tools/inspect/printed_tensors.h"
#include "fsdp/tools/inspect/summary_shares.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;
using Section = StateKey::Section;

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
    const std::string step = manifest.save.has_step ? absl::StrCat(" of step ", manifest.save.step) : "";
    const std::string writers =
        summary.traits().has_writers ? absl::StrCat(", written by ", Counted(manifest.save.world_size, "rank")) : "";
    return absl::StrCat(summary.path, ": ", std::string(summary.traits().headline), step, writers, "\n");
  }
  return absl::StrCat(summary.path, ": a ", std::string(StateDictTypeName(manifest.save.type)), " checkpoint of ",
                      manifest.save.StepText(), ", world size ", manifest.save.world_size, ", written by ",
                      Printable(manifest.save.producer), "\n");
}

// "  model/wte.weight  float32 [257, 48]   49 kB  rank-00000-of-00003.h5[0, 4128) ...": each file with its elements, or
// the first ones of very many. If there is only one file, each tensor is in that.
std::string TensorLine(const StoredTensor& tensor, const Manifest& manifest, int64_t stored_bytes,
                       const TensorColumnWidths& columns) {
  std::string line =
      absl::StrFormat("  %-*s  %-*s  %7s", columns.name, Printable(tensor.key.ToString()), columns.type,
                      TensorColumnWidths::TypeText(tensor), FormatBytes(static_cast<double>(PayloadBytes(tensor))));
  if (stored_bytes < PayloadBytes(tensor)) {
    absl::StrAppend(&line, " (", FormatBytes(static_cast<double>(stored_bytes)), " expanded)");
  }
  if (manifest.files.size() < 2) return line + "\n";
  absl::StrAppend(&line, " ");
  constexpr size_t kShown = 4;
  const size_t parts = tensor.intervals.size();
  const size_t shown = parts <= kShown ? parts : kShown - 2;
  for (size_t i = 0; i < shown; ++i) {
    const StoredInterval& part = tensor.intervals[i];
    absl::StrAppend(&line, " ", Printable(manifest.files[part.file].name), part.interval.ToString());
  }
  if (shown < parts) absl::StrAppend(&line, " and ", parts - shown, " more (--json has all)");
  return line + "\n";
}

// A name that cannot be matched, such as one of a megabyte, is listed: nothing is hidden that was not looked at.
bool IsListed(const StoredTensor& tensor, const ListedTensors& list) {
  return list.filter.Keeps(tensor.key.ToString()).value_or(true);
}

// A line for each section that has tensors, and for the model, since a missing model is worth a line.
std::string SectionsText(SummaryShares& shares) {
  std::string text = "tensors\n";
  const std::pair<Section, const char*> sections[] = {
      {Section::kModel, "model      "}, {Section::kOptimState, "optimizer  "}, {Section::kExtra, "extra      "}};
  for (const auto& [section, title] : sections) {
    const SectionShare& share = shares.sections[section];
    if (section != Section::kModel && share.share.tensors == 0) continue;
    absl::StrAppend(&text, "  ", title, share.ToString(), "\n");
  }
  return text;
}

std::string AliasesText(const CheckpointSummary& summary) {
  std::string text;
  summary.ForEachTensor([&](const StoredTensor& tensor, int64_t) {
    for (const std::string& alias : tensor.aliases) {
      absl::StrAppend(&text, "alias  ", Printable(alias), " is ", Printable(tensor.key.fqn), "\n");
    }
  });
  return text;
}

// " = 3", or the size of a text that is not short.
std::string ValueText(const CheckpointSummary& summary, const StoredText& stored) {
  const auto value = summary.short_texts.find(stored.key);
  if (value == summary.short_texts.end()) {
    return absl::StrCat("  ", FormatBytes(static_cast<double>(stored.range.nbytes)));
  }
  return absl::StrCat(" = ", EscapeText(value->second, "\""));
}

// "  extra/step = 3". A value that several parameters have in their optimizer state is one line, where it is first:
// "  extra/optim/state/*/step = 7  of 148 parameters".
std::string TextsText(const CheckpointSummary& summary) {
  const auto of_state = [&](const StoredText& stored) {
    const std::optional<StateName> state = StateOfKey(stored.key);
    return state ? absl::StrCat("  ", Printable(ExtraOfState("*", state->path).ToString()), ValueText(summary, stored))
                 : "";
  };
  std::map<std::string, int64_t> parameters;  // by line
  for (const StoredText& stored : summary.manifest.texts) ++parameters[of_state(stored)];
  std::string text = summary.manifest.texts.empty() ? "" : "texts\n";
  for (const StoredText& stored : summary.manifest.texts) {
    const std::string line = of_state(stored);
    int64_t& count = parameters[line];
    if (line.empty() || count == 1) {
      absl::StrAppend(&text, "  ", Printable(stored.key.ToString()), ValueText(summary, stored), "\n");
    } else if (count > 1) {
      absl::StrAppend(&text, line, "  of ", std::exchange(count, 0), " parameters\n");
    }
  }
  return text;
}

// What is in a file: in one without tensors what it is for.
std::string HeldText(const Manifest& manifest, size_t file, const TensorShare& share) {
  const std::vector<int>& parity = manifest.parity.files;
  if (std::find(parity.begin(), parity.end(), static_cast<int>(file)) != parity.end()) {
    return "makes lost or damaged rank files again";
  }
  if (share.tensors > 0) return absl::StrCat("holds ", share.ToString());
  return manifest.files[file].name == kCheckpointFileName ? "shows all tensors, for h5py and other programs"
                                                          : "holds no tensors";
}

std::string FilesText(const Manifest& manifest, const std::vector<TensorShare>& shares) {
  constexpr int kWidest = 40;  // a longer name moves its row
  int width = 0;
  for (const StoredFile& file : manifest.files) {
    const int size = static_cast<int>(Printable(file.name).size());
    if (size <= kWidest) width = std::max(width, size);
  }
  std::string text = "files\n";
  for (size_t i = 0; i < shares.size(); ++i) {
    absl::StrAppendFormat(&text, "  %-*s  %7s, %s\n", width, Printable(manifest.files[i].name),
                          FormatBytes(static_cast<double>(manifest.files[i].nbytes)), HeldText(manifest, i, shares[i]));
  }
  return text;
}

// The command that makes a usual form of a format of others: safetensors, or a checkpoint of ours if there is more than
// a model.
std::string ConvertText(const CheckpointSummary& summary, SummaryShares& shares) {
  if (summary.traits().is_ours || summary.traits().is_root || shares.all.tensors == 0) return "";
  for (const std::string& note : summary.layout.notes) {
    // An adapter or a part of a model, of which the note has the next step.
    if (absl::StrContains(note, "`ckpt merge") || absl::StrContains(note, "give the directory")) return "";
  }
  const bool is_training = shares.sections[Section::kOptimState].share.tensors > 0;
  const std::map<DType, int64_t>& dtypes = shares.sections[Section::kModel].dtypes;
  const bool fits_safetensors =
      std::all_of(dtypes.begin(), dtypes.end(), [](const auto& dtype) { return HasSafetensorsDType(dtype.first); });
  const bool is_safetensors = summary.format->HasSuffix("model.safetensors");
  const char* const model = is_safetensors || !fits_safetensors ? "model.pt" : "model.safetensors";
  return absl::StrCat("to convert it  ckpt convert ", ShellWord(summary.path), " ", is_training ? "checkpoint" : model,
                      "\n");
}

// What was decided about the values of a file that does not say which of them are a model; empty for other files.
std::string LayoutText(const SourceLayout& layout) {
  std::string text;
  if (!layout.text.empty()) absl::StrAppend(&text, "layout  ", layout.text, "\n");
  for (const std::string& note : layout.notes) absl::StrAppend(&text, "note  ", WithFlagNames(note), "\n");
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

Json ToJson(const SectionShare& section) {
  Json json = {{"tensors", section.share.tensors}, {"bytes", section.share.bytes}, {"elements", section.elements}};
  json["dtypes"] = Json::object();
  for (const auto& [dtype, count] : section.dtypes) json["dtypes"][std::string(DTypeName(dtype))] = count;
  return json;
}

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

void SummaryText(const CheckpointSummary& summary, const ListedTensors& tensors, const TextSink& sink) {
  const Manifest& manifest = summary.manifest;
  SummaryShares shares = SummaryShares::Of(summary);
  std::string text;
  for (const std::string& skipped : summary.skipped) absl::StrAppend(&text, "skipped: ", skipped, "\n");
  if (summary.path != summary.asked_for) {
    absl::StrAppend(&text, summary.asked_for, ": the newest step ", summary.is_verified ? "that verifies " : "", "is ",
                    summary.path, summary.is_verified ? "" : "; its values are not verified", "\n");
  }
  absl::StrAppend(&text, Headline(summary), LayoutText(summary.layout), SectionsText(shares), TextsText(summary));
  if (!manifest.units.empty()) absl::StrAppend(&text, "flat units  ", manifest.units.size(), "\n");
  if (summary.traits().is_ours) absl::StrAppend(&text, AttributesText(manifest.save.attributes));
  absl::StrAppend(&text, AliasesText(summary));
  for (const auto& [name, value] : summary.metadata) {
    absl::StrAppend(&text, "metadata  ", Printable(name), " = ", Printable(value), "\n");
  }
  for (const std::string& left_out : summary.left_out) absl::StrAppend(&text, "left out  ", left_out, "\n");
  absl::StrAppend(&text, ExpansionText(summary.expansion), NotWhollyReadText(summary.partly_read),
                  FilesText(manifest, shares.files), ConvertText(summary, shares));
  // The list of tensors may be larger than memory, so it is passed on tensor by tensor.
  sink(text);
  if (!tensors.is_wanted) return;
  sink(manifest.files.size() > 1 ? "each tensor, and the elements that a file holds of it\n" : "each tensor\n");
  SectionShare listed;
  PrintedTensors list(tensors.order, sink);
  summary.ForEachTensor([&](const StoredTensor& tensor, int64_t stored_bytes) {
    if (!IsListed(tensor, tensors)) return;
    listed.Add(tensor);
    list.Add(tensor, TensorLine(tensor, manifest, stored_bytes, shares.columns));
  });
  list.End();
  if (!tensors.filter.keeps_all()) sink(absl::StrCat("of these  ", listed.ToString(), "\n"));
}

// The object of `json` is left open for the tensors: they are its last member, and each is written separately.
void SummaryJson(const CheckpointSummary& summary, const ListedTensors& tensors, const TextSink& sink) {
  const Manifest& manifest = summary.manifest;
  SummaryShares shares = SummaryShares::Of(summary);
  Json json = {{"path", summary.path},
               {"format", summary.format->name()},
               {"kind", "full"},
               {"step", nullptr},
               {"world_size", 1}};
  if (summary.path != summary.asked_for) json["root"] = summary.asked_for;
  if (!summary.skipped.empty()) json["skipped"] = summary.skipped;
  if (!summary.problem.empty()) {
    json["problem"] = summary.problem;
    json["problems"] = Json::array({summary.problem});
  }
  if (summary.traits().has_writers) json["world_size"] = manifest.save.world_size;
  if (manifest.save.has_step) json["step"] = manifest.save.step;
  if (summary.traits().is_ours) AddOwnMembers(manifest, json);
  json["tensor_count"] = shares.all.tensors;
  json["bytes"] = shares.all.bytes;
  json["stored_bytes"] = summary.source == nullptr ? shares.all.bytes : summary.expansion.stored_bytes;
  json["model"] = ToJson(shares.sections[Section::kModel]);
  json["optim"] = ToJson(shares.sections[Section::kOptimState]);
  json["extra"] = ToJson(shares.sections[Section::kExtra]);
  json["texts"] = Json::array();
  for (const StoredText& text : manifest.texts) json["texts"].push_back(text.key.ToString());
  json["values"] = Json::object();
  for (const auto& [key, value] : summary.short_texts) json["values"][key.ToString()] = value;
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
  json["layout"] = summary.layout.text.empty() ? Json() : Json(summary.layout.text);
  json["notes"] = Json::array();
  for (const std::string& note : summary.layout.notes) json["notes"].push_back(WithFlagNames(note));
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
  if (!tensors.is_wanted) return sink(text);
  text.resize(text.rfind("\n}"));
  sink(text);
  bool is_first = true;
  const TextSink print = [&](const std::string& element) {
    sink(absl::StrCat(is_first ? ",\n  \"tensors\": [" : ",", element));
    is_first = false;
  };
  PrintedTensors list(tensors.order, print);
  summary.ForEachTensor([&](const StoredTensor& tensor, int64_t stored_bytes) {
    if (!IsListed(tensor, tensors)) return;
    std::string element = absl::StrCat("\n", ToText(TensorJson(tensor, manifest, stored_bytes)));
    element.pop_back();  // its newline; strings of JSON contain none, so all others begin lines to indent
    list.Add(tensor, absl::StrReplaceAll(element, {{"\n", "\n    "}}));
  });
  list.End();
  sink(is_first ? ",\n  \"tensors\": []\n}\n" : "\n  ]\n}\n");
}

std::string ProblemJson(const std::string& path, const absl::Status& status) {
  // A URL that is refused may hold a password, which must not reach a log.
  const bool is_refused = IsS3Url(path) && !ParseS3Url(path).ok();
  return ToText({{"path", is_refused ? WithoutPassword(path) : path},
                 {"problem", WithFlagNames(status.message())},
                 {"problems", Json::array({WithFlagNames(status.message())})},
                 {"code", absl::StatusCodeToString(status.code())}});
}

}  // namespace fsdp
