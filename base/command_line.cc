// SPDX-License-Identifier: Apache-2.0
//
// Parsing has two phases, so that a program with subcommands can see the subcommand before it decides which flags are
// allowed: ReadCommandLine divides the arguments into operands and flags, SetFlags checks the names and sets the
// values. Abseil's reflection (absl/flags/reflection.h) gives the types, parsers and help of the flags, so that they
// are still defined with ABSL_FLAG; only Abseil's parser is replaced. The first phase must know the flags too: whether
// "--a b" is a flag with a value or a bool flag and an operand depends on the type of --a.
#include "fsdp/base/command_line.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "fsdp/base/problem_json.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/suggestion.h"
#include "fsdp/base/terminal.h"
#include "fsdp/base/version.h"
#include "fsdp/base/wrap_text.h"

namespace fsdp {
namespace {

// Joins the values of a repeated flag for AbslParseFlag, which takes one text. No argument can contain a zero byte.
constexpr char kSeparator = '\0';

// The flags that are defined outside of Abseil, sorted. Abseil's libraries define some that no program here uses.
std::vector<std::string> FlagsOfTheProgram() {
  std::vector<std::string> names;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!absl::StrContains(flag->Filename(), "absl/")) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Whether "--name" needs no value.
bool IsSwitch(const absl::CommandLineFlag& flag) { return flag.IsOfType<bool>() || flag.IsOfType<SwitchOrTextFlag>(); }

// `typed`: as it was typed, with its dashes and without its value. `suggested`: as in ReadCommandLine.
absl::Status UnknownFlag(absl::string_view typed, const std::string& name, absl::Span<const std::string> suggested) {
  const std::vector<std::string> all = suggested.empty() ? FlagsOfTheProgram() : std::vector<std::string>();
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag ", typed, DidYouMean(name, suggested.empty() ? all : suggested, "--")));
}

// Parses the flag at arguments[i], "--name..." or "-name..."; increments `i` if the next argument is its value.
absl::Status ReadFlag(const std::vector<std::string>& arguments, absl::Span<const std::string> suggested, size_t& i,
                      CommandLine& line) {
  absl::string_view text = arguments[i];
  // As Abseil does: one dash means the same as two.
  if (!absl::ConsumePrefix(&text, "--")) absl::ConsumePrefix(&text, "-");
  const size_t equals = text.find('=');
  const absl::string_view typed = absl::string_view(arguments[i]).substr(0, arguments[i].find('='));
  std::string name = absl::StrReplaceAll(text.substr(0, equals), {{"-", "_"}});
  bool* const asked = name == "help" || typed == "-h"      ? &line.help
                      : name == "helpfull"                 ? &line.helpfull
                      : name == "version" || typed == "-V" ? &line.version
                                                           : nullptr;
  if (asked != nullptr) {
    *asked = true;
    if (equals == text.npos) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("flag ", typed, " takes no value"));
  }
  // A flag named "no..." that exists is found here first, so --normalize sets a flag of that name and does not negate
  // --rmalize.
  const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (flag == nullptr && equals == text.npos && absl::StartsWith(name, "no")) {
    flag = absl::FindCommandLineFlag(absl::StripPrefix(name.substr(2), "_"));  // --no-force too
    if (flag == nullptr || !IsSwitch(*flag)) return UnknownFlag(typed, name, suggested);
    line.flags.emplace_back(flag->Name(), "false");
    return absl::OkStatus();
  }
  if (flag == nullptr) return UnknownFlag(typed, name, suggested);
  if (equals != text.npos) {
    line.flags.emplace_back(std::move(name), text.substr(equals + 1));
  } else if (IsSwitch(*flag)) {
    line.flags.emplace_back(std::move(name), "true");
  } else if (i + 1 < arguments.size()) {
    line.flags.emplace_back(std::move(name), arguments[++i]);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("flag --", name, " needs a value"));
  }
  return absl::OkStatus();
}

// The usage with the flags in the middle.
std::string Help(std::string_view usage, absl::Span<const std::string> names) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(absl::string_view(usage.data(), usage.size()), absl::MaxSplits("\n\nexamples:\n", 1));
  return absl::StrCat("usage: ", parts.first, "\n\n", FlagHelp(names),
                      parts.second.empty() ? "" : absl::StrCat("\nexamples:\n", parts.second));
}

