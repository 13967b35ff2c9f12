// SPDX-License-Identifier: Apache-2.0
//
// Mistakes of callers: each gives an error with a text, and no mistake ends the program.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "fsdp/checkpoint/foreign/torch/many_tensors.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

class CApiErrorsTest : public testing::Test {
 protected:
  CApiErrorsTest() {
    EXPECT_EQ(fsdp_reader_open("checkpoint/testdata/all_dtypes.safetensors", nullptr, &reader_), FSDP_OK)
        << fsdp_error_message();
    EXPECT_EQ(fsdp_state_create(FSDP_FULL, &state_), FSDP_OK);
  }
  ~CApiErrorsTest() override {
    fsdp_reader_close(reader_);
    fsdp_state_free(state_);
  }

  fsdp_reader* reader_ = nullptr;
  fsdp_state* state_ = nullptr;
  char text_[16] = {};
};

TEST_F(CApiErrorsTest, AMessageCommandsNoTerminal) {
  fsdp_reader* reader = nullptr;
  EXPECT_EQ(fsdp_reader_open("no/\x1b[31m\xE2\x80\xAE\xFF", nullptr, &reader), FSDP_NOT_FOUND);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("no/\\033[31m\\u202e\\377"));
}

TEST_F(CApiErrorsTest, NullIsRefusedByItsName) {
  fsdp_reader* reader = nullptr;
  EXPECT_EQ(fsdp_reader_open(nullptr, nullptr, &reader), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(), "path is NULL");
  EXPECT_EQ(fsdp_reader_open("x", nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(), "reader is NULL");
  fsdp_tensor tensor = {};
  EXPECT_EQ(fsdp_reader_tensor(nullptr, 0, &tensor), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_reader_tensor(reader_, 0, nullptr), FSDP_INVALID_ARGUMENT);
  const char* name = nullptr;
  EXPECT_EQ(fsdp_reader_text(nullptr, 0, &name, &name, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_reader_text(reader_, 0, nullptr, &name, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_reader_alias(nullptr, 0, &name, &name), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_reader_alias(reader_, 0, &name, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_reader_read(nullptr, nullptr, 0, 0), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_reader_read(reader_, nullptr, 1, 0), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(), "reads is NULL");
  EXPECT_EQ(fsdp_state_create(FSDP_FULL, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_state_add_tensor(nullptr, "model/a", 0, 0, nullptr, nullptr, 0), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_state_add_text(nullptr, "extra/a", "", 0), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_state_add_text(state_, nullptr, "", 0), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_state_add_text(state_, "extra/a", nullptr, 3), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_state_add_alias(state_, nullptr, "a"), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_state_add_unit(state_, nullptr, 0, 0, nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_state_add_unit(state_, "", 0, 1, nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  char* identity = nullptr;
  EXPECT_EQ(fsdp_reader_identity(nullptr, &identity), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_reader_identity(reader_, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_save(nullptr, "x", 0, nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_save(state_, nullptr, 0, nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_saver_create(nullptr, nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_saver_save(nullptr, state_, 0), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_saver_wait(nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_convert(nullptr, "x", nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_convert("x", nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_verify(nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_diff("x", "x", nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_repair(nullptr, 0, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_steps(nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_latest(nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_prune(nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
}

TEST_F(CApiErrorsTest, NullIsNoReaderAndNothingIsFreed) {
  EXPECT_STREQ(fsdp_reader_format(nullptr), "");
  EXPECT_STREQ(fsdp_reader_path(nullptr), "");
  EXPECT_EQ(fsdp_reader_step(nullptr), -1);
  EXPECT_EQ(fsdp_reader_world_size(nullptr), 1);
  EXPECT_EQ(fsdp_reader_tensor_count(nullptr), 0);
  EXPECT_EQ(fsdp_reader_text_count(nullptr), 0);
  EXPECT_EQ(fsdp_reader_alias_count(nullptr), 0);
  EXPECT_EQ(fsdp_reader_find(nullptr, "model/a"), -1);
  EXPECT_EQ(fsdp_reader_find(reader_, nullptr), -1);
  fsdp_reader_close(nullptr);
  fsdp_state_free(nullptr);
  fsdp_saver_free(nullptr);
  fsdp_free(nullptr);
}

TEST_F(CApiErrorsTest, ANumberOutsideOfTheReaderIsOutOfRange) {
  fsdp_tensor tensor = {};
  const char* name = nullptr;
  for (const int64_t index : {int64_t{-1}, fsdp_reader_tensor_count(reader_), INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(fsdp_reader_tensor(reader_, index, &tensor), FSDP_OUT_OF_RANGE);
    EXPECT_EQ(fsdp_reader_text(reader_, index, &name, &name, nullptr), FSDP_OUT_OF_RANGE);
    EXPECT_EQ(fsdp_reader_alias(reader_, index, &name, &name), FSDP_OUT_OF_RANGE);
    const fsdp_read read = {index, 0, 1, FSDP_FLOAT32, text_};
    EXPECT_EQ(fsdp_reader_read(reader_, &read, 1, 0), FSDP_OUT_OF_RANGE);
    EXPECT_THAT(fsdp_error_message(), HasSubstr("of a reader that has"));
  }
}

TEST_F(CApiErrorsTest, AnIntervalOutsideOfTheTensorIsRefusedWithItsName) {
  fsdp_tensor tensor = {};
  ASSERT_EQ(fsdp_reader_tensor(reader_, 0, &tensor), FSDP_OK);
  const std::vector<std::pair<int64_t, int64_t>> intervals = {{-1, 1},        {1, 0},         {0, tensor.numel + 1},
                                                              {0, INT64_MAX}, {INT64_MIN, 0}, {INT64_MAX, INT64_MAX}};
  for (const auto& [begin, end] : intervals) {
    const fsdp_read read = {0, begin, end, tensor.dtype, text_};
    EXPECT_EQ(fsdp_reader_read(reader_, &read, 1, 0), FSDP_INVALID_ARGUMENT) << begin << " " << end;
    EXPECT_THAT(fsdp_error_message(), HasSubstr(tensor.name));
  }
  fsdp_read read = {0, 0, 1, tensor.dtype, nullptr};
  EXPECT_EQ(fsdp_reader_read(reader_, &read, 1, 0), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(), "fsdp_read.out is NULL");
  read = {0, 0, 0, tensor.dtype, nullptr};
  EXPECT_EQ(fsdp_reader_read(reader_, &read, 1, 0), FSDP_OK);
  EXPECT_EQ(fsdp_reader_read(reader_, &read, -1, 0), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_reader_read(reader_, &read, INT64_MIN, 0), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_reader_read(reader_, &read, 1, -1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_reader_read(reader_, &read, 1, 1 << 30), FSDP_INVALID_ARGUMENT);
}

TEST_F(CApiErrorsTest, ANumberThatIsNoDtypeIsRefused) {
  for (const int32_t dtype : {-1, 22, 255, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(fsdp_dtype_size(dtype), 0);
    EXPECT_EQ(fsdp_dtype_name(dtype), nullptr);
    const fsdp_read read = {0, 0, 1, dtype, text_};
    EXPECT_EQ(fsdp_reader_read(reader_, &read, 1, 0), FSDP_INVALID_ARGUMENT);
    EXPECT_EQ(fsdp_state_add_tensor(state_, "model/a", dtype, 0, nullptr, nullptr, 0), FSDP_INVALID_ARGUMENT);
    EXPECT_THAT(fsdp_error_message(), HasSubstr("is not an fsdp_dtype"));
  }
  EXPECT_STREQ(fsdp_dtype_name(FSDP_FLOAT8_E8M0FNU), "float8_e8m0fnu");
  EXPECT_STREQ(fsdp_dtype_name(FSDP_FLOAT4_E2M1FN_X2), "float4_e2m1fn_x2");
  EXPECT_EQ(fsdp_dtype_size(FSDP_COMPLEX128), 16);
}

// Formats decide which dtypes can be read as another; complex numbers can never be read as real ones.
TEST_F(CApiErrorsTest, AComplexTensorIsNotReadAsRealNumbers) {
  const std::string root = testing::TempDir() + "/complex";
  std::filesystem::remove_all(root);
  const double numbers[] = {1, 2, 3, 4};
  const int64_t dims[] = {2};
  const fsdp_shard all = {0, 2, numbers};
  ASSERT_EQ(fsdp_state_add_tensor(state_, "model/c", FSDP_COMPLEX128, 1, dims, &all, 1), FSDP_OK);
  ASSERT_EQ(fsdp_save(state_, root.c_str(), 0, nullptr, nullptr, nullptr), FSDP_OK) << fsdp_error_message();
  fsdp_reader* reader = nullptr;
  ASSERT_EQ(fsdp_reader_open(root.c_str(), nullptr, &reader), FSDP_OK) << fsdp_error_message();
  double out[4] = {};
  fsdp_read read = {0, 0, 2, FSDP_FLOAT64, out};
  EXPECT_NE(fsdp_reader_read(reader, &read, 1, 0), FSDP_OK);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("model/c"));
  read.dtype = FSDP_COMPLEX128;
  EXPECT_EQ(fsdp_reader_read(reader, &read, 1, 0), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(out[3], 4);
  fsdp_reader_close(reader);
}

TEST_F(CApiErrorsTest, APathWithoutACheckpointIsAnErrorThatNamesIt) {
  fsdp_reader* reader = nullptr;
  EXPECT_EQ(fsdp_reader_open("no/such/path", nullptr, &reader), FSDP_NOT_FOUND);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("no/such/path"));
  EXPECT_NE(fsdp_reader_open("/dev/null", nullptr, &reader), FSDP_OK);
  EXPECT_EQ(reader, nullptr);
  EXPECT_NE(fsdp_verify("no/such/path", nullptr, nullptr), FSDP_OK);
  fsdp_verify_options options = {};
  options.struct_size = sizeof(options);
  options.threads = -1;
  EXPECT_EQ(fsdp_verify("no/such/path", &options, nullptr), FSDP_INVALID_ARGUMENT);
}

// In C, "w" and "w" followed by a NUL and another letter would be the same name.
TEST_F(CApiErrorsTest, AFileWithANameThatIsNoStringOfCIsRefusedByThatName) {
  std::string header = R"({"w\u0000a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  header.insert(header.size(), 64 - header.size() % 64, ' ');
  const std::string size(1, static_cast<char>(header.size()));
  const std::string path = testing::TempDir() + "/nul.safetensors";
  std::ofstream(path, std::ios::binary) << size + std::string(7, '\0') + header + "x";
  fsdp_reader* reader = nullptr;
  EXPECT_EQ(fsdp_reader_open(path.c_str(), nullptr, &reader), FSDP_UNIMPLEMENTED);
  EXPECT_EQ(reader, nullptr);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("model/w"));
  EXPECT_THAT(fsdp_error_message(), HasSubstr("has a NUL"));
}

// Python strings, and so pickles, can contain a surrogate, which is no UTF-8: the key has its JSON for a name.
TEST_F(CApiErrorsTest, ASurrogateInAKeyIsNamedInANote) {
  std::string archive = ManyTensorsArchive(1, false);
  const size_t at = archive.find("experts");
  ASSERT_NE(at, std::string::npos);
  archive.replace(at, 7, "exp\xED\xA0\x80s");
  const std::string path = testing::TempDir() + "/surrogate.pt";
  std::ofstream(path, std::ios::binary) << archive;
  fsdp_open_options options = {};
  options.struct_size = sizeof(options);
  options.no_verify = 1;  // the archive's checksum still belongs to the old name
  fsdp_reader* reader = nullptr;
  ASSERT_EQ(fsdp_reader_open(path.c_str(), &options, &reader), FSDP_OK) << fsdp_error_message();
  fsdp_tensor tensor = {};
  EXPECT_EQ(fsdp_reader_tensor(reader, 0, &tensor), FSDP_OK);
  EXPECT_THAT(tensor.name, HasSubstr("eda08073"));
  char* notes = nullptr;
  EXPECT_EQ(fsdp_reader_notes(reader, &notes), FSDP_OK);
  EXPECT_THAT(notes, HasSubstr("1 key of a model that is no text became one"));
  fsdp_free(notes);
  fsdp_reader_close(reader);
}

// A checkpoint with such a unit would be saved, but its manifest would not be readable.
TEST_F(CApiErrorsTest, AUnitOfLessThanNoElementsIsRefused) {
  EXPECT_EQ(fsdp_state_add_unit(state_, "u", -1, 0, nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(), "unit \"u\" has -1 elements, wanted at least 0");
  EXPECT_EQ(fsdp_state_add_unit(state_, "u", 0, 0, nullptr, nullptr, nullptr), FSDP_OK);
}

TEST_F(CApiErrorsTest, StructsOfASizeThatNoReleaseHasAreRefused) {
  fsdp_reader* reader = nullptr;
  fsdp_open_options options = {};
  const char* const path = "checkpoint/testdata/all_dtypes.safetensors";
  for (const size_t size :
       {size_t{0}, size_t{1}, offsetof(fsdp_open_options, map) + 4, sizeof(options) + 1, SIZE_MAX}) {
    options.struct_size = size;
    EXPECT_EQ(fsdp_reader_open(path, &options, &reader), FSDP_INVALID_ARGUMENT) << size;
    EXPECT_THAT(fsdp_error_message(), HasSubstr("options->struct_size is"));
  }
  // A program of an earlier release, whose struct ended after model_only.
  options.struct_size = offsetof(fsdp_open_options, skip_links);
  ASSERT_EQ(fsdp_reader_open(path, &options, &reader), FSDP_OK) << fsdp_error_message();
  fsdp_reader_close(reader);
}

TEST_F(CApiErrorsTest, TensorsThatCannotBeSavedAreRefusedByName) {
  const float data[4] = {};
  const int64_t dims[] = {4}, negative[] = {-4}, large[] = {int64_t{1} << 60};
  const fsdp_shard all = {0, 4, data}, beyond = {0, 5, data}, empty = {2, 2, data}, no_data = {0, 4, nullptr},
                   whole_large = {0, int64_t{1} << 60, data};
  const fsdp_shard overlapping[] = {{0, 3, data}, {2, 4, data}};
  const auto add = [&](const char* name, const int64_t* d, const fsdp_shard* shards, int64_t count,
                       int32_t dtype = FSDP_FLOAT32) {
    return fsdp_state_add_tensor(state_, name, dtype, 1, d, shards, count);
  };
  EXPECT_EQ(add("weights", dims, &all, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(),
               "name \"weights\" is not one of model/NAME, optim/state/NAME/STATE, optim/param_groups and extra/NAME");
  EXPECT_EQ(add("", dims, &all, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("model/", dims, &all, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("optim/state/w", dims, &all, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("model/\xff", dims, &all, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("model/a", nullptr, &all, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("model/a", negative, &all, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("model/a", large, &whole_large, 1, FSDP_COMPLEX128), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("model/a", dims, nullptr, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("model/a", dims, &all, -1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("model/a", dims, &beyond, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("model/a", dims, &empty, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("model/a", dims, &no_data, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(add("model/a", dims, overlapping, 2), FSDP_INVALID_ARGUMENT);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("model/a"));
  EXPECT_EQ(add("model/a", dims, &all, 1), FSDP_OK);
  EXPECT_EQ(add("model/a", dims, &all, 1), FSDP_ALREADY_EXISTS);
  EXPECT_EQ(fsdp_state_add_text(state_, "extra/t", "\xff", 1), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_state_create(3, &state_), FSDP_INVALID_ARGUMENT);
}

// The arrays here are shorter than their counts, so a function that reads them first is a crash, or AddressSanitizer's
// report.
TEST_F(CApiErrorsTest, ACountThatCannotBeIsRefusedBeforeItsArrayIsRead) {
  const float data[4] = {};
  const int64_t dims[] = {4};
  const fsdp_shard all = {0, 4, data};
  EXPECT_EQ(fsdp_state_add_tensor(state_, "model/w", FSDP_FLOAT32, 1'000'000'000, dims, &all, 1),
            FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(), "ndim is 1000000000, wanted at most 32");
  EXPECT_EQ(fsdp_state_add_tensor(state_, "model/w", FSDP_FLOAT32, 1, dims, &all, INT64_MAX), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(),
               "tensor \"model/w\": shard_count is 9223372036854775807, wanted at most its 4 elements");
  EXPECT_EQ(fsdp_state_add_text(state_, "extra/t", "text", INT64_MAX), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(), "bytes is 9223372036854775807, wanted at most 268435456");
  const char* const fqns[] = {"w"};
  const int64_t offsets[] = {0};
  EXPECT_EQ(fsdp_state_add_unit(state_, "u", 4, INT64_MAX, fqns, offsets, dims), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(), "count is 9223372036854775807, wanted at most 16777216");
  const fsdp_read read = {};
  EXPECT_EQ(fsdp_reader_read(reader_, &read, INT64_MAX, 1), FSDP_INVALID_ARGUMENT);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("at most 2147483648 reads"));
}

TEST_F(CApiErrorsTest, AGroupOfMoreRanksThanThereAreIsRefused) {
  fsdp_group group = {};
  group.struct_size = sizeof(group);
  group.world_size = INT32_MAX;
  group.gather = [](void*, const void*, int64_t, fsdp_blob_sink, void*) -> int32_t { return 0; };
  const std::string root = testing::TempDir() + "/ranks";
  EXPECT_EQ(fsdp_save(state_, root.c_str(), 1, &group, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("rank 0 of 2147483647, wanted at most 1048576 ranks"));
}

TEST_F(CApiErrorsTest, ABlobLargerThanMemoryIsAnErrorAndNoException) {
  fsdp_group group = {};
  group.struct_size = sizeof(group);
  group.world_size = 2;
  group.gather = [](void*, const void* blob, int64_t, fsdp_blob_sink take, void* sink) -> int32_t {
    take(sink, 1, blob, INT64_MAX);
    return 0;
  };
  const std::string root = testing::TempDir() + "/blob";
  EXPECT_EQ(fsdp_save(state_, root.c_str(), 1, &group, nullptr, nullptr), FSDP_RESOURCE_EXHAUSTED);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("no memory for a blob"));
}

TEST_F(CApiErrorsTest, AStateThatDoesNotFitItsKindIsNotSaved) {
  const std::string root = testing::TempDir() + "/unfit";
  const auto save = [&](const fsdp_save_options* options) {
    return fsdp_save(state_, root.c_str(), 0, nullptr, options, nullptr);
  };
  const float data[2] = {};
  const int64_t dims[] = {4};
  const fsdp_shard half = {0, 2, data};
  ASSERT_EQ(fsdp_state_add_tensor(state_, "model/a", FSDP_FLOAT32, 1, dims, &half, 1), FSDP_OK);
  EXPECT_EQ(save(nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("a FULL state dict holds whole tensors"));
  fsdp_save_options options = {};
  options.struct_size = sizeof(options);
  options.parity = -1;
  EXPECT_EQ(save(&options), FSDP_INVALID_ARGUMENT);
  options.parity = 1;
  EXPECT_EQ(save(&options), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_save(state_, root.c_str(), -1, nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_save(state_, "", 0, nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  EXPECT_EQ(fsdp_state_add_alias(state_, "b", "nobody"), FSDP_OK);
  EXPECT_EQ(save(nullptr), FSDP_INVALID_ARGUMENT);
}

TEST_F(CApiErrorsTest, ConvertingRefusesOptionsThatAreNone) {
  fsdp_convert_options options = {};
  options.struct_size = sizeof(options);
  const auto convert = [&] {
    return fsdp_convert("checkpoint/testdata/all_dtypes.safetensors", "never-made", &options, nullptr);
  };
  options.to = "onnx";
  EXPECT_EQ(convert(), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(),
               "options->to is \"onnx\", wanted hdf5, safetensors, torch, dcp, npz, gguf, deepspeed or megatron");
  options.to = nullptr;
  options.kind = 3;
  EXPECT_EQ(convert(), FSDP_INVALID_ARGUMENT);
  options.kind = FSDP_SHARDED;
  options.world_size = -1;
  EXPECT_EQ(convert(), FSDP_INVALID_ARGUMENT);
  options.world_size = 1;
  options.parity = -1;
  EXPECT_EQ(convert(), FSDP_INVALID_ARGUMENT);
  options.parity = 0;
  options.dtype_given = 1;
  options.dtype = 21;
  EXPECT_EQ(convert(), FSDP_INVALID_ARGUMENT);
  EXPECT_FALSE(std::filesystem::exists("never-made"));
}

TEST_F(CApiErrorsTest, AMessageBelongsToTheThreadWhoseCallFailed) {
  EXPECT_EQ(fsdp_verify(nullptr, nullptr, nullptr), FSDP_INVALID_ARGUMENT);
  std::thread([] { EXPECT_STREQ(fsdp_error_message(), ""); }).join();
  EXPECT_STREQ(fsdp_error_message(), "path is NULL");
}

TEST_F(CApiErrorsTest, TheLibrarySaysTheAbiVersionOfItsHeader) {
  EXPECT_EQ(fsdp_checkpoint_abi_version(), FSDP_CHECKPOINT_ABI_VERSION);
}

}  // namespace
}  // namespace fsdp
