// SPDX-License-Identifier: Apache-2.0
//
// The pure half of hdf5_listing.h: the child process's answer is not trusted.
#include "fsdp/checkpoint/foreign/hdf5/hdf5_listing.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/source/decode_memory_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

Hdf5Dataset Floats(const std::string& path, int64_t numel, int64_t offset) {
  return {path, "", "float32", {numel}, offset, numel * 4, ""};
}

TEST(Hdf5ListingTest, ComesBackAsItWasEncoded) {
  Hdf5Listing listing;
  listing.datasets = {Floats("/model/w", 7, 2048), {"/a", "a/b", "", {2, 3}, 0, 12, "chunked"}};
  listing.left_out = {{"/b", "soft link", "/a", ""}, {"/c", "external link", "/x", "other.h5"}};
  listing.left_out_count = 2;
  ASSERT_OK_AND_ASSIGN(const Hdf5Listing decoded, DecodeHdf5Listing(EncodeHdf5Listing(listing)));
  ASSERT_EQ(decoded.datasets.size(), 2);
  EXPECT_EQ(decoded.datasets[0].path, "/model/w");
  EXPECT_EQ(decoded.datasets[0].offset, 2048);
  EXPECT_EQ(decoded.datasets[1].fqn, "a/b");
  EXPECT_EQ(decoded.datasets[1].dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(decoded.datasets[1].layout, "chunked");
  ASSERT_EQ(decoded.left_out.size(), 2);
  EXPECT_EQ(Describe(decoded.left_out[0]), R"("/b" (soft link to "/a"))");
  EXPECT_EQ(Describe(decoded.left_out[1]), R"("/c" (external link to "/x" in file "other.h5"))");
}

TEST(Hdf5ListingTest, AnythingElseIsDataLoss) {
  const std::string none = R"("aliases":[],"attributes":[],"left_out":[],"left_out_count":0)";
  for (const std::string& text :
       {std::string(), std::string("{}"), absl::StrCat(R"({"datasets":[1],)", none, "}"),
        absl::StrCat(R"({"datasets":[{"path":"/a"}],)", none, "}"), std::string("["),
        absl::StrCat(R"({"datasets":{},)", none, "}"), std::string(R"({"datasets":[]})"),
        std::string(R"({"datasets":[],"aliases":[],"attributes":[],"left_out":[1],"left_out_count":1})")}) {
    EXPECT_THAT(DecodeHdf5Listing(text), StatusIs(absl::StatusCode::kDataLoss)) << text;
  }
  EXPECT_OK(DecodeHdf5Listing(absl::StrCat(R"({"datasets":[],)", none, "}")));
}

// A hijacked child could otherwise hide links.
TEST(Hdf5ListingTest, LinksAreAsManyAsTheirCountSays) {
  Hdf5Listing listing;
  listing.left_out_count = 1;
  EXPECT_THAT(DecodeHdf5Listing(EncodeHdf5Listing(listing)),
              StatusIs(absl::StatusCode::kDataLoss, "0 links are listed of 1"));
  listing.left_out.resize(kMaxHdf5LeftOut + 1);
  listing.left_out_count = kMaxHdf5LeftOut + 1;
  EXPECT_THAT(DecodeHdf5Listing(EncodeHdf5Listing(listing)),
              StatusIs(absl::StatusCode::kDataLoss, "101 links are listed of 101"));
  listing.left_out.pop_back();
  EXPECT_OK(DecodeHdf5Listing(EncodeHdf5Listing(listing)));
}

// A hijacked child could answer this.
TEST(Hdf5ListingTest, AListingCostsFourTimesItsTextAnd64MiB) {
  if (!CanMeasurePeak()) GTEST_SKIP() << "peak memory is not measured here";
  const auto decode = [](std::string_view text) { return DecodeHdf5Listing(text).status(); };
  const auto dataset = [](int i) {
    return absl::StrCat(R"({"path":"/)", i,
                        R"(","fqn":"","type":"","dims":[1,1,1,1,1],"offset":0,"nbytes":0,"layout":""})");
  };
  const auto link = [](int) { return std::string(R"({"path":"","kind":"","target":"","file":""})"); };
  const auto one = [](int) { return std::string("1"); };
  const std::string none = R"(],"aliases":[],"attributes":[],"left_out":[],"left_out_count":0})";
  ExpectCheapDecoding("datasets", ManyItems(R"({"datasets":[)", dataset, none), /*is_accepted=*/true, decode);
  ExpectCheapDecoding("dimensions",
                      ManyItems(R"({"datasets":[{"path":"/a","fqn":"","type":"","dims":[)", one,
                                absl::StrCat(R"(],"offset":0,"nbytes":0,"layout":""})", none)),
                      /*is_accepted=*/false, decode);
  ExpectCheapDecoding(
      "links",
      ManyItems(R"({"datasets":[],"left_out_count":9000000,"aliases":[],"attributes":[],"left_out":[)", link, "]}"),
      /*is_accepted=*/false, decode);
}

TEST(Hdf5ListingTest, BytesLieInsideTheFile) {
  EXPECT_OK(CheckHdf5Listing({Floats("/w", 4, 84)}, 100));
  EXPECT_THAT(CheckHdf5Listing({Floats("/w", 4, 85)}, 100),
              StatusIs(absl::StatusCode::kDataLoss,
                       "dataset \"/w\": its 16 bytes at 85 reach behind the end of the file, which has 100"));
  EXPECT_THAT(CheckHdf5Listing({Floats("/w", 4, int64_t{1} << 62)}, 100), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(Hdf5ListingTest, NoTwoShareBytes) {
  EXPECT_OK(CheckHdf5Listing({Floats("/b", 4, 16), Floats("/a", 4, 0)}, 100));
  EXPECT_THAT(CheckHdf5Listing({Floats("/b", 4, 15), Floats("/a", 4, 0)}, 100),
              StatusIs(absl::StatusCode::kDataLoss, "dataset \"/b\": its bytes from 15 on overlap \"/a\""));
}

TEST(Hdf5ListingTest, BytesAreAsManyAsTypeAndShapeSay) {
  Hdf5Dataset wrong = Floats("/w", 4, 0);
  wrong.nbytes = 12;
  EXPECT_THAT(CheckHdf5Listing({wrong}, 100),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("it has 12 bytes, expected 16 for [4] of float32")));
  wrong = Floats("/w", 4, 0);
  wrong.dims = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(CheckHdf5Listing({wrong}, 100), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"/w\"")));
  // 2^64 bytes, which in 64 bits are none.
  wrong = {"/w", "", "complex128", {int64_t{1} << 60}, 0, 0, ""};
  EXPECT_THAT(CheckHdf5Listing({wrong}, 100),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("it has 0 bytes, expected 2^63 or more for")));
  wrong = Floats("/w", 4, 0);
  wrong.type = "float31";
  EXPECT_FALSE(CheckHdf5Listing({wrong}, 100).ok());
}

}  // namespace
}  // namespace fsdp
