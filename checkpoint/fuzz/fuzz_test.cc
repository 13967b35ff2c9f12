// SPDX-License-Identifier: Apache-2.0
//
// Runs the fuzz targets on their corpus and on deterministic mutations of it, without libFuzzer.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fsdp/checkpoint/fuzz/fuzz_targets.h"
#include "fsdp/checkpoint/fuzz/mutator.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

struct Target {
  std::string name;  // also of its folder in corpus/
  bool (*run)(std::string_view bytes);
  int mutations;
};

std::vector<std::string> Corpus(const std::string& name) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator("checkpoint/fuzz/corpus/" + name)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const fs::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

class FuzzTest : public testing::TestWithParam<Target> {};

TEST_P(FuzzTest, MutationsOfTheCorpusBreakNoPromise) {
  const std::vector<std::string> corpus = Corpus(GetParam().name);
  ASSERT_FALSE(corpus.empty());
  for (const std::string& input : corpus) EXPECT_TRUE(GetParam().run(input));
  Mutator mutator(1);
  int read = 0;
  for (int i = 0; i < GetParam().mutations; ++i) {
    read += GetParam().run(mutator.Mutate(corpus[static_cast<size_t>(i) % corpus.size()])) ? 1 : 0;
  }
  // Some mutations leave an input readable, most do not.
  EXPECT_GT(read, GetParam().mutations / 200);
  EXPECT_LT(read, GetParam().mutations / 2);
}

INSTANTIATE_TEST_SUITE_P(
    Targets, FuzzTest,
    testing::Values(Target{"manifest", FuzzManifest, 2'000}, Target{"record", FuzzRecord, 2'000},
                    Target{"safetensors_header", FuzzSafetensorsHeader, 10'000},
                    Target{"safetensors_shards", FuzzSafetensorsShards, 2'000},
                    Target{"hugging_face_index", FuzzHuggingFaceIndex, 2'000}, Target{"hdf5_file", FuzzHdf5File, 500},
                    Target{"hdf5_listing", FuzzHdf5Listing, 2'000}, Target{"pickle", FuzzPickle, 3'000},
                    Target{"torch_archive", FuzzTorchArchive, 2'000}, Target{"dcp_metadata", FuzzDcpMetadata, 1'000},
                    Target{"npz", FuzzNpz, 2'000}, Target{"adapter", FuzzAdapter, 10'000},
                    Target{"deepspeed", FuzzDeepSpeed, 2'000}, Target{"gguf", FuzzGguf, 5'000},
                    Target{"ocdbt", FuzzOcdbt, 5'000}, Target{"zarr", FuzzZarr, 3'000},
                    Target{"megatron", FuzzMegatron, 1'000}, Target{"s3_reply", FuzzS3Reply, 5'000},
                    Target{"torch_checkpointing", FuzzTorchCheckpointing, 2'000}, Target{"keras", FuzzKeras, 5'000},
                    Target{"flax", FuzzFlax, 5'000}, Target{"onnx", FuzzOnnx, 5'000}, Target{"c_api", FuzzCApi, 1'000},
                    Target{"c_api_save", FuzzCApiSave, 1'000}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp
