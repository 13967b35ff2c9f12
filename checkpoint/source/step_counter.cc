// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/step_counter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 9> kNames = {
    "step", "global_step", "global_steps", "iteration", "iter_num", "iter", "num_updates", "number_training_updates",
    "epoch"};

constexpr std::string_view kComposerCounter = "batch";  // of its "timestamp"

constexpr char kTrainerState[] = "trainer_state.json";

// A list of all that was logged is in the file too.
constexpr int64_t kMaxTrainerStateBytes = int64_t{64} << 20;

// Hugging Face's Trainer writes it next to the weights; "global_step" counts optimizer steps.
// The trainer_state.json next to `path`; empty without one.
absl::StatusOr<fs::path> TrainerStateOf(const fs::path& path) {
  const fs::path parent = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
  const std::string name = path.has_filename() ? path.filename() : path.parent_path().filename();
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(path));
  const bool is_directory = type == fs::file_type::directory;
  FSDP_ASSIGN_OR_RETURN(const fs::file_type inside, TypeOfTarget(path / kTrainerState));
  if (is_directory && inside == fs::file_type::regular) return path / kTrainerState;
  const bool is_part = absl::StartsWith(name, "pytorch_model_fsdp") || absl::StartsWith(name, "optimizer");
  if (is_directory && !is_part) return fs::path();
  FSDP_ASSIGN_OR_RETURN(const fs::file_type beside, TypeOfTarget(parent / kTrainerState));
  return beside == fs::file_type::regular ? parent / kTrainerState : fs::path();
}

// Python writes what JSON lacks: a loss that was NaN is in the log.
absl::StatusOr<JsonView> ParseOfPython(std::string& text) {
  const absl::StatusOr<JsonView> strict = JsonView::Parse(text);
  if (strict.ok()) return strict;
  text = absl::StrReplaceAll(text, {{": NaN", ": null"}, {": Infinity", ": null"}, {": -Infinity", ": null"}});
  return JsonView::Parse(text);
}

std::optional<int64_t> StepOfJson(const JsonView& value) {
  if (const std::optional<int64_t> integer = value.integer()) return integer;
  if (const std::optional<std::string> text = value.string()) return StepOfText(*text);
  double number = 0;
  const bool is_number = absl::SimpleAtod(absl::string_view(value.text().data(), value.text().size()), &number);
  return is_number ? StepOfNumber(number) : std::nullopt;
}

}  // namespace

std::optional<size_t> StepCounterOrder(std::string_view name) {
  const auto at = std::find(kNames.begin(), kNames.end(), name);
  return at == kNames.end() ? std::nullopt : std::make_optional<size_t>(at - kNames.begin());
}

bool IsEpochCounter(std::string_view name) { return name == kNames.back(); }

std::optional<int64_t> StepOfNumber(double value) {
  constexpr double kMost = 9007199254740992.0;  // 2^53: a double above it may be another integer's
  if (!(value >= 0 && value <= kMost) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<int64_t> StepOfText(std::string_view text) {
  int64_t number = 0;
  const bool is_digits = std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
  const bool is_number = is_digits && absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number);
  return is_number ? std::make_optional(number) : std::nullopt;
}

// The text has no spaces between a name and its value.
bool HasStepCounter(std::string_view text, int64_t step) {
  for (const std::string& number : {absl::StrCat(step), absl::StrCat(step, ".0"), absl::StrCat("\"", step, "\"")}) {
    const std::string value = absl::StrCat("\":", number);
    for (size_t at = text.find(value, 1); at != text.npos; at = text.find(value, at + 1)) {
      const size_t end = at + value.size();
      const bool is_whole = end == text.size() || text[end] == ',' || text[end] == '}';
      const size_t begin = text.rfind('"', at - 1) + 1;
      const std::string_view name = text.substr(begin, at - begin);
      if (is_whole && (StepCounterOrder(name) || name == kComposerCounter)) return true;
    }
  }
  return false;
}

TrainerState ReadTrainerState(const std::string& path) {
  const absl::StatusOr<fs::path> file = TrainerStateOf(path);
  if (file.ok() && file->empty()) return {};
  absl::StatusOr<std::string> text =
      file.ok() ? ReadFile(PosixFileSystem(), *file, kMaxTrainerStateBytes) : file.status();
  const absl::StatusOr<JsonView> json = text.ok() ? ParseOfPython(*text) : text.status();
  if (!json.ok()) {
    const absl::Status error = text.ok() ? ErrorOfText(json.status(), std::string(*file), *text) : json.status();
    const std::string reason(error.message());
    return {.note = absl::StrCat("the step is unknown: ", kTrainerState, " cannot be read: ", reason)};
  }
  for (const std::string_view name : kNames) {
    const std::optional<JsonView> member = json->Find(name);
    const std::optional<int64_t> step = member ? StepOfJson(*member) : std::nullopt;
    if (!step) continue;
    return {*step, absl::StrCat("step ", *step, " is ", Quote(name), " of ", kTrainerState)};
  }
  return {.note = absl::StrCat("the step is unknown: ", kTrainerState, " has no counter that is a whole number")};
}

}  // namespace fsdp
