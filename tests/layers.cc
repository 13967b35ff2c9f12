// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tests/layers.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace fsdp {
namespace {

constexpr char kPrefix[] = "fsdp/";

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

// Tests, benchmarks, fixtures and fakes lie in the folder of the production code that they serve. Their names tell them
// apart; Bazel's `testonly` keeps production code from depending on them.
bool IsForTests(const std::string& path) {
  static constexpr absl::string_view kBeginnings[] = {"test_",      "fake_",     "fault_",     "golden",
                                                      "recording_", "counting_", "reference_", "state_collector",
                                                      "sha256",     "byte_file"};
  static constexpr absl::string_view kEnds[] = {"_test",        "_benchmark", "_fixture", "_faults",
                                                "_test_device", "_matchers",  "_runner"};
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::string stem = name.substr(0, name.find('.'));
  return std::any_of(std::begin(kBeginnings), std::end(kBeginnings),
                     [&](absl::string_view word) { return absl::StartsWith(stem, word); }) ||
         std::any_of(std::begin(kEnds), std::end(kEnds),
                     [&](absl::string_view word) { return absl::EndsWith(stem, word); });
}

// The path in quotes of a line that is an #include of one; nothing for any other line.
std::optional<std::string> IncludeOf(absl::string_view line) {
  line = absl::StripLeadingAsciiWhitespace(line);
  if (!absl::ConsumePrefix(&line, "#")) return std::nullopt;
  line = absl::StripLeadingAsciiWhitespace(line);
  if (!absl::ConsumePrefix(&line, "include")) return std::nullopt;
  line = absl::StripLeadingAsciiWhitespace(line);
  const size_t end = line.find('"', 1);
  if (line.empty() || line[0] != '"' || end == absl::string_view::npos) return std::nullopt;
  return std::string(line.substr(1, end - 1));
}

bool IsProgram(const std::string& room) {
  static const std::set<std::string> programs = {"examples", "tools", "train"};
  return programs.count(room.substr(0, room.find('/'))) != 0;
}

// The rooms that `words` name; every room inside "checkpoint" for "checkpoint/*".
std::set<std::string> Expanded(const std::vector<std::string>& words, const Rooms& rooms) {
  std::set<std::string> expanded;
  for (const std::string& word : words) {
    if (!absl::EndsWith(word, "/*")) {
      expanded.insert(word);
      continue;
    }
    for (const auto& [room, row] : rooms) {
      if (!row.is_for_tests && absl::StartsWith(room, word.substr(0, word.size() - 1))) expanded.insert(room);
    }
  }
  return expanded;
}

// Depth-first search: the rooms from the second visit of `room` back to itself, or none.
std::optional<std::vector<std::string>> CircleThrough(const std::string& room, const Rooms& rooms,
                                                      std::vector<std::string>& path, std::set<std::string>& done) {
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == room) return std::vector<std::string>(path.begin() + static_cast<std::ptrdiff_t>(i), path.end());
  }
  const auto row = rooms.find(room);
  if (row == rooms.end() || !done.insert(room).second) return std::nullopt;
  path.push_back(room);
  for (const std::string& included : row->second.includes) {
    if (auto circle = CircleThrough(included, rooms, path, done)) return circle;
  }
  path.pop_back();
  return std::nullopt;
}

}  // namespace

Rooms ParseRooms(const std::string& markdown) {
  Rooms rooms;
  std::map<std::string, std::vector<std::string>> words;
  for (const absl::string_view line : absl::StrSplit(markdown, '\n')) {
    const std::vector<absl::string_view> cells = absl::StrSplit(line, '|');
    if (cells.size() < 3 || !cells[0].empty()) continue;
    absl::string_view name = absl::StripAsciiWhitespace(cells[1]);
    if (!absl::ConsumePrefix(&name, "`") || !absl::ConsumeSuffix(&name, "/`")) continue;
    Room& room = rooms[std::string(name)];
    room.declared = std::string(absl::StripAsciiWhitespace(cells[2]));
    room.is_for_tests = room.declared == "any";
    if (!room.is_for_tests) words[std::string(name)] = absl::StrSplit(room.declared, ' ', absl::SkipEmpty());
  }
  for (const auto& [name, list] : words) {
    rooms[name].includes = Expanded(list, rooms);
  }
  return rooms;
}

std::vector<std::string> FaultsOfRooms(const Rooms& rooms) {
  std::vector<std::string> faults;
  std::set<std::string> done;
  for (const auto& [name, room] : rooms) {
    for (const std::string& included : room.includes) {
      if (rooms.count(included) == 0) {
        faults.push_back(absl::StrCat(name, "/ declares an include of ", included, "/, which has no row"));
      }
    }
    std::vector<std::string> path;
    if (const auto circle = CircleThrough(name, rooms, path, done)) {
      faults.push_back(
          absl::StrCat("a circle of rooms: ", absl::StrJoin(*circle, "/ -> "), "/ -> ", circle->front(), "/"));
    }
  }
  return faults;
}

std::vector<std::string> FaultsOfIncludes(const Rooms& rooms, const std::string& path, const std::string& text) {
  std::vector<std::string> faults;
  const std::string folder = FolderOf(path);
  const auto room = rooms.find(folder);
  if (room == rooms.end()) return {absl::StrCat(path, ": its folder has no row in docs/architecture.md")};
  const bool for_tests = room->second.is_for_tests || IsForTests(path);

  int line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    const std::optional<std::string> quoted = IncludeOf(line);
    if (!quoted) continue;
    const std::string& included = *quoted;
    const auto fault = [&](const std::string& rule) {
      faults.push_back(absl::StrCat(path, ":", line_number, ": #include \"", included, "\": ", rule));
    };
    if (!absl::StartsWith(included, kPrefix)) {
      // "base/quote.h" would also be found, relative to the repository, but in no other repository.
      const std::string first = included.substr(0, included.find('/'));
      if (absl::StrContains(included, '/') && rooms.count(first) != 0) {
        fault("headers of this repository are included as \"fsdp/...\"");
      }
      continue;
    }
    const std::string target = FolderOf(included.substr(sizeof(kPrefix) - 1));
    const auto target_room = rooms.find(target);
    if (target_room == rooms.end()) {
      fault(absl::StrCat(target, "/ has no row in docs/architecture.md"));
    } else if (target == folder) {
      continue;
    } else if (for_tests) {
      // A test may use what its own room may, and whatever is not a program.
      const bool own_program = IsProgram(target) && (folder == "tests" || room->second.includes.count(target) != 0);
      if (IsProgram(target) && !own_program) fault(absl::StrCat("only tests/ and programs include ", target, "/"));
    } else if (target_room->second.is_for_tests) {
      fault(absl::StrCat(target, "/ is for tests; production code does not include it"));
    } else if (room->second.includes.count(target) == 0) {
      fault(absl::StrCat(folder,
                         "/ may include only: ", room->second.declared.empty() ? "nothing" : room->second.declared));
    }
  }
  return faults;
}

}  // namespace fsdp
