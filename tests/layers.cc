// SPDX-License-Identifier: Apache-2.0
//
// Everything here works on text. Markdown tables and BUILD files are read line by line, which is enough for files that
// a formatter has laid out and needs no Bazel: the check is an ordinary test and takes less than a second.
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

// The room of a file. The one header of the root forwards to fsdp/ and counts as one of that room.
std::string RoomOf(const std::string& path) {
  const std::string folder = FolderOf(path);
  return folder.empty() ? "fsdp" : folder;
}

// Tests, benchmarks, fixtures and fakes are in the folder of the production code that they serve, and recognised by
// their names; Bazel's `testonly` keeps production code from depending on them.
bool IsForTests(const std::string& path) {
  static constexpr absl::string_view kBeginnings[] = {"test_",      "fake_",     "fault_",
                                                      "recording_", "counting_", "reference_"};
  static constexpr absl::string_view kEnds[] = {"_test",   "_testutil",    "_benchmark",
                                                "_faults", "_test_device", "_matchers"};
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::string stem = name.substr(0, name.find('.'));
  return std::any_of(std::begin(kBeginnings), std::end(kBeginnings),
                     [&](absl::string_view word) { return absl::StartsWith(stem, word); }) ||
         std::any_of(std::begin(kEnds), std::end(kEnds),
                     [&](absl::string_view word) { return absl::EndsWith(stem, word); });
}

// The path in quotes if the line is an #include with quotes; nothing for any other line.
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

// The door that a room is or is inside of, or nothing. A door registers with the core by being linked, and a program
// without it does not have its code. So no room of the core includes one, for any tables.
std::optional<std::string> DoorOf(const std::string& room) {
  static constexpr absl::string_view kDoors[] = {"checkpoint/c_api", "checkpoint/object", "collectives/mpi",
                                                 "libtorch"};
  for (const absl::string_view door : kDoors) {
    if (room == door || absl::StartsWith(room, absl::StrCat(door, "/"))) return std::string(door);
  }
  return std::nullopt;
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

// Depth-first search: the rooms from the first visit of `room` back to itself, or nothing.
std::optional<std::vector<std::string>> CircleThrough(const std::string& room, const Rooms& rooms,
                                                      std::vector<std::string>& path, std::set<std::string>& done) {
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == room) return std::vector<std::string>(path.begin() + static_cast<std::ptrdiff_t>(i), path.end());
  }
  const auto row = rooms.find(room);
  // A room that was finished before cannot be on a circle: all rooms below it were visited.
  if (row == rooms.end() || !done.insert(room).second) return std::nullopt;
  path.push_back(room);
  for (const std::string& included : row->second.includes) {
    if (auto circle = CircleThrough(included, rooms, path, done)) return circle;
  }
  path.pop_back();
  return std::nullopt;
}

// All strings in double quotes of `text` between `begin`, the name of an attribute, and the next "]".
std::vector<std::string> ListAfter(absl::string_view text, absl::string_view begin) {
  std::vector<std::string> list;
  const size_t at = text.find(begin);
  if (at == absl::string_view::npos) return list;
  text = text.substr(at);
  const std::vector<absl::string_view> parts = absl::StrSplit(text.substr(0, text.find(']')), '"');
  for (size_t i = 1; i < parts.size(); i += 2) list.emplace_back(parts[i]);
  return list;
}

// "visibility" must not be found in "default_visibility".
bool IsPublic(absl::string_view rule, bool by_default) {
  if (!absl::StrContains(rule, "\n    visibility = ")) return by_default;
  const std::vector<std::string> list = ListAfter(rule, "\n    visibility = ");
  return std::find(list.begin(), list.end(), "//visibility:public") != list.end();
}

// "//base:check" for "//base:check", "//fsdp:fsdp" for "//fsdp".
std::string FullLabel(const std::string& label) {
  if (absl::StrContains(label, ':')) return label;
  return absl::StrCat(label, ":", label.substr(label.rfind('/') + 1));
}

// True if a part of the path is a placeholder for any name: "checkpoint/FORMAT/".
bool HasPlaceholder(const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  return std::any_of(parts.begin(), parts.end(), [](const std::string& part) {
    return !part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isupper);
  });
}

