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

TEST(UrlPasswordTest, WhatGivesAccessInAPresignedUrlIsHidden) {
  EXPECT_EQ(
      HidePasswords("https://b.s3.amazonaws.com/m.pt?X-Amz-Algorithm=AWS4&X-Amz-Credential=AK%2F20&X-Amz-Date=2026"
                    "&X-Amz-SignedHeaders=host&X-Amz-Signature=0a1b does not exist"),
      "https://b.s3.amazonaws.com/m.pt?X-Amz-Algorithm=AWS4&X-Amz-Credential=***&X-Amz-Date=2026"
      "&X-Amz-SignedHeaders=host&X-Amz-Signature=*** does not exist");
  EXPECT_EQ(HidePasswords("https://a.blob.core.windows.net/c/m?sv=2024&sig=a%2Bb=: expected a path"),
            "https://a.blob.core.windows.net/c/m?sv=2024&sig=***: expected a path");
  EXPECT_EQ(HidePasswords("{\"path\":\"/tmp/https:/h/m?a=1&x-goog-signature=9f\"}"),
            "{\"path\":\"/tmp/https:/h/m?a=1&x-goog-signature=***\"}");
  EXPECT_EQ(HidePasswords("<b>http://h/m?x=1&amp;access_token=hf_x</b>"), "<b>http://h/m?x=1&amp;access_token=***</b>");
  EXPECT_EQ(HidePasswords("m.safetensors?AWSAccessKeyId=A&Expires=1&Signature=b, and m?token=c#token=d"),
            "m.safetensors?AWSAccessKeyId=***&Expires=1&Signature=***, and m?token=***#token=***");
  EXPECT_EQ(HidePasswords("https://u:p@h/x?token=t"), "https://***@h/x?token=***");
}

TEST(UrlPasswordTest, OtherTextStaysAsItIs) {
  for (const std::string text : {"", ":", "://", "s3://bucket/run@v2", "user@host: 5", "a:/b/c@d:e", "C:/x@y", "u:p@h",
                                 "see http://h \"and me@there\"", "http://h?x=a@b", "token=5", "a; token=5",
                                 "?=", "&sig=", "http://h?revision=main&tokens=5&page=2", "--tokens=a?b"}) {
    EXPECT_EQ(HidePasswords(text), text);
  }
}

}  // namespace
}  // namespace fsdp
