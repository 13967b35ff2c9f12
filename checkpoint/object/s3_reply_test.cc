// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/s3_reply.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// From Amazon's documentation, with a namespace and members that the parser does not use.
constexpr char kPage[] = R"(<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <Name>models</Name><Prefix>run/</Prefix><KeyCount>2</KeyCount><MaxKeys>1000</MaxKeys>
  <IsTruncated>true</IsTruncated><NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</NextContinuationToken>
  <Contents><Key>run/a&amp;b&#x27;&#233;.json</Key><Size>434234</Size><ETag>&quot;fba9&quot;</ETag></Contents>
  <Contents><Key>run/empty</Key><Size>0</Size><Owner/></Contents>
  <CommonPrefixes><Prefix>run/step-00000001/</Prefix></CommonPrefixes>
</ListBucketResult>
)";

TEST(S3ReplyTest, APageOfAListingIsRead) {
  ASSERT_OK_AND_ASSIGN(const ListPage page, ParseListPage(kPage, "run/"));
  EXPECT_THAT(page.listing.objects,
              ElementsAre(ObjectEntry{"run/a&b'\xc3\xa9.json", 434234}, ObjectEntry{"run/empty", 0}));
  EXPECT_THAT(page.listing.folders, ElementsAre("run/step-00000001/"));
  EXPECT_EQ(page.next_token, "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=");
}

TEST(S3ReplyTest, AKeyOutsideOfThePrefixIsRefused) {
  EXPECT_THAT(ParseListPage(kPage, "run/a"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("run/empty")));
}

TEST(S3ReplyTest, UploadsAndTheirIdsAreRead) {
  ASSERT_OK_AND_ASSIGN(
      const UploadsPage page,
      ParseUploadsPage("<ListMultipartUploadsResult><IsTruncated>false</IsTruncated><Upload><Key>run/x</Key>"
                       "<UploadId>abc.d</UploadId></Upload></ListMultipartUploadsResult>",
                       "run/"));
  ASSERT_EQ(page.uploads.size(), 1u);
  EXPECT_EQ(page.uploads[0].key, "run/x");
  EXPECT_EQ(page.uploads[0].id, "abc.d");
  EXPECT_FALSE(page.is_truncated);
  ASSERT_OK_AND_ASSIGN(const std::string id, ParseUploadId("<InitiateMultipartUploadResult><UploadId>VX==</UploadId>"
                                                           "</InitiateMultipartUploadResult>"));
  EXPECT_EQ(id, "VX==");
}

TEST(S3ReplyTest, AnErrorHasACodeAMessageAndPerhapsARegion) {
  const S3Error error = ParseError(
      "<?xml version=\"1.0\"?>\n<Error><Code>PermanentRedirect</Code><Message>use \x1b[31mthe endpoint</Message>"
      "<Region>eu-west-1</Region><AWSAccessKeyId>AKID</AWSAccessKeyId></Error>");
  EXPECT_EQ(error.code, "PermanentRedirect");
  EXPECT_EQ(error.message, "use \\033[31mthe endpoint");
  EXPECT_EQ(error.region, "eu-west-1");
  EXPECT_EQ(ParseError("<html>not S3</html>").code, "");
  EXPECT_EQ(ParseError("").code, "");
}

TEST(S3ReplyTest, WhatIsNoPlainXmlIsRefused) {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "<a>";
  std::string many = "<ListBucketResult>";
  for (int i = 0; i < 70000; ++i) many += "<a/>";
  many += "</ListBucketResult>";
  const std::pair<std::string, std::string> cases[] = {
      {"", "is not XML"},
      {"{}", "is not XML"},
      {"<?xml ", "ends in its XML declaration"},
      {"<ListBucketResult>", "ends in element"},
      {"<ListBucketResult", "ends in a tag"},
      {"<ListBucketResult></List>", "ends element"},
      {"<ListBucketResult/><x/>", "continues after"},
      {"<Error/>", "expected ListBucketResult"},
      {"<!DOCTYPE a [<!ENTITY b \"c\">]><ListBucketResult/>", "expected a plain element"},
      {"<ListBucketResult><![CDATA[a]]></ListBucketResult>", "expected a plain element"},
      {"<ListBucketResult>&bomb;</ListBucketResult>", "which XML does not define"},
      {"<ListBucketResult>&#0;</ListBucketResult>", "which XML does not define"},
      {"<ListBucketResult>&amp</ListBucketResult>", "does not end"},
      {"<ListBucketResult><Contents><Key>k</Key></Contents></ListBucketResult>", "no size"},
      {"<ListBucketResult><Contents><Key>k</Key><Size>-1</Size></Contents></ListBucketResult>", "no size"},
      {"<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>", "lists the key"},
      {"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", "no NextContinuationToken"},
      {"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>a\nb</NextContinuationToken>"
       "</ListBucketResult>",
       "printable"},
      {deep, "too deeply"},
      {many, "too many elements"},
      {std::string(kMaxReplyBytes + 1, ' '), "longer than 4 MiB"},
  };
  for (const auto& [xml, message] : cases) {
    EXPECT_THAT(ParseListPage(xml, ""), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message))) << xml.substr(0, 99);
  }
}

}  // namespace
}  // namespace fsdp
