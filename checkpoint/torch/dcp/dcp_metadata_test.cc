// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/torch/dcp/dcp_metadata.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/torch/dcp/dcp_source.h"
#include "fsdp/checkpoint/torch/golden.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

DcpChunk ChunkOf(std::vector<int64_t> start, std::vector<int64_t> count) {
  return {{std::move(start), std::move(count)}, {"__0_0.distcp", 0, 1}};
}

absl::Status Check(const Shape& shape, std::vector<DcpChunk> chunks) { return CheckChunkCover(shape, chunks); }

TEST(DcpMetadataTest, ChunksMayCutSeveralDimensions) {
  EXPECT_OK(Check({4, 6}, {ChunkOf({0, 0}, {3, 2}), ChunkOf({0, 2}, {3, 4}), ChunkOf({3, 0}, {1, 6})}));
  EXPECT_OK(Check({4}, {ChunkOf({3}, {1}), ChunkOf({0}, {3})}));
  EXPECT_OK(Check({}, {ChunkOf({}, {})}));
  EXPECT_OK(Check({0, 3}, {}));
}

TEST(DcpMetadataTest, ReplicasCountOnce) { EXPECT_OK(Check({2}, {ChunkOf({0}, {2}), ChunkOf({0}, {2})})); }

TEST(DcpMetadataTest, HolesAndOverlapsAreNamed) {
  EXPECT_THAT(Check({4}, {ChunkOf({0}, {2})}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("indices [2, 4) of dimension 0 are missing")));
  EXPECT_THAT(Check({4}, {ChunkOf({0}, {3}), ChunkOf({2}, {2})}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("indices [2, 3) of dimension 0 are held twice")));
  EXPECT_THAT(Check({4, 6}, {ChunkOf({0, 0}, {4, 2}), ChunkOf({0, 3}, {4, 3})}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("indices [2, 3) of dimension 1 are missing")));
  EXPECT_THAT(Check({4}, {ChunkOf({2}, {9223372036854775807})}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("reaches beyond [4]")));
  EXPECT_THAT(Check({4}, {}), StatusIs(absl::StatusCode::kDataLoss));
}

// A copy of a DCP directory that may be damaged.
fs::path CopyOf(const std::string& name) {
  const fs::path copy = fs::path(testing::TempDir()) / name;
  fs::remove_all(copy);
  fs::copy(TorchTestData(name), copy, fs::copy_options::recursive);
  for (const auto& entry : fs::directory_iterator(copy)) fs::permissions(entry.path(), fs::perms::owner_all);
  return copy;
}

TEST(DcpSourceTest, TheNumberOfRanksIsThatOfTheFiles) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenDcpSource(TorchTestData("fsdp2_w3")));
  EXPECT_EQ(source->world_size(), 3);
  EXPECT_EQ(source->step(), 3);
}

TEST(DcpSourceTest, AMissingFileIsNamed) {
  const fs::path copy = CopyOf("fsdp1_w2");
  fs::remove(copy / "__1_0.distcp");
  EXPECT_THAT(OpenDcpSource(copy), StatusIs(absl::StatusCode::kNotFound, HasSubstr("__1_0.distcp")));
}

TEST(DcpSourceTest, ATruncatedFileIsNamedWithTensorAndBytes) {
  const fs::path copy = CopyOf("fsdp1_w2");
  fs::resize_file(copy / "__0_0.distcp", 6000);
  absl::Status status;
  const auto source = OpenDcpSource(copy);
  if (!source.ok()) status = source.status();
  if (source.ok()) {
    for (const auto& [key, value] : (*source)->contents().entries()) {
      if (std::holds_alternative<ShardedTensor>(value) && status.ok()) status = ReadWhole(**source, key).status();
    }
  }
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("__0_0.distcp, bytes "), HasSubstr("truncated"))));
}

}  // namespace
}  // namespace fsdp
