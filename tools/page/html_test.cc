// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/page/html.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/tools/page/page_testutil.h"
#include "fsdp/tools/page/table_script.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(HtmlTest, OnlyThePagesOwnScriptsMayRun) {
  EXPECT_EQ(kTableScript.sha256, ScriptDigest(kTableScript.text));
  const std::string page = PageHead("a", "", {kTableScript}) + PageFoot("b", {kTableScript});
  EXPECT_THAT(page, HasSubstr(absl::StrCat("; script-src 'sha256-", kTableScript.sha256, "'\">")));
  EXPECT_THAT(PageHead("a") + PageFoot("b"), Not(HasSubstr("script")));
  ExpectLoadsNothing(page);
  ExpectTagsClose(page);
}

TEST(HtmlTest, ANameIsTextAndMayBreakAfterItsDots) {
  EXPECT_EQ(Name("h.0/<b>"), "<bdi>h.<wbr>0/<wbr>&lt;b&gt;</bdi>");
  EXPECT_THAT(Name("\xE2\x80\xAE\n\""), AllOf(Not(HasSubstr("\xE2\x80\xAE")), Not(HasSubstr("\n"))));
}

TEST(HtmlTest, APageHasNoSecretsOfUrls) {
  EXPECT_EQ(EscapeHtml("https://u:pw@h/m?a=1&sig=s"), "https://***@h/m?a=1&amp;sig=***");
}

TEST(HtmlTest, ALongNameLosesItsMiddleAndNotItsEnds) {
  const std::string name = Name("first." + std::string(1'000'000, 'x') + ".last");
  EXPECT_THAT(name, AllOf(HasSubstr("first."), HasSubstr(".<wbr>.<wbr>.<wbr>"), HasSubstr("last")));
  EXPECT_LT(name.size(), 250u);
}

TEST(HtmlTest, ATableHasTitlesForAPhone) {
  const std::vector<TableColumn> columns = {{"name"}, {"bytes", true}, {"values", false, false}};
  EXPECT_EQ(
      DataTable("x", columns),
      "<div class=\"scroll\"><table class=\"data x\"><thead><tr><th scope=\"col\" class=\"\">name</th>"
      "<th scope=\"col\" class=\"number\">bytes</th><th scope=\"col\" class=\" unsorted\">values</th></tr></thead>\n");
  EXPECT_THAT(ColumnLabels("x", columns), HasSubstr(".x td:nth-child(2)::before { content: \"bytes\"; }"));
}

TEST(HtmlTest, ACellWithoutAValueIsSortedLast) {
  EXPECT_EQ(NumberCell("1.5 kB", 1536), "<td class=\"number\" data-v=\"1536\">1.5 kB</td>");
  EXPECT_EQ(NumberCell("–", std::nullopt, "bad"), "<td class=\"number bad\">–</td>");
  EXPECT_EQ(NumberCell("–", NAN), "<td class=\"number\">–</td>");
}

}  // namespace
}  // namespace fsdp