// An error of the command line.
int Refuse(const std::string& program, const absl::Status& status, int argc, char** argv) {
  if (WantsJson(argc, argv)) Print("%s", ProblemJson(status.code(), std::string(status.message())));
  return ReportUsageError(program, status);
}

// "a whole number": what a flag takes whose type Abseil parses. `text`: what was given.
std::string ExpectedText(const absl::CommandLineFlag& flag, const std::string& text) {
  const auto is = [&](auto value) { return flag.IsOfType<decltype(value)>(); };
  const bool is_too_large = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  if (is(bool())) return "true or false";
  if (is(absl::Duration())) return "a duration such as 90s, 5m or 2h";
  if (is(double()) || is(std::optional<double>())) return "a number";
  if (is_too_large) return "a smaller number";
  return is(uint64_t()) ? "a whole number of 0 or more" : "a whole number";
}

// `error`: Abseil's sentence, followed by the message of the flag's own parser if this project has written it.
absl::Status BadValue(const absl::CommandLineFlag& flag, const std::string& text, absl::string_view error) {
  const std::string of_abseil = absl::StrCat("Illegal value '", text, "' specified for flag '", flag.Name(), "'");
  const bool is_ours = absl::ConsumePrefix(&error, of_abseil) && absl::ConsumePrefix(&error, "; ");
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag.Name(), "=", Printable(text), ", ",
                   is_ours ? std::string(error) : absl::StrCat("expected ", ExpectedText(flag, text))));
}

// A unit of ByteSizeFlag. "B" is last: it is a suffix of all others.
struct Unit {
  absl::string_view suffix;
  double bytes;
};
constexpr Unit kUnits[] = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"KB", 1e3},
                           {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"B", 1}};

}  // namespace

absl::StatusOr<CommandLine> ReadCommandLine(int argc, char** argv, absl::Span<const std::string> suggested) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  CommandLine line;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--") {
      line.operands.insert(line.operands.end(), arguments.begin() + i + 1, arguments.end());
      break;
    }
    // "-" is an operand: the usual name of stdin or stdout.
    if (arguments[i].size() > 1 && arguments[i][0] == '-') {
      FSDP_RETURN_IF_ERROR(ReadFlag(arguments, suggested, i, line));
    } else {
      line.operands.push_back(arguments[i]);
    }
  }
  return line;
}

bool WantsJson(int argc, char** argv) {
  if (absl::FindCommandLineFlag("json") == nullptr) return false;
  for (int i = 1; i < argc && absl::string_view(argv[i]) != "--"; ++i) {
    absl::string_view argument = argv[i];
    if (!absl::ConsumePrefix(&argument, "--json") && !absl::ConsumePrefix(&argument, "-json")) continue;
    bool is_on = false;
    if (argument.empty() || (absl::ConsumePrefix(&argument, "=") && absl::SimpleAtob(argument, &is_on) && is_on))
      return true;
  }
  return false;
}

absl::Status SetFlags(const CommandLine& line, std::string_view where, absl::Span<const std::string> allowed) {
  // All names are checked before any value is set, so a misspelt flag leaves every flag unchanged. Values that do not
  // parse are found only when they are set.
  std::map<std::string, std::vector<std::string>> values;
  for (const auto& [name, value] : line.flags) {
    if (std::find(allowed.begin(), allowed.end(), name) == allowed.end()) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(where), " has no flag --", name));
    }
    values[name].push_back(value);
  }
  for (const auto& [name, texts] : values) {
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (texts.size() > 1 && !flag->IsOfType<RepeatedFlag>()) {
      return absl::InvalidArgumentError(
          absl::StrCat("flag --", name, " is given ", texts.size(), " times, expected once"));
    }
    std::string error;
    const std::string text = absl::StrJoin(texts, absl::string_view(&kSeparator, 1));
    if (!flag->ParseFrom(text, &error)) return BadValue(*flag, text, error);
  }
  return absl::OkStatus();
}

std::string FlagHelp(absl::Span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    const std::string value = flag->DefaultValue();
    const bool has_default = !value.empty() && value != "false";
    absl::StrAppend(&text, "  --", name,
                    flag->IsOfType<bool>()               ? ""
                    : flag->IsOfType<SwitchOrTextFlag>() ? "[=VALUE]"
                                                         : "=VALUE",
                    ": ", flag->Help(), has_default ? absl::StrCat("; default: ", value) : "", "\n");
  }
  return text;
}

