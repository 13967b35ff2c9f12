// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/adapter_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
constexpr int64_t kMaxNames = 10'000;
constexpr double kMostOfANumber = 1e9;

absl::Status Wrong(std::string_view member, std::string_view expected) {
  return absl::DataLossError(absl::StrCat(Quote(member), ": expected ", std::string(expected)));
}

bool IsNull(const JsonView& value) { return value.text() == "null"; }

// False, null and the values without a content, which stand for "not used".
bool IsEmptyValue(const JsonView& value) {
  if (value.is_object() || value.is_array()) return value.size() == 0;
  return IsNull(value) || value.text() == "false" || value.text() == "\"\"";
}

std::string Shown(const JsonView& value) {
  if (value.is_object() || value.is_array()) return "given";
  return absl::StrCat("is ", Printable(value.text().substr(0, 80)));
}

absl::StatusOr<double> NumberOf(std::string_view member, const JsonView& value) {
  double number = 0;
  const std::string_view text = value.text();
  const bool is_number = !text.empty() && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9')) &&
                         absl::SimpleAtod(absl::string_view(text.data(), text.size()), &number);
  if (!is_number || !(std::abs(number) <= kMostOfANumber)) return Wrong(member, "a number of at most 10^9");
  return number;
}

absl::StatusOr<bool> BoolOf(std::string_view member, const JsonView& value) {
  if (value.text() == "true") return true;
  if (value.text() == "false" || IsNull(value)) return false;
  return Wrong(member, "true or false");
}

absl::StatusOr<std::string> TextOf(std::string_view member, const JsonView& value) {
  if (IsNull(value)) return std::string();
  std::optional<std::string> text = value.string();
  if (!text) return Wrong(member, "a text");
  return *std::move(text);
}

absl::StatusOr<std::vector<std::string>> NamesOf(std::string_view member, const JsonView& value) {
  std::vector<std::string> names;
  if (IsNull(value)) return names;
  if (!value.is_array()) return Wrong(member, "an array of texts");
  for (const JsonView& element : value) {
    std::optional<std::string> name = element.string();
    if (!name || std::ssize(names) == kMaxNames) return Wrong(member, "an array of at most 10,000 texts");
    names.push_back(*std::move(name));
  }
  return names;
}

absl::StatusOr<std::vector<std::pair<std::string, double>>> PatternsOf(std::string_view member, const JsonView& value) {
  std::vector<std::pair<std::string, double>> patterns;
  if (IsNull(value)) return patterns;
  if (!value.is_object() || value.size() > kMaxNames) return Wrong(member, "an object of at most 10,000 numbers");
  for (const auto& [pattern, number] : value.members()) {
    FSDP_ASSIGN_OR_RETURN(const double of_pattern, NumberOf(member, number));
    patterns.emplace_back(pattern, of_pattern);
  }
  return patterns;
}

// Members without an influence on a merge: how the adapter was trained, or settings of an option that has a member of
// its own.
bool IsNeutral(std::string_view member) {
  constexpr std::array<std::string_view, 20> kNeutral = {"auto_mapping",
                                                         "bias",
                                                         "corda_config",
                                                         "eva_config",
                                                         "inference_mode",
                                                         "layers_pattern",
                                                         "lora_bias",
                                                         "lora_dropout",
                                                         "lora_ga_config",
                                                         "loftq_config",
                                                         "megatron_config",
                                                         "megatron_core",
                                                         "peft_version",
                                                         "qalora_group_size",
                                                         "revision",
                                                         "runtime_config",
                                                         "task_type",
                                                         "use_dora",
                                                         "base_model_name_or_path",
                                                         "peft_type"};
  return std::find(kNeutral.begin(), kNeutral.end(), member) != kNeutral.end();
}

// Initialisations that leave the base as it is. Others (pissa, olora, corda, loftq, ...) subtract their start from it,
// so the adapter belongs to a base that no file has.
bool KeepsTheBase(const JsonView& value) {
  const std::optional<std::string> name = value.string();
  if (!name) return value.text() == "true" || value.text() == "false" || IsNull(value);
  return *name == "gaussian" || *name == "eva" || *name == "orthogonal";
}

