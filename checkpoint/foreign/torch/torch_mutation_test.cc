// SPDX-License-Identifier: Apache-2.0
//
// Ten thousand damaged files: whatever their contents, reading one ends soon, with an error or with tensors inside the
// file. Pickles, zip directories and DCP metadata, mutated from the real PyTorch's.
#include <random>

#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/foreign/zip/byte_file_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// Byte sequences with a meaning for the parsers.
const std::vector<std::string>& Words() {
  using namespace std::string_literals;  // NOLINT: literals
  static const auto* const words = new std::vector<std::string>{"(",
                                                                ")",
                                                                ".",
                                                                "0",
                                                                "1",
                                                                "]",
                                                                "}",
                                                                "a",
                                                                "e",
                                                                "s",
                                                                "u",
                                                                "t",
                                                                "R",
                                                                "b",
                                                                "Q",
                                                                "N",
                                                                "\x81",
                                                                "\x85",
                                                                "\x93",
                                                                "\x94",
                                                                "h\x00"s,
                                                                "q\x00"s,
                                                                "K\xff",
                                                                "J\xff\xff\xff\x7f",
                                                                "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
                                                                "X\xff\xff\xff\xff",
                                                                "cos\nsystem\n",
                                                                "ctorch._utils\n_rebuild_tensor_v2\n",
                                                                "\xff\xff\xff\xff",
                                                                "PK\x01\x02",
                                                                "PK\x05\x06",
                                                                "\0\0\0\0"s};
  return *words;
}

std::string Mutate(std::string bytes, size_t begin, size_t end, std::mt19937& random) {
  const int mutations = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < mutations; ++i) {
    const size_t at = begin + random() % (end - begin);
    const std::string& word = Words()[random() % Words().size()];
    switch (random() % 4) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] ^= static_cast<char>(1 << (random() % 8));
        break;
      case 2:  // the same length, so that offsets stay right
        bytes.replace(at, std::min(word.size(), end - at), word.substr(0, std::min(word.size(), end - at)));
        break;
      default:
        for (size_t j = at; j < std::min(at + 8, end); ++j) bytes[j] = bytes[begin + random() % (end - begin)];
    }
  }
  return bytes;
}

// Reads every tensor; returns whether there was one.
bool ReadsSafely(const ByteFile& file, const absl::StatusOr<TorchArchive>& archive) {
  if (!archive.ok()) {
    EXPECT_NE(archive.status().code(), absl::StatusCode::kInternal) << archive.status();
    return false;
  }
  std::vector<TorchLeafType> types;
  const TorchTensors& tensors = archive->tree.tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TorchTensor tensor = tensors[i];
    const StoragePlace place = archive->place(tensors.storage_of(i));
    EXPECT_GE(place.offset, 0);
    EXPECT_LE(place.offset + place.nbytes, *file.Size());
    int64_t last = tensor.offset;
    for (int d = 0; d < tensor.shape.rank(); ++d) last += (tensor.shape.dim(d) - 1) * tensor.strides[d];
    EXPECT_TRUE(tensor.shape.numel() == 0 || (last + 1) * SizeOf(tensor.dtype) <= place.nbytes);
    types.push_back({tensor.dtype, tensor.shape});
  }
  return StateOfTree(archive->tree.root, types).ok();
}

TEST(TorchMutationTest, DamagedPicklesAreReadOrRefused) {
  const std::string golden = ReadFile(TorchTestData("full.pt"));
  const size_t begin = golden.find("\x80\x02");
  const size_t end = golden.find("PK", begin);
  std::mt19937 random(1);
  int read = 0;
  for (int i = 0; i < 4000; ++i) {
    const ByteFile file(Mutate(golden, begin, end, random));
    read += ReadsSafely(file, ReadTorchArchive(*FileSlice::Whole(file), {.verify = false}));
  }
  EXPECT_GT(read, 50);
  EXPECT_LT(read, 3000);
}

TEST(TorchMutationTest, DamagedArchivesAreReadOrRefused) {
  const std::string golden = ReadFile(TorchTestData("protocol4.pt"));
  const size_t directory = golden.find("PK\x01\x02");
  std::mt19937 random(2);
  int read = 0;
  for (int i = 0; i < 3000; ++i) {
    const ByteFile file(Mutate(golden, i % 2 == 0 ? directory : 0, golden.size(), random));
    read += ReadsSafely(file, ReadTorchArchive(*FileSlice::Whole(file), {.verify = false}));
  }
  EXPECT_GT(read, 50);
  EXPECT_LT(read, 2500);
}

TEST(TorchMutationTest, DamagedLegacyFilesAreReadOrRefused) {
  const std::string golden = ReadFile(TorchTestData("legacy.pt"));
  std::mt19937 random(3);
  int read = 0;
  for (int i = 0; i < 2000; ++i) {
    const ByteFile file(Mutate(golden, 0, golden.size(), random));
    read += ReadsSafely(file, ReadLegacyTorchFile(*FileSlice::Whole(file)));
  }
  EXPECT_GT(read, 50);
  EXPECT_LT(read, 1900);
}

TEST(TorchMutationTest, DamagedDcpMetadataIsReadOrRefused) {
  const std::string golden = ReadFile(TorchTestData("tensor_parallel_w4/.metadata"));
  std::mt19937 random(4);
  int read = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string bytes = Mutate(golden, 0, golden.size(), random);
    const absl::StatusOr<DcpMetadata> metadata = ParseDcpMetadata(bytes);
    if (!metadata.ok()) continue;
    ++read;
    for (const DcpTensor& tensor : metadata->tensors) {
      int64_t covered = 0;
      for (uint32_t i = tensor.first_chunk; i < tensor.end_chunk; ++i) {
        int64_t volume = 1;
        for (const int64_t count : metadata->chunks.count(i)) volume *= count;
        covered += volume;
      }
      ASSERT_TRUE(tensor.shape.numel() == 0 || covered == tensor.shape.numel());
    }
  }
  EXPECT_GT(read, 20);
  EXPECT_LT(read, 1500);
}

}  // namespace
}  // namespace fsdp
