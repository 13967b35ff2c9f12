// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_source.h"
#include "fsdp/checkpoint/foreign/torch/dcp/honest_metadata.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

Box ChunkOf(std::vector<int64_t> start, std::vector<int64_t> count) { return {std::move(start), std::move(count)}; }

absl::Status Check(const Shape& shape, const std::vector<Box>& chunks) {
  std::vector<DcpBox> boxes;
  for (const Box& chunk : chunks) boxes.push_back({chunk.start, chunk.count});
  return CheckChunkCover(shape, boxes);
}

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

// A copy of a DCP directory, for damaging.
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

TEST(DcpMetadataTest, ARankMayHaveManyFiles) {
  EXPECT_EQ(DcpWorldSize({}), 1);
  EXPECT_EQ(DcpWorldSize({"__0_0.distcp", "__0_1.distcp", "__1_0.distcp", "__1_1.distcp"}), 2);
  EXPECT_EQ(DcpWorldSize({"__0_0.distcp", "__0_1.distcp", "__0_2.distcp"}), 1);
  EXPECT_EQ(DcpWorldSize({"__11_0.distcp", "__9_0.distcp"}), 12);  // the others had nothing to write
  EXPECT_EQ(DcpWorldSize({"__4000000000_0.distcp", "__-1_0.distcp", "__7.distcp", "7_0.distcp", "__7_0"}), 1);
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

void PythonObject(PickleWriter& pickle, std::string_view name, const std::function<void()>& members) {
  pickle.Global(name);
  pickle.EmptyTuple();
  pickle.NewObject();
  pickle.EmptyDict();
  pickle.Mark();
  members();
  pickle.SetItems();
  pickle.Build();
}

// The pickle of a .metadata with one plain value, "step", in bytes [offset, offset + length) of a file.
std::string MetadataOfValue(int64_t offset, int64_t length) {
  const std::string module = "torch.distributed.checkpoint.metadata.";
  PickleWriter pickle;
  PythonObject(pickle, module + "Metadata", [&] {
    pickle.String("state_dict_metadata");
    pickle.EmptyDict();
    pickle.Mark();
    pickle.String("step");
    PythonObject(pickle, module + "BytesStorageMetadata", [] {});
    pickle.SetItems();
    pickle.String("storage_data");
    pickle.EmptyDict();
    pickle.Mark();
    PythonObject(pickle, module + "MetadataIndex", [&] {
      pickle.String("fqn");
      pickle.String("step");
    });
    PythonObject(pickle, "torch.distributed.checkpoint.filesystem._StorageInfo", [&] {
      pickle.String("relative_path");
      pickle.String("__0_0.distcp");
      pickle.String("offset");
      pickle.Integer(offset);
      pickle.String("length");
      pickle.Integer(length);
    });
    pickle.SetItems();
  });
  return std::move(pickle).Finish();
}

// Regression: offset + length overflowed, and the message named "byte -9223372036854775808".
TEST(DcpMetadataTest, APlaceBeyondEveryFileIsNamedByItsOwnNumbers) {
  EXPECT_OK(ParseDcpMetadata(MetadataOfValue(64, 1000)));
  constexpr int64_t kHuge = int64_t{1} << 62;
  for (const auto& [offset, length] : {std::pair(kHuge, kHuge), {std::numeric_limits<int64_t>::max(), int64_t{1}}}) {
    EXPECT_THAT(ParseDcpMetadata(MetadataOfValue(offset, length)),
                StatusIs(absl::StatusCode::kDataLoss,
                         HasSubstr(absl::StrCat("\"step\" is placed in \"__0_0.distcp\", ", length, " bytes from byte ",
                                                offset, " on: no file reaches that far"))));
  }
}

// Regression: it was refused as too large, by the limit for pickles that have a few values for each tensor. From about
// 500 tensors on that limit refuses them; below, its constant part is enough.
TEST(DcpMetadataTest, TheMetadataOf600TensorsFrom250RanksIsNotRefused) {
  ASSERT_OK_AND_ASSIGN(const DcpMetadata metadata, ParseDcpMetadata(HonestMetadata::Of(600, 250)));
  ASSERT_EQ(metadata.tensors.size(), 600);
  EXPECT_EQ(metadata.tensors.back().end_chunk - metadata.tensors.back().first_chunk, 250);
}

}  // namespace
}  // namespace fsdp
