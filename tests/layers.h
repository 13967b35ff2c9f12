// SPDX-License-Identifier: Apache-2.0
//
// Checks that the source tree is as the pages describe it: which room may include which (the
// tables of docs/architecture.md), which headers are public (the guide, docs/headers.md), and that files, folders,
// targets and tests named by a page exist. All functions are pure; the test reads the files.
//
// A room is a folder. A table row whose first cell is a folder in backticks (`fsdp/units/`) declares the rooms that its
// production code may include, in the second cell, separated by spaces: names of rooms without the trailing slash, or
// "checkpoint/*" for all rooms inside one. "any" marks a room of tests, fakes or benchmarks: it may include everything
// but programs, and production code may not include it.
#ifndef FSDP_TESTS_LAYERS_H_
#define FSDP_TESTS_LAYERS_H_

#include <map>
#include <set>
#include <string>
#include <vector>

namespace fsdp {

struct Room {
  std::string declared;            // the second cell, for messages
  std::set<std::string> includes;  // rooms, wildcards expanded
  bool is_for_tests = false;       // "any"
};

// By folder, without the trailing slash.
using Rooms = std::map<std::string, Room>;

// The rooms that the tables of `markdown` declare. Text outside of such rows is skipped.
Rooms ParseRooms(const std::string& markdown);

// One line for each fault of the tables themselves: a room that includes one that no row declares, a circle among rooms
// of production code.
std::vector<std::string> FaultsOfRooms(const Rooms& rooms);

// The rooms whose headers `text`, a source file, includes.
std::set<std::string> RoomsIncluded(const std::string& text);

// One line for each #include of `text`, the source file `path` (relative to the repository), that breaks a rule: the
// file with its line, the include, and the rule.
std::vector<std::string> FaultsOfIncludes(const Rooms& rooms, const std::string& path, const std::string& text);

// One line for each line of `text`, the source `path`, that reads the system's clock or a file's date: "base/a.cc:3:
// ...". None for tests and for rooms of tests.
std::vector<std::string> ReadsOfTheClock(const Rooms& rooms, const std::string& path, const std::string& text);

// The names of the classes, structs and enumerations that `text`, a header in the format of this project, defines at
// the scope of its namespace.
std::vector<std::string> ClassesOf(const std::string& text);

// One line for each name that several of `classes`, names by header, have. A program that links both definitions has
// one function for the members and containers of both.
std::vector<std::string> FaultsOfClasses(const std::map<std::string, std::vector<std::string>>& classes);

// The headers that `markdown` lists as public: first cells of table rows that are one header in backticks, as it is
// included (`fsdp/base/status_macros.h`).
std::set<std::string> ParseGuide(const std::string& markdown);

// A target of a BUILD file, as far as its text shows it.
struct BuildTarget {
  std::string name;
  std::vector<std::string> headers;  // `hdrs`, as they are included
  bool is_public = false;            // its own visibility, or the package's default
  bool is_for_tests = false;         // testonly
};

// The targets of `text`, the BUILD file of folder `package` ("" is the root). Reads rules as a formatter leaves them: a
// call at the beginning of a line, its end a line that is ")".
std::vector<BuildTarget> ParseBuild(const std::string& package, const std::string& text);

// One line for each header that is only in the guide, or only in the targets that are public and not for tests.
std::vector<std::string> FaultsOfGuide(const std::set<std::string>& guide, const std::vector<BuildTarget>& targets);

// One line for each header of this repository that the public header `header` (as it is included), with the text
// `text`, includes and that is not in `guide`: "fsdp/shop/door.h includes fsdp/shop/wall.h".
std::vector<std::string> PrivateIncludes(const std::set<std::string>& guide, const std::string& header,
                                         const std::string& text);

// One line for each file name that several of `headers`, paths, have.
std::vector<std::string> FaultsOfNames(const std::set<std::string>& headers);

// The names that a page may use.
struct NamesOfTree {
  std::set<std::string> paths;    // files and folders, relative to the repository, without a trailing slash
  std::set<std::string> targets;  // "//base:base_test"
  std::set<std::string> tests;    // sources of tests, "quote_test"
};

// One line for each name in backticks in `text`, the page `path`, that does not exist: a path below one of the
// top-level folders, a label that begins with //, a test `name_test`. Names with a wildcard, an alternative, or
// a placeholder in capital letters are skipped, and so are the emulated forms of targets, which a macro makes.
std::vector<std::string> FaultsOfPage(const NamesOfTree& names, const std::string& path, const std::string& text);

}  // namespace fsdp

#endif  // FSDP_TESTS_LAYERS_H_
