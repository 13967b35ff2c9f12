// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/page/page_testutil.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_replace.h"
#include "fsdp/checkpoint/foreign/torch/sha256_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {

std::string ScriptDigest(const std::string& text) { return absl::Base64Escape(absl::HexStringToBytes(Sha256(text))); }

void ExpectLoadsNothing(const std::string& page) {
  const std::string text = absl::StrReplaceAll(page, {{"http://www.w3.org/2000/svg", ""}, {"http-equiv", ""}});
  for (const char* outside : {"http", "<img", "<link", "<iframe", "@import", "url(", " src=", "javascript:"}) {
    EXPECT_EQ(text.find(outside), std::string::npos) << outside;
  }
  EXPECT_THAT(page, testing::HasSubstr("content=\"default-src 'none'; style-src 'unsafe-inline'"));
}

void ExpectTagsClose(const std::string& page) {
  std::vector<std::string> open;
  for (size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at)) {
    const size_t end = page.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = page.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" \n/", tag[0] == '/' ? 1 : 0));
    at = end + 1;
    if (name == "!doctype" || name == "meta" || name == "wbr" || name == "br" || tag.back() == '/') continue;
    if (name[0] == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      EXPECT_EQ("/" + open.back(), name) << "at byte " << at;
      open.pop_back();
      continue;
    }
    open.push_back(name);
    if (name == "script" || name == "style") at = page.find("</" + name, at);
  }
  EXPECT_TRUE(open.empty());
}

}  // namespace fsdp