// The problem with a name in backticks; empty if it exists or is not a name of this tree.
std::string ProblemOfName(const NamesOfTree& names, const std::string& name) {
  static constexpr char kNotInNames[] = "{}*<>$ ,()=";
  if (name.find_first_of(kNotInNames) != std::string::npos || HasPlaceholder(name)) return "";
  if (absl::StartsWith(name, "//")) {
    if (absl::EndsWith(name, "...") || absl::StrContains(name, "_emulated")) return "";
    return names.targets.count(FullLabel(name)) != 0 ? "" : "no such target";
  }
  const size_t colon = name.find(':');
  if (absl::EndsWith(name, "_test") && (colon != std::string::npos || !absl::StrContains(name, '/'))) {
    if (absl::StrContains(name, "_emulated")) return "";
    return names.tests.count(name.substr(colon + 1)) != 0 ? "" : "no such test";  // npos + 1 is 0
  }
  // A first part that is not in the tree makes it a path of something else, such as a URL or a repository.
  const size_t slash = name.find('/');
  if (slash == std::string::npos || names.paths.count(name.substr(0, slash)) == 0) return "";
  // Includes are "fsdp/fsdp/..." for the folder fsdp/, and "fsdp/base/..." for the others.
  absl::string_view path = absl::StripSuffix(name, "/");
  if (names.paths.count(std::string(path)) != 0) return "";
  if (absl::ConsumePrefix(&path, kPrefix) && names.paths.count(std::string(path)) != 0) return "";
  return "no such file or folder";
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
  // After all rows are known, since a wildcard may name rooms of later rows.
  for (const auto& [name, list] : words) {
    rooms[name].includes = Expanded(list, rooms);
  }
  return rooms;
}

// CircleThrough marks finished rooms in `done`, so each room is visited once, and each circle is found once.
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

std::set<std::string> RoomsIncluded(const std::string& text) {
  std::set<std::string> rooms;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::optional<std::string> included = IncludeOf(line);
    if (included && absl::StartsWith(*included, kPrefix)) {
      rooms.insert(RoomOf(included->substr(sizeof(kPrefix) - 1)));
    }
  }
  return rooms;
}

std::vector<std::string> FaultsOfIncludes(const Rooms& rooms, const std::string& path, const std::string& text) {
  std::vector<std::string> faults;
  const std::string folder = RoomOf(path);
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
      // "base/quote.h" is found in this repository, but not from another repository that depends on it.
      const std::string first = included.substr(0, included.find('/'));
      if (absl::StrContains(included, '/') && rooms.count(first) != 0) {
        fault("headers of this repository are included as \"fsdp/...\"");
      }
      continue;
    }
    const std::string target = RoomOf(included.substr(sizeof(kPrefix) - 1));
    const auto target_room = rooms.find(target);
    if (target_room == rooms.end()) {
      fault(absl::StrCat(target, "/ has no row in docs/architecture.md"));
    } else if (target == folder) {
      continue;
    } else if (for_tests) {
      // A test may include every room that its own room may include, and every room that does not belong to a program.
      const bool own_program = IsProgram(target) && (folder == "tests" || room->second.includes.count(target) != 0);
      if (IsProgram(target) && !own_program) fault(absl::StrCat("only tests/ and programs include ", target, "/"));
    } else if (target_room->second.is_for_tests) {
      fault(absl::StrCat(target, "/ is for tests; production code does not include it"));
    } else if (DoorOf(target) && DoorOf(folder) != DoorOf(target) && !IsProgram(folder)) {
      fault(absl::StrCat(target, "/ registers with the core by being linked; no room of the core includes it"));
    } else if (room->second.includes.count(target) == 0) {
      fault(absl::StrCat(folder,
                         "/ may include only: ", room->second.declared.empty() ? "nothing" : room->second.declared));
    }
  }
  return faults;
}

std::vector<std::string> ReadsOfTheClock(const Rooms& rooms, const std::string& path, const std::string& text) {
  const auto room = rooms.find(RoomOf(path));
  if (IsForTests(path) || (room != rooms.end() && room->second.is_for_tests)) return {};
  std::vector<std::string> reads;
  int line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    for (const absl::string_view clock :
         {"absl::Now()", "GetCurrentTime", "system_clock", "CLOCK_REALTIME", "file_clock", "gettimeofday(",
          "time(nullptr)", "last_write_time", "st_mtim", "st_ctim"}) {
      const absl::string_view code = line.substr(0, line.find("//"));
      if (absl::StrContains(code, clock)) reads.push_back(absl::StrCat(path, ":", line_number, ": ", clock));
    }
  }
  return reads;
}

std::vector<std::string> ClassesOf(const std::string& text) {
  std::vector<std::string> classes;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StrContains(line, "{")) continue;  // a declaration
    std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    if (words[0] == "enum" && words.size() > 1 && words[1] == "class") words.erase(words.begin());
    if (words.size() < 3 || (words[0] != "class" && words[0] != "struct" && words[0] != "enum")) continue;
    classes.emplace_back(absl::StripSuffix(words[1], ":"));
  }
  return classes;
}

