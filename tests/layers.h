// SPDX-License-Identifier: Apache-2.0
//
// Layers: which room may include which, as the tables of docs/architecture.md say, and whether sources keep to it.
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

// One line for each #include of `text`, the source file `path` (relative to the repository), that breaks a rule: the
// file with its line, the include, and the rule.
std::vector<std::string> FaultsOfIncludes(const Rooms& rooms, const std::string& path, const std::string& text);

}  // namespace fsdp

#endif  // FSDP_TESTS_LAYERS_H_