std::optional<int> ParseFlags(int argc, char** argv, std::string_view usage, std::vector<std::string>* operands) {
  KeepStandardStreams();
  const std::string program = ProgramName(argc, argv);
  const std::vector<std::string> names = FlagsOfTheProgram();
  absl::StatusOr<CommandLine> line = ReadCommandLine(argc, argv);
  if (!line.ok()) return Refuse(program, line.status(), argc, argv);
  const std::string only = argc == 2 ? argv[1] : "";
  if (line->help || line->helpfull || only == "help") {
    Print("%s", WrapText(Help(usage, names), HelpColumns()));
    return kExitDone;
  }
  if (line->version || only == "version") return PrintVersion(program);
  absl::Status status = SetFlags(*line, program, names);
  if (status.ok() && operands == nullptr && !line->operands.empty()) {
    status = absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", line->operands[0], "\""));
  }
  if (!status.ok()) return Refuse(program, status, argc, argv);
  if (operands != nullptr) *operands = std::move(line->operands);
  // Last, so that a usage error has no effect on the process.
  EnterCallersDirectory();
  return std::nullopt;
}

int PrintVersion(std::string_view program) {
  Print("%s %s\n", program, kVersion);
  return kExitDone;
}

std::string ProgramName(int argc, char** argv) { return std::filesystem::path(argc > 0 ? argv[0] : "").filename(); }

void EnterCallersDirectory() {
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory != nullptr && chdir(directory) != 0) PrintError("%s: %s\n", directory, std::strerror(errno));
}

bool AbslParseFlag(absl::string_view text, RepeatedFlag* flag, std::string*) {
  flag->values = absl::StrSplit(text, kSeparator);
  return true;
}

std::string AbslUnparseFlag(const RepeatedFlag& flag) {
  return absl::StrJoin(flag.values, absl::string_view(&kSeparator, 1));
}

// Only digits and a point may precede the unit: SimpleAtod also takes a sign, an exponent, "inf" and "nan".
bool AbslParseFlag(absl::string_view text, ByteSizeFlag* flag, std::string* error) {
  const Unit* unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                  [&](const Unit& u) { return absl::ConsumeSuffix(&text, u.suffix); });
  double number = 0;
  const bool digits = !text.empty() && text.find_first_not_of("0123456789.") == text.npos;
  const double bytes =
      digits && absl::SimpleAtod(text, &number) ? number * (unit == std::end(kUnits) ? 1 : unit->bytes) : -1;
  // 2^62 fits into int64_t with a factor of two to spare, so that callers may add sizes.
  if (!(bytes >= 0 && bytes < 0x1p62)) {
    *error = "expected a number of bytes such as 1048576, 512MiB, 1.5GiB or 5GB";
    return false;
  }
  flag->bytes = static_cast<int64_t>(std::llround(bytes));
  return true;
}

std::string AbslUnparseFlag(const ByteSizeFlag& flag) {
  for (const Unit& unit : kUnits) {
    const auto bytes = static_cast<int64_t>(unit.bytes);
    // The first unit that gives a number below 1,000 without a remainder, so that the text parses to the same bytes.
    if (flag.bytes >= bytes && flag.bytes % bytes == 0 && flag.bytes / bytes < 1000) {
      return absl::StrCat(flag.bytes / bytes, unit.suffix);
    }
  }
  return absl::StrCat(flag.bytes);
}

bool AbslParseFlag(absl::string_view text, SwitchOrTextFlag* flag, std::string*) {
  const bool is_word = text == "true" || text == "false";
  *flag = {.is_on = text != "false", .text = is_word ? "" : std::string(text)};
  return true;
}

std::string AbslUnparseFlag(const SwitchOrTextFlag& flag) {
  return !flag.is_on ? "false" : flag.text.empty() ? "true" : flag.text;
}

int ReportUsageError(std::string_view program, const absl::Status& status) {
  const std::string name(program);
  PrintError("%s: %s; %s --help shows what there is\n", name, status.message(), name);
  return kExitUsage;
}

}  // namespace fsdp