std::vector<std::string> FaultsOfClasses(const std::map<std::string, std::vector<std::string>>& classes) {
  std::map<std::string, std::set<std::string>> headers;
  for (const auto& [header, names] : classes) {
    for (const std::string& name : names) headers[name].insert(header);
  }
  std::vector<std::string> faults;
  for (const auto& [name, of] : headers) {
    if (of.size() > 1) faults.push_back(absl::StrCat(name, " is in several headers: ", absl::StrJoin(of, ", ")));
  }
  return faults;
}

std::set<std::string> ParseGuide(const std::string& markdown) {
  std::set<std::string> headers;
  for (const absl::string_view line : absl::StrSplit(markdown, '\n')) {
    const std::vector<absl::string_view> cells = absl::StrSplit(line, '|');
    if (cells.size() < 3 || !cells[0].empty()) continue;
    absl::string_view name = absl::StripAsciiWhitespace(cells[1]);
    if (!absl::ConsumePrefix(&name, "`") || !absl::ConsumeSuffix(&name, "`")) continue;
    if (absl::StartsWith(name, kPrefix) && absl::EndsWith(name, ".h")) headers.emplace(name);
  }
  return headers;
}

// Rules end with a line that is ")", so the text between two of them has one rule, after comments and load statements.
// RunMetadata are recognised by their indentation, which separates them from attributes of nested calls.
std::vector<BuildTarget> ParseBuild(const std::string& package, const std::string& text) {
  std::vector<BuildTarget> targets;
  const std::vector<std::string> defaults = ListAfter(text, "default_visibility = ");
  const bool by_default = std::find(defaults.begin(), defaults.end(), "//visibility:public") != defaults.end();
  for (const absl::string_view rule : absl::StrSplit(text, "\n)\n")) {
    const size_t name = rule.find("\n    name = \"");
    if (name == absl::string_view::npos) continue;
    BuildTarget& target = targets.emplace_back();
    const absl::string_view rest = rule.substr(rule.find('"', name) + 1);
    target.name = absl::StrCat("//", package, ":", std::string(rest.substr(0, rest.find('"'))));
    target.is_public = IsPublic(rule, by_default);
    target.is_for_tests = absl::StrContains(rule, "\n    testonly = True");
    for (const std::string& header : ListAfter(rule, "\n    hdrs = ")) {
      target.headers.push_back(absl::StrCat(kPrefix, package, package.empty() ? "" : "/", header));
    }
  }
  return targets;
}

std::vector<std::string> FaultsOfGuide(const std::set<std::string>& guide, const std::vector<BuildTarget>& targets) {
  std::vector<std::string> faults;
  std::set<std::string> published;
  for (const BuildTarget& target : targets) {
    if (!target.is_public || target.is_for_tests) continue;
    for (const std::string& header : target.headers) {
      published.insert(header);
      if (guide.count(header) != 0) continue;
      faults.push_back(absl::StrCat(header, " is in ", target.name, ", which is public, and not in the guide"));
    }
  }
  for (const std::string& header : guide) {
    if (published.count(header) == 0)
      faults.push_back(absl::StrCat(header, " is in the guide, and in no public target"));
  }
  return faults;
}

std::vector<std::string> PrivateIncludes(const std::set<std::string>& guide, const std::string& header,
                                         const std::string& text) {
  std::vector<std::string> includes;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::optional<std::string> included = IncludeOf(line);
    if (!included || !absl::StartsWith(*included, kPrefix) || guide.count(*included) != 0) continue;
    includes.push_back(absl::StrCat(header, " includes ", *included));
  }
  return includes;
}

std::vector<std::string> FaultsOfNames(const std::set<std::string>& headers) {
  std::map<std::string, std::vector<std::string>> by_name;
  for (const std::string& header : headers) by_name[header.substr(header.rfind('/') + 1)].push_back(header);
  std::vector<std::string> faults;
  for (const auto& [name, same] : by_name) {
    if (same.size() > 1) faults.push_back(absl::StrCat("one name for several headers: ", absl::StrJoin(same, ", ")));
  }
  return faults;
}

// An odd backtick, if a name in backticks continues on the next line, only swaps names and text; text has blanks, and
// is skipped.
std::vector<std::string> FaultsOfPage(const NamesOfTree& names, const std::string& path, const std::string& text) {
  std::vector<std::string> faults;
  bool in_code = false;  // between lines that begin with ```
  int line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (absl::StartsWith(line, "```")) in_code = !in_code;
    if (in_code) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(line, '`');
    for (size_t i = 1; i + 1 < parts.size(); i += 2) {
      const std::string problem = ProblemOfName(names, std::string(parts[i]));
      if (problem.empty()) continue;
      faults.push_back(absl::StrCat(path, ":", line_number, ": `", std::string(parts[i]), "`: ", problem));
    }
  }
  return faults;
}

}  // namespace fsdp
