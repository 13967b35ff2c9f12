// SPDX-License-Identifier: Apache-2.0
//
// The pure half of hdf5_listing.h: what a child process says is not believed.
#include "fsdp/checkpoint/hdf5/hdf5_listing.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

Hdf5Dataset Floats(const std::string& path, int64_t numel, int64_t offset) {
  return {path, "", "float32", {numel}, offset, numel * 4, ""};
}

TEST(Hdf5ListingTest, ComesBackAsItWasEncoded) {
  const std::vector<Hdf5Dataset> listing = {Floats("/model/w", 7, 2048), {"/a", "a/b", "", {2, 3}, 0, 12, "chunked"}};
  ASSERT_OK_AND_ASSIGN(const auto decoded, DecodeHdf5Listing(EncodeHdf5Listing(listing)));
  ASSERT_EQ(decoded.size(), 2);
  EXPECT_EQ(decoded[0].path, "/model/w");
  EXPECT_EQ(decoded[0].offset, 2048);
  EXPECT_EQ(decoded[1].fqn, "a/b");
  EXPECT_EQ(decoded[1].dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(decoded[1].layout, "chunked");
}

TEST(Hdf5ListingTest, AnythingElseIsDataLoss) {
  for (const char* text :
       {"", "{}", "{\"datasets\":[1]}", "{\"datasets\":[{\"path\":\"/a\"}]}", "[", "{\"datasets\":{}}"}) {
    EXPECT_THAT(DecodeHdf5Listing(text), StatusIs(absl::StatusCode::kDataLoss)) << text;
  }
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
              StatusIs(absl::StatusCode::kDataLoss, "dataset \"/b\": its bytes from 15 on are also those of \"/a\""));
}

TEST(Hdf5ListingTest, BytesAreAsManyAsTypeAndShapeSay) {
  Hdf5Dataset wrong = Floats("/w", 4, 0);
  wrong.nbytes = 12;
  EXPECT_THAT(CheckHdf5Listing({wrong}, 100),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("it has 12 bytes, expected 16 for [4] of float32")));
  wrong = Floats("/w", 4, 0);
  wrong.dims = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(CheckHdf5Listing({wrong}, 100), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"/w\"")));
  wrong = Floats("/w", 4, 0);
  wrong.type = "float31";
  EXPECT_FALSE(CheckHdf5Listing({wrong}, 100).ok());
}

}  // namespace
}  // namespace fsdp
