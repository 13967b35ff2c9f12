// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/torch/dcp/dcp_metadata.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/torch/dcp/dcp_source.h"
#include "fsdp/checkpoint/torch/golden.h"
#include "fsdp/checkpoint/torch/state/pickle_writer.h"
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

// The pickle of a .metadata that has one plain value, "step", in bytes [offset, offset + length) of a file.
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

// Regression: offset + length overflowed, and the message said "byte -9223372036854775808".
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

// The metadata of `tensors` matrices, a row of each in each of `ranks` files, as torch writes it: protocol 4, every
// object numbered by MEMOIZE, globals and texts written once.
class HonestMetadata {
 public:
  static std::string Of(int tensors, int ranks) {
    HonestMetadata metadata;
    const std::string module = "torch.distributed.checkpoint.metadata\n";
    metadata.bytes_ = "\x80\x04";
    metadata.Object(module + "Metadata", [&](HonestMetadata& m) {
      m.Text("state_dict_metadata");
      m.Dict([&] {
        for (int t = 0; t < tensors; ++t) m.Tensor(module, Name(t), ranks);
      });
      m.Text("storage_data");
      m.Dict([&] {
        for (int t = 0; t < tensors; ++t) {
          for (int r = 0; r < ranks; ++r) m.Place(module, Name(t), r, 4096 * t);
        }
      });
    });
    return metadata.bytes_ + ".";
  }

 private:
  static std::string Name(int tensor) { return absl::StrCat("model.layers.", tensor, ".mlp.gate_proj.weight"); }

  static std::string Little(int64_t value) {
    std::string bytes;
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
    return bytes;
  }

  void Put() {
    bytes_ += "\x94";
    ++next_;
  }

  // `opcodes` the first time, with PUT; then GET.
  void Once(const std::string& opcodes) {
    const auto [at, is_new] = memo_.try_emplace(opcodes, next_);
    bytes_ += is_new ? opcodes : "j" + Little(at->second);
    if (is_new) Put();
  }

  void Text(const std::string& text) { Once("X" + Little(static_cast<int64_t>(text.size())) + text); }
  void Global(const std::string& name) { Once("c" + name + "\n"); }
  void Integer(int64_t value) {  // in the fewest bytes
    bytes_ += value < 256 ? std::string{'K', static_cast<char>(value)} : "J" + Little(value);
  }

  template <typename Members>
  void Dict(const Members& members) {
    bytes_ += "}";
    Put();
    bytes_ += "(";
    members();
    bytes_ += "u";
  }

  template <typename Members>
  void Object(const std::string& name, const Members& members) {
    Global(name);
    bytes_ += ")\x81";
    Put();
    Dict([&] { members(*this); });
    bytes_ += "b";
  }

  void Size(int64_t rows, int64_t columns) {
    Global("torch\nSize");
    Integer(rows);
    Integer(columns);
    bytes_ += "\x86";
    Put();
    bytes_ += "\x85";
    Put();
    bytes_ += "R";
    Put();
  }

  void Tensor(const std::string& module, const std::string& name, int ranks) {
    Text(name);
    Object(module + "TensorStorageMetadata", [&](HonestMetadata& m) {
      m.Text("properties");
      m.Object(module + "TensorProperties", [](HonestMetadata& p) {
        p.Text("dtype");
        p.Global("torch\nfloat32");
      });
      m.Text("size");
      m.Size(ranks, 64);
      m.Text("chunks");
      m.bytes_ += "]";
      m.Put();
      m.bytes_ += "(";
      for (int r = 0; r < ranks; ++r) {
        m.Object(module + "ChunkStorageMetadata", [r](HonestMetadata& c) {
          c.Text("offsets");
          c.Size(r, 0);
          c.Text("sizes");
          c.Size(1, 64);
        });
      }
      m.bytes_ += "e";
    });
  }

  void Place(const std::string& module, const std::string& name, int rank, int64_t offset) {
    Object(module + "MetadataIndex", [&](HonestMetadata& m) {
      m.Text("fqn");
      m.Text(name);
      m.Text("offset");
      m.Size(rank, 0);
    });
    Object("torch.distributed.checkpoint.filesystem\n_StorageInfo", [&](HonestMetadata& m) {
      m.Text("relative_path");
      m.Text(absl::StrCat("__", rank, "_0.distcp"));
      m.Text("offset");
      m.Integer(offset);
      m.Text("length");
      m.Integer(4096);
    });
  }

  std::string bytes_;
  int64_t next_ = 0;  // in the memo
  std::unordered_map<std::string, int64_t> memo_;
};

// Regression: refused as too large, by the limit of pickles that have a few values for each tensor. From about 500
// tensors on that limit refuses them; below, its constant part is enough.
TEST(DcpMetadataTest, TheMetadataOf600TensorsFrom250RanksIsNotRefused) {
  ASSERT_OK_AND_ASSIGN(const DcpMetadata metadata, ParseDcpMetadata(HonestMetadata::Of(600, 250)));
  ASSERT_EQ(metadata.tensors.size(), 600);
  EXPECT_EQ(metadata.tensors.back().chunks.size(), 250);
}

}  // namespace
}  // namespace fsdp