// Fills the field of `member`. False if there is no such field.
// Types are checked here, so that the plan of a merge can rely on them.
absl::StatusOr<bool> Fill(std::string_view member, const JsonView& value, AdapterConfig& config) {
  if (member == "peft_type") {
    FSDP_ASSIGN_OR_RETURN(config.peft_type, TextOf(member, value));
  } else if (member == "base_model_name_or_path") {
    FSDP_ASSIGN_OR_RETURN(config.base_model, TextOf(member, value));
  } else if (member == "r") {
    FSDP_ASSIGN_OR_RETURN(config.rank, NumberOf(member, value));
  } else if (member == "lora_alpha") {
    FSDP_ASSIGN_OR_RETURN(config.alpha, NumberOf(member, value));
  } else if (member == "use_rslora") {
    FSDP_ASSIGN_OR_RETURN(config.use_rslora, BoolOf(member, value));
  } else if (member == "fan_in_fan_out") {
    FSDP_ASSIGN_OR_RETURN(config.fan_in_fan_out, BoolOf(member, value));
  } else if (member == "use_dora") {
    FSDP_ASSIGN_OR_RETURN(config.use_dora, BoolOf(member, value));
  } else if (member == "target_modules") {
    if (std::optional<std::string> pattern = value.string()) {
      config.target_pattern = *std::move(pattern);
    } else {
      FSDP_ASSIGN_OR_RETURN(config.target_modules, NamesOf(member, value));
    }
  } else if (member == "layers_to_transform" || member == "exclude_modules") {
    config.selects_layers = config.selects_layers || !IsEmptyValue(value);
  } else if (member == "modules_to_save") {
    FSDP_ASSIGN_OR_RETURN(config.modules_to_save, NamesOf(member, value));
  } else if (member == "rank_pattern") {
    FSDP_ASSIGN_OR_RETURN(config.rank_pattern, PatternsOf(member, value));
  } else if (member == "alpha_pattern") {
    FSDP_ASSIGN_OR_RETURN(config.alpha_pattern, PatternsOf(member, value));
  } else {
    return false;
  }
  return true;
}

// A member that this release does not know is an obstacle if it is set: it may change how the adapter is applied.
void AddObstacles(const std::vector<std::pair<std::string, JsonView>>& members, AdapterConfig& config) {
  if (config.peft_type != "LORA") {
    config.obstacles.push_back(
        absl::StrCat("it is of the type ", Quote(config.peft_type), ", and only LORA is merged"));
    return;
  }
  if (config.use_dora) config.obstacles.emplace_back("\"use_dora\" is true (DoRA)");
  for (const auto& [member, value] : members) {
    AdapterConfig unused;
    if (IsNeutral(member) || Fill(member, value, unused).value_or(false)) continue;
    if (member == "init_lora_weights" ? KeepsTheBase(value) : IsEmptyValue(value)) continue;
    config.obstacles.push_back(absl::StrCat(Quote(member), " ", Shown(value)));
  }
}

}  // namespace

std::string AdapterConfig::ToString() const {
  std::string text = peft_type == "LORA" ? (use_dora     ? "DoRA"
                                            : use_rslora ? "rsLoRA"
                                                         : "LoRA")
                                         : absl::StrCat("type ", Quote(peft_type));
  if (rank != 0) absl::StrAppend(&text, ", rank ", rank);
  if (alpha != 0) absl::StrAppend(&text, rank != 0 ? " and alpha " : ", alpha ", alpha);
  if (!rank_pattern.empty() || !alpha_pattern.empty()) absl::StrAppend(&text, " (others for some modules)");
  if (!target_pattern.empty()) absl::StrAppend(&text, ", of the modules ", Quote(target_pattern));
  if (!target_modules.empty()) absl::StrAppend(&text, ", of ", SomeOf(target_modules));
  if (!modules_to_save.empty()) absl::StrAppend(&text, ", with the whole ", SomeOf(modules_to_save));
  absl::StrAppend(&text, base_model.empty() ? ", for a base model that it does not name"
                                            : absl::StrCat(", for the base model ", Printable(base_model)));
  return text;
}

absl::StatusOr<AdapterConfig> ParseAdapterConfig(std::string_view text) {
  FSDP_ASSIGN_OR_RETURN(const JsonView object, JsonView::Parse(text));
  if (object.size() > kMaxNames) return absl::DataLossError("more than 10,000 members");
  AdapterConfig config;
  const std::vector<std::pair<std::string, JsonView>> members = object.members();
  for (const auto& [member, value] : members) FSDP_RETURN_IF_ERROR(Fill(member, value, config).status());
  if (config.peft_type.empty()) return Wrong("peft_type", "the kind of adapter, such as \"LORA\"");
  AddObstacles(members, config);
  return config;
}

absl::StatusOr<AdapterConfig> ReadAdapterConfig(const std::string& path) {
  std::error_code ignored;
  const std::string directory = std::filesystem::is_directory(path, ignored) ? path : SplitPath(path).directory;
  const std::string file = JoinPath(directory, kAdapterConfigName);
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), file, kMaxConfigBytes));
  absl::StatusOr<AdapterConfig> config = ParseAdapterConfig(text);
  if (config.ok()) return config;
  const auto error = absl::Status(config.status().code(), absl::StrCat(file, ": ", config.status().message()));
  return ErrorOfText(error, file, text);
}

std::string AdapterNote(const std::string& file) {
  const std::string is_one = "an adapter of PEFT, not a whole model: `ckpt merge BASE ADAPTER OUT` makes one";
  const absl::StatusOr<AdapterConfig> config = ReadAdapterConfig(file);
  return absl::StrCat(is_one, "; ", config.ok() ? config->ToString() : std::string(config.status().message()));
}

}  // namespace fsdp
