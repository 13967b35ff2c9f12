// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/url_password.h"

#include <string>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(UrlPasswordTest, UserAndPasswordOfEveryUrlAreHidden) {
  EXPECT_EQ(HidePasswords("https://u:pw@h/x does not exist"), "https://***@h/x does not exist");
  EXPECT_EQ(HidePasswords("a \"s3://u:p@w@b/x\", and ftp://token@h\n"), "a \"s3://***@b/x\", and ftp://***@h\n");
  EXPECT_EQ(HidePasswords("{\"path\":\"http://u:pw@h\"}"), "{\"path\":\"http://***@h\"}");
  EXPECT_EQ(HidePasswords("/tmp/https:/u:pw@h/x"), "/tmp/https:/***@h/x");
  EXPECT_EQ(HidePasswords("x://@"), "x://***@");
}

TEST(UrlPasswordTest, OtherTextStaysAsItIs) {
  for (const std::string text : {"", ":", "://", "s3://bucket/run@v2", "user@host: 5", "a:/b/c@d:e", "C:/x@y", "u:p@h",
                                 "see http://h \"and me@there\"", "http://h?x=a@b"}) {
    EXPECT_EQ(HidePasswords(text), text);
  }
}

}  // namespace
}  // namespace fsdp
