// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/tied_head.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

constexpr char kConfigName[] = "config.json";
constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
constexpr char kHeadName[] = "lm_head.weight";
constexpr char kTies[] = "tie_word_embeddings";

bool HasHead(const std::string& model_class) {
  constexpr std::array kEnds = {"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](const char* end) { return absl::EndsWith(model_class, end); });
}

bool IsEmbedding(std::string_view name) {
  constexpr std::array kEnds = {".wte.weight", ".embed_tokens.weight", ".word_embeddings.weight"};
  const absl::string_view text(name.data(), name.size());
  return std::any_of(kEnds.begin(), kEnds.end(), [&](const char* end) { return absl::EndsWith(text, end); });
}

// Of a model of texts and images the text part has the head.
std::optional<JsonView> Ties(const JsonView& config) {
  if (const std::optional<JsonView> ties = config.Find(kTies)) return ties;
  const std::optional<JsonView> of_text = config.Find("text_config");
  return of_text ? of_text->Find(kTies) : std::nullopt;
}

// Why the model of `config` has an output layer that is its embedding; empty if it does not.
std::string WhyTied(const JsonView& config) {
  const std::optional<JsonView> ties = Ties(config);
  const std::optional<JsonView> classes = config.Find("architectures");
  std::string with_head;
  for (const JsonView model_class : classes.value_or(config)) {
    const std::optional<std::string> name = model_class.string();
    if (with_head.empty() && name && HasHead(*name)) with_head = *name;
  }
  const bool has_classes = classes && classes->size() > 0;
  if (ties) return ties->text() == "true" && (!with_head.empty() || !has_classes) ? "config.json ties it" : "";
  // transformers leaves out what is the default of a class, and this class needs the weight.
  return with_head.empty() ? "" : absl::StrCat("config.json names ", Printable(with_head), ", which has one");
}

}  // namespace

TiedHead TiedHead::Of(const std::string& directory) {
  TiedHead head;
  const std::string path = JoinPath(directory, kConfigName);
  const absl::StatusOr<std::filesystem::file_type> type = TypeOfTarget(path);
  if (type.ok() && *type != std::filesystem::file_type::regular) return head;
  const absl::StatusOr<std::string> text =
      type.ok() ? ReadFile(PosixFileSystem(), path, kMaxConfigBytes) : type.status();
  const absl::StatusOr<JsonView> config = text.ok() ? JsonView::Parse(*text) : text.status();
  if (config.ok()) {
    head.why_ = WhyTied(*config);
  } else {
    const absl::Status error = text.ok() ? ErrorOfText(config.status(), path, *text) : text.status();
    head.problem_ = absl::StrCat(path, " is not read, so tied names are not known: ", error.message());
  }
  return head;
}

void TiedHead::Add(std::string_view name) {
  has_head_ = has_head_ || name == kHeadName;
  if (!why_.empty() && IsEmbedding(name)) embeddings_.emplace_back(name);
}

std::pair<std::string, std::string> TiedHead::names() const {
  if (has_head_ || embeddings_.size() != 1) return {};
  return {kHeadName, embeddings_[0]};
}

std::string TiedHead::note() const {
  if (has_head_) return "";
  if (!problem_.empty() || embeddings_.empty()) return problem_;
  if (embeddings_.size() == 1) {
    return absl::StrCat(kHeadName, ", which is in no file, is ", Printable(embeddings_[0]), ": ", why_);
  }
  std::vector<std::string> names;
  for (const std::string& name : embeddings_) names.push_back(Printable(name));
  std::sort(names.begin(), names.end());
  return absl::StrCat(kHeadName, " is in no file, but ", why_, "; it may be any of ", absl::StrJoin(names, ", "));
}

}  // namespace fsdp
