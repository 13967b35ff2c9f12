// SPDX-License-Identifier: Apache-2.0
//
// The functions of fsdp_checkpoint.h on checkpoints that exist, called in the shared library, as C programs call them:
// reads, verification, lists, repair, conversion, comparison.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/checkpoint/c_api/c_api_testutil.h"
#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CApiTest, AFlippedBitIsDataLossAndNamesTensorAndFile) {
  const std::string root = NewCApiDirectory();
  const CState state = NewCState(FSDP_FULL);
  const std::vector<double> weights(4096, 1.0);
  const int64_t dims[] = {4096};
  const fsdp_shard all = {0, 4096, weights.data()};
  ASSERT_EQ(fsdp_state_add_tensor(state.get(), "model/w", FSDP_FLOAT64, 1, dims, &all, 1), FSDP_OK);
  ASSERT_EQ(fsdp_save(state.get(), root.c_str(), 3, nullptr, nullptr, nullptr), FSDP_OK) << fsdp_error_message();
  const std::string directory = root + "/step-00000003";
  EXPECT_EQ(fsdp_verify(directory.c_str(), nullptr, nullptr), FSDP_OK) << fsdp_error_message();
  {
    std::fstream file(directory + "/checkpoint.h5", std::ios::in | std::ios::out | std::ios::binary);
    std::string bytes(fs::file_size(directory + "/checkpoint.h5"), '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    const double one = 1.0;
    const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&one), sizeof(one)));
    ASSERT_NE(at, std::string::npos);
    file.seekp(static_cast<std::streamoff>(at));
    file.put('\1');
  }
  const CReader reader = OpenCReader(directory);
  std::vector<double> out(4096);
  const fsdp_read read = {0, 0, 4096, FSDP_FLOAT64, out.data()};
  EXPECT_EQ(fsdp_reader_read(reader.get(), &read, 1, 2), FSDP_DATA_LOSS);
  EXPECT_THAT(fsdp_error_message(), AllOf(HasSubstr("model/w"), HasSubstr("checkpoint.h5")));
  char* report = nullptr;
  EXPECT_EQ(fsdp_verify(directory.c_str(), nullptr, &report), FSDP_DATA_LOSS);
  EXPECT_THAT(report, HasSubstr("model/w"));
  fsdp_free(report);
  fsdp_open_options options = {};
  options.struct_size = sizeof(options);
  options.no_verify = 1;
  fsdp_reader* unverified = nullptr;
  ASSERT_EQ(fsdp_reader_open(directory.c_str(), &options, &unverified), FSDP_OK);
  EXPECT_EQ(fsdp_reader_read(unverified, &read, 1, 1), FSDP_OK);
  fsdp_reader_close(unverified);
}

