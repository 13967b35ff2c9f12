// SPDX-License-Identifier: Apache-2.0
//
// Compares the source tree with its pages. README.md is a file of the source tree and a link to it in a test's
// runfiles, so its real path leads to the sources: a glob of all of them in BUILD would need a target in every package.
#include "fsdp/tests/layers.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/file_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

constexpr char kTable[] = R"(
| room | includes | holds |
|---|---|---|
| `base/` | | macros |
| `tensor/` | base | Tensor |
| `shop/` | base tensor shop/* | the top |
| `shop/low/` | base | low |
| `shop/high/` | base shop/low | high |
| `shop/check/` | any | tests |
| `tools/` | base shop | a program |
)";

fs::path SourceTree() { return fs::canonical("README.md").parent_path(); }

bool IsSource(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cc" || extension == ".cu" || extension == ".cuh";
}

// Files of the source tree, by path relative to it. Outputs of Bazel, hidden folders, the repository inside of
// tests/consumer/ and the BUILD files for others' sources in third_party/registry/ are left out.
std::vector<std::string> Files() {
  std::vector<std::string> files;
  const fs::path tree = SourceTree();
  for (auto entry = fs::recursive_directory_iterator(tree); entry != fs::end(entry); ++entry) {
    const std::string name = entry->path().filename();
    if (entry->is_directory()) {
      const bool is_output = entry.depth() == 0 && absl::StartsWith(name, "bazel-");
      const bool is_consumer = name == "consumer" && entry->path().parent_path() == tree / "tests";
      const bool is_registry = name == "registry" && entry->path().parent_path() == tree / "third_party";
      if (is_output || is_consumer || is_registry || (name[0] == '.' && name != ".ci"))
        entry.disable_recursion_pending();
    } else if (entry->is_regular_file()) {
      files.push_back(fs::relative(entry->path(), tree));
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The sources that belong to a room, without test data and the emulator's stand-ins for CUDA's own headers.
std::vector<std::string> Sources() {
  std::vector<std::string> sources = Files();
  const auto is_no_source = [](const std::string& path) {
    return !IsSource(path) || absl::StrContains(path, "/testdata/") || absl::StrContains(path, "/include/");
  };
  sources.erase(std::remove_if(sources.begin(), sources.end(), is_no_source), sources.end());
  return sources;
}

// The targets of all BUILD files.
std::vector<BuildTarget> Targets() {
  std::vector<BuildTarget> targets;
  for (const fs::path path : Files()) {
    if (path.filename() != "BUILD.bazel") continue;
    for (BuildTarget& target : ParseBuild(path.parent_path(), ReadFile(SourceTree() / path))) {
      targets.push_back(std::move(target));
    }
  }
  return targets;
}

// `folder` and the folders in it that hold production code.
std::vector<std::string> RoomsBelow(const Rooms& rooms, const std::string& folder) {
  std::vector<std::string> below;
  for (const auto& [name, room] : rooms) {
    if (!room.is_for_tests && (name == folder || absl::StartsWith(name, folder + "/"))) below.push_back(name);
  }
  return below;
}

TEST(GuideTest, TheGuideAndThePublicTargetsHaveTheSameHeaders) {
  const std::set<std::string> guide = ParseGuide(ReadFile(SourceTree() / "docs/headers.md"));
  EXPECT_GT(guide.size(), 40u);
  const std::vector<std::string> faults = FaultsOfGuide(guide, Targets());
  EXPECT_TRUE(faults.empty()) << absl::StrJoin(faults, "\n");
}

TEST(GuideTest, AHeaderThatOnlyOneSideHasIsNamed) {
  const std::vector<BuildTarget> targets = ParseBuild("shop", R"(package(default_visibility = ["//visibility:private"])

cc_library(
    name = "open",
    hdrs = ["door.h"],
    visibility = ["//visibility:public"],
)

cc_library(
    name = "closed",
    hdrs = [
        "cellar.h",
        "wall.h",
    ],
)

cc_library(
    name = "fake",
    testonly = True,
    hdrs = ["fake_door.h"],
    visibility = ["//visibility:public"],
)
)");
  const std::set<std::string> guide = ParseGuide("| `fsdp/shop/wall.h` | holds the roof |\n| `shop/` | a room |\n");
  EXPECT_THAT(FaultsOfGuide(guide, targets),
              ElementsAre("fsdp/shop/door.h is in //shop:open, which is public, and not in the guide",
                          "fsdp/shop/wall.h is in the guide, and in no public target"));
}

TEST(GuideTest, ThePackagesDefaultVisibilityCounts) {
  const std::vector<BuildTarget> targets =
      ParseBuild("shop",
                 "package(default_visibility = [\"//visibility:public\"])\n\ncc_library(\n    name = \"open\",\n"
                 "    hdrs = [\"door.h\"],\n)\n");
  ASSERT_EQ(targets.size(), 1u);
  EXPECT_EQ(targets[0].name, "//shop:open");
  EXPECT_TRUE(targets[0].is_public);
  EXPECT_THAT(targets[0].headers, ElementsAre("fsdp/shop/door.h"));
}

// A header that a public header includes must be public too: programs that include it depend on it.
TEST(GuideTest, APublicHeaderIncludesOnlyPublicHeaders) {
  const std::set<std::string> guide = ParseGuide(ReadFile(SourceTree() / "docs/headers.md"));
  for (const std::string& header : guide) {
    const fs::path path = SourceTree() / header.substr(header.find('/') + 1);
    for (const std::string& include : PrivateIncludes(guide, header, ReadFile(path))) {
      ADD_FAILURE() << include << ", which is not in docs/headers.md";
    }
  }
}

TEST(GuideTest, AnIncludeOfAPrivateHeaderIsNamed) {
  const std::set<std::string> guide = {"fsdp/shop/door.h", "fsdp/base/quote.h"};
  EXPECT_THAT(PrivateIncludes(guide, "fsdp/shop/door.h",
                              "#include <map>\n#include \"absl/status/status.h\"\n#include \"fsdp/base/quote.h\"\n"
                              "#include \"fsdp/shop/wall.h\"  // IWYU pragma: export\n"),
              ElementsAre("fsdp/shop/door.h includes fsdp/shop/wall.h"));
}

TEST(GuideTest, HeadersHaveNamesOfTheirOwn) {
  std::set<std::string> headers;
  for (const std::string& path : Sources()) {
    if (absl::EndsWith(path, ".h")) headers.insert("fsdp/" + path);
  }
  // The first forwards to the second, so that a program begins with fsdp/fsdp.h.
  EXPECT_THAT(FaultsOfNames(headers), ElementsAre("one name for several headers: fsdp/fsdp.h, fsdp/fsdp/fsdp.h"));
}

TEST(GuideTest, HeadersWithOneNameAreNamed) {
  EXPECT_THAT(FaultsOfNames({"fsdp/shop/door.h", "fsdp/base/door.h", "fsdp/shop/wall.h"}),
              ElementsAre("one name for several headers: fsdp/base/door.h, fsdp/shop/door.h"));
}

TEST(PagesTest, EveryFileTargetAndTestThatAPageNamesExists) {
  NamesOfTree names;
  std::vector<std::string> pages;
  for (const std::string& file : Files()) {
    names.paths.insert(file);
    for (fs::path folder = fs::path(file).parent_path(); !folder.empty(); folder = folder.parent_path()) {
      names.paths.insert(folder);
    }
    const fs::path path(file);
    if (absl::EndsWith(file, "_test.cc")) names.tests.insert(path.stem());
    if (path.extension() == ".md") pages.push_back(file);
  }
  names.paths.insert("tests/consumer");
  names.paths.insert("tests/consumer/modules");
  names.paths.insert("third_party/registry");
  for (const BuildTarget& target : Targets()) names.targets.insert(target.name);
  ASSERT_GT(pages.size(), 10u);
  std::vector<std::string> faults;
  for (const std::string& page : pages) {
    for (std::string& fault : FaultsOfPage(names, page, ReadFile(SourceTree() / page)))
      faults.push_back(std::move(fault));
  }
  EXPECT_TRUE(faults.empty()) << absl::StrJoin(faults, "\n");
}

TEST(PagesTest, AMissingNameIsNamedWithItsLine) {
  const NamesOfTree names = {{"base", "base/quote.h", "docs"}, {"//base:base", "//base:check"}, {"quote_test"}};
  EXPECT_THAT(FaultsOfPage(names, "docs/a.md",
                           "`base/quote.h`, `base/`, `fsdp/base/quote.h`, `//base`, `//base:check`, "
                           "`quote_test`, `base:quote_test`, `other/thing`, `base/*`, `base/NAME/`"),
              ElementsAre());
  EXPECT_THAT(
      FaultsOfPage(names, "docs/a.md", "first\n`base/gone.h`\n```\n`base/code.h`\n```\n`//base:gone` `gone_test`"),
      ElementsAre("docs/a.md:2: `base/gone.h`: no such file or folder", "docs/a.md:6: `//base:gone`: no such target",
                  "docs/a.md:6: `gone_test`: no such test"));
}

TEST(LayersTest, TheTablesOfArchitectureHaveNoCircleAndNoUnknownRoom) {
  const Rooms rooms = ParseRooms(ReadFile(SourceTree() / "docs/architecture.md"));
  EXPECT_GT(rooms.size(), 40u);
  EXPECT_EQ(absl::StrJoin(FaultsOfRooms(rooms), "\n"), "");
}

TEST(LayersTest, EveryIncludeOfTheTreeKeepsToTheTables) {
  const Rooms rooms = ParseRooms(ReadFile(SourceTree() / "docs/architecture.md"));
  const std::vector<std::string> sources = Sources();
  ASSERT_GT(sources.size(), 500u) << "in " << SourceTree();
  std::vector<std::string> faults;
  for (const std::string& path : sources) {
    for (std::string& fault : FaultsOfIncludes(rooms, path, ReadFile(SourceTree() / path))) {
      faults.push_back(std::move(fault));
    }
  }
  EXPECT_EQ(absl::StrJoin(faults, "\n"), "");
}

// Waits and durations use SteadyNow (base/steady_clock.h). The system's clock is for dates that people and other
// programs read, and no date of a file or another host decides about anything.
TEST(LayersTest, OnlyDatesForPeopleReadTheSystemsClock) {
  const std::set<std::string> dates = {
      "base/steady_clock.cc",             // where its hands start
      "checkpoint/c_api/older_glibc.cc",  // a wait of older C libraries
      "checkpoint/storage/file_age.cc",   // for people
      "tensor/trace.cc",                  // when a trace began, and then steady
      "train/event_file.cc",              // TensorBoard's dates
  };
  const Rooms rooms = ParseRooms(ReadFile(SourceTree() / "docs/architecture.md"));
  std::vector<std::string> faults;
  for (const std::string& path : Sources()) {
    if (dates.count(path) != 0 || absl::EndsWith(path, "_benchmark.cc")) continue;
    for (std::string& read : ReadsOfTheClock(rooms, path, ReadFile(SourceTree() / path))) faults.push_back(read);
  }
  EXPECT_EQ(absl::StrJoin(faults, "\n"), "");
}

TEST(LayersTest, AReadOfTheSystemsClockIsNamedAndATestsIsNot) {
  const Rooms rooms = ParseRooms(kTable);
  const std::string text = "// absl::Now()\nreturn absl::Now() - start;\n";
  EXPECT_THAT(ReadsOfTheClock(rooms, "base/quote.cc", text), ElementsAre("base/quote.cc:2: absl::Now()"));
  EXPECT_THAT(ReadsOfTheClock(rooms, "base/quote_test.cc", text), ElementsAre());
  EXPECT_THAT(ReadsOfTheClock(rooms, "shop/check/probe.cc", text), ElementsAre());
}

TEST(LayersTest, NoTwoHeadersDefineAClassOfOneName) {
  std::map<std::string, std::vector<std::string>> classes;
  for (const std::string& path : Sources()) {
    if (!absl::EndsWith(path, ".h") || absl::StrContains(path, "testutil") || absl::StartsWith(path, "tests/"))
      continue;
    // The emulator's headers replace cuda's, so that no program has both.
    if (absl::StartsWith(path, "cuda/emulator/")) continue;
    classes[path] = ClassesOf(ReadFile(SourceTree() / path));
  }
  EXPECT_EQ(absl::StrJoin(FaultsOfClasses(classes), "\n"), "");
}

TEST(LayersTest, ClassesOfOneNameAreNamed) {
  const std::string door = "class Wall;\nstruct Door {\n  struct Inner {\n  };\n};\nenum class Side { kLeft };\n";
  EXPECT_THAT(ClassesOf(door), ElementsAre("Door", "Side"));
  EXPECT_THAT(FaultsOfClasses({{"a/door.h", ClassesOf(door)}, {"b/door.h", {"Door"}}, {"b/wall.h", {"Wall"}}}),
              ElementsAre("Door is in several headers: a/door.h, b/door.h"));
}

// An unused permission would let a future include in unnoticed.
TEST(LayersTest, EveryIncludeThatTheTablesAllowIsUsed) {
  std::map<std::string, std::set<std::string>> used;
  for (const std::string& path : Sources()) {
    used[fs::path(path).parent_path()].merge(RoomsIncluded(ReadFile(SourceTree() / path)));
  }
  for (const auto& [room, row] : ParseRooms(ReadFile(SourceTree() / "docs/architecture.md"))) {
    if (row.is_for_tests) continue;
    for (const absl::string_view allowed : absl::StrSplit(row.declared, ' ', absl::SkipEmpty())) {
      if (absl::EndsWith(allowed, "/*")) continue;
      EXPECT_EQ(used[room].count(std::string(allowed)), 1u) << room << "/ may include " << allowed << "/ and does not";
    }
  }
}

TEST(LayersTest, EveryDeclaredRoomHasSources) {
  std::set<std::string> folders;
  for (const std::string& path : Sources()) folders.insert(fs::path(path).parent_path());
  for (const auto& [room, row] : ParseRooms(ReadFile(SourceTree() / "docs/architecture.md"))) {
    EXPECT_EQ(folders.count(room), 1u) << room << "/ has a row in docs/architecture.md and no sources";
  }
}

// The two wings of checkpoint/. A row that lets one include the other fails here, even if no file includes it.
TEST(LayersTest, NeitherWingOfCheckpointMayIncludeTheOther) {
  const Rooms rooms = ParseRooms(ReadFile(SourceTree() / "docs/architecture.md"));
  const std::vector<std::string> native = RoomsBelow(rooms, "checkpoint/native");
  const std::vector<std::string> foreign = RoomsBelow(rooms, "checkpoint/foreign");
  ASSERT_GT(native.size(), 5u);
  ASSERT_GT(foreign.size(), 5u);
  const auto expect_fault = [&](const std::string& from, const std::string& to) {
    const std::string planted = "#include \"fsdp/" + to + "/planted.h\"\n";
    EXPECT_EQ(FaultsOfIncludes(rooms, from + "/planted.cc", planted).size(), 1u) << from << "/ may include " << to;
  };
  for (const std::string& a : native) {
    for (const std::string& b : foreign) {
      expect_fault(a, b);
      expect_fault(b, a);
    }
  }
}

TEST(LayersTest, APlantedIncludeIsNamedWithFileIncludeAndRule) {
  const Rooms rooms = ParseRooms(kTable);
  EXPECT_THAT(FaultsOfIncludes(rooms, "shop/low/shelf.cc", "// a\n#include \"fsdp/shop/high/roof.h\"\n"),
              ElementsAre("shop/low/shelf.cc:2: #include \"fsdp/shop/high/roof.h\": shop/low/ may include only: base"));
  EXPECT_THAT(FaultsOfIncludes(rooms, "base/quote.h", "#include \"fsdp/tensor/tensor.h\""),
              ElementsAre("base/quote.h:1: #include \"fsdp/tensor/tensor.h\": base/ may include only: nothing"));
}

TEST(LayersTest, AnIncludeWithoutThePrefixIsNamed) {
  EXPECT_THAT(FaultsOfIncludes(ParseRooms(kTable), "tensor/tensor.cc", "#include \"base/quote.h\""),
              ElementsAre("tensor/tensor.cc:1: #include \"base/quote.h\": headers of this repository are included as "
                          "\"fsdp/...\""));
}

TEST(LayersTest, AFolderWithoutARowIsNamed) {
  const Rooms rooms = ParseRooms(kTable);
  EXPECT_THAT(FaultsOfIncludes(rooms, "cellar/rat.cc", ""),
              ElementsAre("cellar/rat.cc: its folder has no row in docs/architecture.md"));
  EXPECT_THAT(
      FaultsOfIncludes(rooms, "base/quote.cc", "#include \"fsdp/cellar/rat.h\""),
      ElementsAre("base/quote.cc:1: #include \"fsdp/cellar/rat.h\": cellar/ has no row in docs/architecture.md"));
}

TEST(LayersTest, ProductionCodeIncludesNoRoomOfTests) {
  EXPECT_THAT(FaultsOfIncludes(ParseRooms(kTable), "shop/shop.cc", "#include \"fsdp/shop/check/probe.h\""),
              ElementsAre("shop/shop.cc:1: #include \"fsdp/shop/check/probe.h\": shop/check/ is for tests; production "
                          "code does not include it"));
}

TEST(LayersTest, TheCoreIncludesNoDoorWhateverItsRowSays) {
  const Rooms rooms = ParseRooms(
      "| `libtorch/` | collectives |\n| `collectives/` | collectives/mpi |\n| `collectives/mpi/` | |\n"
      "| `train/` | collectives/mpi |\n");
  const std::string text = "#include \"fsdp/collectives/mpi/mpi_transport.h\"";
  EXPECT_THAT(
      FaultsOfIncludes(rooms, "collectives/join.cc", text),
      ElementsAre("collectives/join.cc:1: " + text +
                  ": collectives/mpi/ registers with the core by being linked; no room of the core includes it"));
  EXPECT_THAT(FaultsOfIncludes(rooms, "train/train.cc", text), ElementsAre());
  EXPECT_THAT(FaultsOfIncludes(rooms, "collectives/join_test.cc", text), ElementsAre());
}

TEST(LayersTest, ATestMayIncludeAnyRoomButAProgram) {
  const Rooms rooms = ParseRooms(kTable);
  EXPECT_THAT(FaultsOfIncludes(rooms, "base/quote_test.cc", "#include \"fsdp/shop/high/roof.h\""), ElementsAre());
  EXPECT_THAT(
      FaultsOfIncludes(rooms, "base/quote_test.cc", "#include \"fsdp/tools/ckpt.h\""),
      ElementsAre("base/quote_test.cc:1: #include \"fsdp/tools/ckpt.h\": only tests/ and programs include tools/"));
}

TEST(LayersTest, ACircleInTheTablesIsNamed) {
  const Rooms rooms = ParseRooms("| `a/` | b |\n| `b/` | c |\n| `c/` | a |\n");
  EXPECT_THAT(FaultsOfRooms(rooms), ElementsAre("a circle of rooms: a/ -> b/ -> c/ -> a/"));
}

TEST(LayersTest, ARoomThatIsIncludedButHasNoRowIsNamed) {
  EXPECT_THAT(FaultsOfRooms(ParseRooms("| `a/` | b |\n")),
              ElementsAre("a/ declares an include of b/, which has no row"));
}

}  // namespace
}  // namespace fsdp
