// SPDX-License-Identifier: Apache-2.0
//
// A foreign HDF5 file with links, through the ckpt program: each link is named, and only --skip_links leaves them out.
#include <filesystem>
#include <string>
#include <vector>

#include "fsdp/checkpoint/foreign/hdf5/foreign_hdf5.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const char kSoft[] = R"("/model/b" (soft link to "/model/a"))";
const char kExternal[] = R"("/model/c" (external link to "/x" in file "/etc/passwd"))";
const char kHard[] = R"("/model/d" (hard link to "/model"))";

class CkptLinksTest : public CkptTest {
 protected:
  CkptLinksTest() {
    ForeignHdf5 file(Path("x.h5"));
    file.AddDataset("/model/a", {1, 2, 3});
    file.AddSoftLink("/model/b", "/model/a");
    file.AddExternalLink("/model/c", "/etc/passwd", "/x");
    file.AddHardLink("/model/d", "/model");
  }

  // Member "left_out" of the object `text`; empty if there is no such object.
  static std::vector<std::string> LeftOutOf(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    return json.is_object() ? json.value("left_out", std::vector<std::string>()) : std::vector<std::string>();
  }

  // Exit status 1, and stderr names every link and the flag.
  void ExpectRefused(const std::vector<std::string>& arguments) const {
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(kSoft), HasSubstr(kExternal), HasSubstr(kHard),
                                   HasSubstr("set --skip_links to go without them"), Not(HasSubstr("damaged"))));
  }
};

TEST_F(CkptLinksTest, ConvertAndVerifyAndDiffExitWithOneAndNameEachLink) {
  ExpectRefused({"convert", Path("x.h5"), Path("out.safetensors")});
  EXPECT_FALSE(std::filesystem::exists(Path("out.safetensors")));
  ExpectRefused({"verify", Path("x.h5")});
  ExpectRefused({"diff", Path("x.h5"), Path("x.h5")});
}

TEST_F(CkptLinksTest, WithSkipLinksTheyAreNotes) {
  const std::string converted = MustCkpt({"convert", Path("x.h5"), Path("out.safetensors"), "--skip_links"});
  EXPECT_THAT(converted, AllOf(HasSubstr(": 1 tensor, 12 B\n"), HasSubstr(std::string("note: left out: ") + kSoft),
                               HasSubstr(std::string("note: left out: ") + kExternal),
                               HasSubstr(std::string("note: left out: ") + kHard)));
  const std::string verified = MustCkpt({"verify", Path("x.h5"), "--skip_links"});
  EXPECT_THAT(verified, AllOf(HasSubstr(std::string("note: left out: ") + kExternal), HasSubstr(": 1 tensor, ")));
  const std::string differ = MustCkpt({"diff", Path("x.h5"), Path("out.safetensors"), "--skip_links"});
  EXPECT_THAT(differ, AllOf(HasSubstr(std::string("left out of A: ") + kHard), HasSubstr("equal: 1 tensor,")));
  const std::string json = MustCkpt({"verify", Path("x.h5"), "--skip_links", "--json"});
  EXPECT_THAT(LeftOutOf(json), ElementsAre(kSoft, kExternal, kHard));
}

TEST_F(CkptLinksTest, InspectNamesThem) {
  EXPECT_THAT(MustCkpt({"inspect", Path("x.h5")}),
              AllOf(HasSubstr(std::string("left out  ") + kSoft + "\n"), HasSubstr(kExternal), HasSubstr(kHard)));
  const std::string json = MustCkpt({"inspect", Path("x.h5"), "--json", "--html=" + Path("page.html")});
  EXPECT_THAT(LeftOutOf(json), ElementsAre(kSoft, kExternal, kHard));
  EXPECT_THAT(ReadFile(Path("page.html")), AllOf(HasSubstr("Left out"), HasSubstr("/<wbr>etc/<wbr>passwd")));
}

TEST_F(CkptLinksTest, AFileOfLinksAloneIsNotSound) {
  {
    ForeignHdf5 file(Path("links.h5"));
    file.AddSoftLink("/model/b", "/model/a");
  }
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"verify", Path("links.h5")},
                                             {"verify", Path("links.h5"), "--skip_links"},
                                             {"convert", Path("links.h5"), Path("out"), "--skip_links"}}) {
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(kSoft), HasSubstr("there is nothing else in it")));
    EXPECT_THAT(outcome.out, Not(HasSubstr("sound")));
  }
}

TEST_F(CkptLinksTest, AViewOfAnHdf5FileIsRefusedForWhatItIs) {
  const Outcome outcome = Ckpt({"view", Path("x.h5"), Path("view.h5")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, Not(HasSubstr("skip_links")));
}

}  // namespace
}  // namespace fsdp