TEST(CApiTest, ADirectoryOfNamedCheckpointsIsListedPrunedAndRepaired) {
  const std::string root = NewCApiDirectory();
  const CState state = NewCState(FSDP_SHARDED);
  CModel model;
  model.AddTo(state.get(), 0, 10, true);
  fsdp_save_options options = {};
  options.struct_size = sizeof(options);
  options.parity = 1;
  for (const int step : {20, 30, 10}) {
    const std::string name = "checkpoint-" + std::to_string(step);
    options.name = name.c_str();
    char* path = nullptr;
    ASSERT_EQ(fsdp_save(state.get(), root.c_str(), step, nullptr, &options, &path), FSDP_OK) << fsdp_error_message();
    EXPECT_EQ(path, root + "/" + name);
    fsdp_free(path);
  }
  char* text = nullptr;
  ASSERT_EQ(fsdp_steps(root.c_str(), &text), FSDP_OK) << fsdp_error_message();
  EXPECT_STREQ(text, "10 checkpoint-10\n20 checkpoint-20\n30 checkpoint-30");
  fsdp_free(text);
  fsdp_prune_options prune = {};
  prune.struct_size = sizeof(prune);
  prune.keep_every = 20;
  ASSERT_EQ(fsdp_prune(root.c_str(), &prune, &text), FSDP_OK) << fsdp_error_message();
  EXPECT_STREQ(text, "checkpoint-10");
  fsdp_free(text);
  const std::string newest = root + "/checkpoint-30";
  fs::remove(newest + "/rank-00000-of-00001.h5");
  ASSERT_EQ(fsdp_latest(root.c_str(), &text), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(text, root + "/checkpoint-20");
  fsdp_free(text);
  ASSERT_EQ(fsdp_repair(newest.c_str(), 0, &text), FSDP_OK) << fsdp_error_message();
  EXPECT_THAT(text, HasSubstr("rank-00000-of-00001.h5"));
  fsdp_free(text);
  ASSERT_EQ(fsdp_latest(root.c_str(), &text), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(text, newest);
  fsdp_free(text);
  fs::remove(newest + "/rank-00000-of-00001.h5");
  fs::remove(newest + "/parity-00000-of-00001.bin");
  EXPECT_EQ(fsdp_repair(newest.c_str(), 0, &text), FSDP_DATA_LOSS);
  EXPECT_STRNE(text, "");
  fsdp_free(text);
  prune.keep_last = -1;
  EXPECT_EQ(fsdp_prune(root.c_str(), &prune, nullptr), FSDP_INVALID_ARGUMENT);
  options.name = "a/b";
  EXPECT_EQ(fsdp_save(state.get(), root.c_str(), 1, nullptr, &options, nullptr), FSDP_INVALID_ARGUMENT);
}

TEST(CApiTest, ConvertingKeepsValuesAndDiffNamesWhatDiffers) {
  const std::string root = NewCApiDirectory();
  const CState state = NewCState(FSDP_FULL);
  CModel model;
  model.AddTo(state.get(), 0, 10, true);
  ASSERT_EQ(fsdp_save(state.get(), root.c_str(), 1, nullptr, nullptr, nullptr), FSDP_OK);
  model.weight[4] = 100;
  ASSERT_EQ(fsdp_save(state.get(), root.c_str(), 2, nullptr, nullptr, nullptr), FSDP_OK);
  const std::string first = root + "/step-00000001", second = root + "/step-00000002";
  fsdp_convert_options options = {};
  options.struct_size = sizeof(options);
  options.kind = FSDP_SHARDED;
  options.world_size = 4;
  char* report = nullptr;
  const std::string sharded = root + "/sharded";
  ASSERT_EQ(fsdp_convert(first.c_str(), sharded.c_str(), &options, &report), FSDP_OK) << fsdp_error_message();
  EXPECT_STREQ(report, "");
  fsdp_free(report);
  ExpectCModel(sharded, 1, 4);
  int32_t equal = 0;
  ASSERT_EQ(fsdp_diff(first.c_str(), sharded.c_str(), nullptr, &equal, nullptr), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(equal, 1);
  ASSERT_EQ(fsdp_diff(first.c_str(), second.c_str(), nullptr, &equal, &report), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(equal, 0);
  EXPECT_STREQ(report, "model/w: 1 of 30 elements differ, the first is number 4, by at most 96");
  fsdp_free(report);
  fsdp_diff_options tolerance = {};
  tolerance.struct_size = sizeof(tolerance);
  tolerance.atol = 96;
  ASSERT_EQ(fsdp_diff(first.c_str(), second.c_str(), &tolerance, &equal, nullptr), FSDP_OK);
  EXPECT_EQ(equal, 1);
  tolerance.atol = -1;
  EXPECT_EQ(fsdp_diff(first.c_str(), second.c_str(), &tolerance, &equal, nullptr), FSDP_INVALID_ARGUMENT);

  const std::string file = root + "/exported.safetensors";
  ASSERT_EQ(fsdp_convert(first.c_str(), file.c_str(), nullptr, &report), FSDP_OK) << fsdp_error_message();
  fsdp_free(report);
  const CReader reader = OpenCReader(file);
  EXPECT_STREQ(fsdp_reader_format(reader.get()), "safetensors");
  EXPECT_EQ(fsdp_reader_path(reader.get()), file);
  char* identity = nullptr;
  ASSERT_EQ(fsdp_reader_identity(reader.get(), &identity), FSDP_OK) << fsdp_error_message();
  EXPECT_THAT(identity, testing::StartsWith("1 file of "));
  fsdp_free(identity);
  EXPECT_EQ(ReadAll<float>(reader.get(), "model/w", FSDP_FLOAT32, 29, 30), (std::vector<float>{29}));
  EXPECT_EQ(fsdp_convert(first.c_str(), file.c_str(), nullptr, nullptr), FSDP_ALREADY_EXISTS);
  EXPECT_EQ(fsdp_convert(first.c_str(), (root + "/x.safetensors").c_str(), &options, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(), "options: kind, world_size and parity are for hdf5");
}

TEST(CApiTest, EveryDtypeOfASafetensorsFileIsReadAsStored) {
  const CReader reader = OpenCReader("checkpoint/testdata/all_dtypes.safetensors");
  ASSERT_NE(reader, nullptr);
  ASSERT_GT(fsdp_reader_tensor_count(reader.get()), 10);
  for (int64_t i = 0; i < fsdp_reader_tensor_count(reader.get()); ++i) {
    fsdp_tensor tensor = {};
    ASSERT_EQ(fsdp_reader_tensor(reader.get(), i, &tensor), FSDP_OK);
    ASSERT_GT(fsdp_dtype_size(tensor.dtype), 0) << tensor.name;
    std::string out(tensor.numel * fsdp_dtype_size(tensor.dtype), '\xee');
    const fsdp_read read = {i, 0, tensor.numel, tensor.dtype, out.data()};
    EXPECT_EQ(fsdp_reader_read(reader.get(), &read, 1, 0), FSDP_OK) << tensor.name << ": " << fsdp_error_message();
  }
}

TEST(CApiTest, ManyThreadsReadOneReaderAtOnce) {
  const std::string root = NewCApiDirectory();
  const CState state = NewCState(FSDP_FULL);
  std::vector<int64_t> numbers(1 << 18);
  std::iota(numbers.begin(), numbers.end(), 0);
  const int64_t dims[] = {1 << 18};
  const fsdp_shard all = {0, 1 << 18, numbers.data()};
  ASSERT_EQ(fsdp_state_add_tensor(state.get(), "model/n", FSDP_INT64, 1, dims, &all, 1), FSDP_OK);
  ASSERT_EQ(fsdp_save(state.get(), root.c_str(), 0, nullptr, nullptr, nullptr), FSDP_OK) << fsdp_error_message();
  const CReader reader = OpenCReader(root);
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      const int64_t begin = thread * 1000 + 1;
      const auto read = ReadAll<int64_t>(reader.get(), "model/n", FSDP_INT64, begin, begin + 200000);
      EXPECT_TRUE(std::equal(read.begin(), read.end(), numbers.begin() + begin));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace fsdp
