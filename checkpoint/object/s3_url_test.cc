// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/s3_url.h"

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

TEST(S3UrlTest, AUrlIsABucketAndAPrefix) {
  ASSERT_OK_AND_ASSIGN(const S3Url url, ParseS3Url("s3://models/runs/gpt2/"));
  EXPECT_EQ(url.bucket, "models");
  EXPECT_EQ(url.prefix, "runs/gpt2");
  EXPECT_EQ(url.ToString(), "s3://models/runs/gpt2");
  EXPECT_EQ(url.Key("step-00000001/manifest.json"), "runs/gpt2/step-00000001/manifest.json");
}

TEST(S3UrlTest, ABucketAloneIsItsRoot) {
  for (const char* text : {"s3://models", "s3://models/"}) {
    ASSERT_OK_AND_ASSIGN(const S3Url url, ParseS3Url(text));
    EXPECT_EQ(url.prefix, "");
    EXPECT_EQ(url.Key("step-00000001"), "step-00000001");
    EXPECT_EQ(url.ToString(), "s3://models");
  }
}

TEST(S3UrlTest, OnlyTheSchemeMakesAUrlOfAPath) {
  EXPECT_TRUE(IsS3Url("s3://"));
  EXPECT_FALSE(IsS3Url("s3:/models"));
  EXPECT_FALSE(IsS3Url("/s3://models"));
  EXPECT_FALSE(IsS3Url("S3://models"));
}

TEST(S3UrlTest, WhatIsNoUrlIsRefusedWithTheRule) {
  for (const char* text : {"models/runs", "s3://", "s3:///runs", "s3://ab/runs", "s3://Models/runs", "s3://a_b/runs",
                           "s3://-models", "s3://models.", "s3://mo:dels/runs", "s3://user@models"}) {
    EXPECT_THAT(ParseS3Url(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("s3://BUCKET/PREFIX")))
        << text;
  }
  for (const char* text :
       {"s3://models//runs", "s3://models/runs//", "s3://models/../other", "s3://models/./runs", "s3://models/a\nb"}) {
    EXPECT_THAT(ParseS3Url(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a prefix without"))) << text;
  }
  EXPECT_THAT(ParseS3Url("s3://user:password@models/runs"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"s3://***@models/runs\": expected")));
  EXPECT_THAT(ParseS3Url("s3://models/" + std::string(801, 'a')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 800 bytes")));
}

}  // namespace
}  // namespace fsdp
