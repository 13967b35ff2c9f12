// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/c_api/c_api_testutil.h"

#include <filesystem>
#include <numeric>

namespace fsdp {

std::string NewCApiDirectory() {
  static int number = 0;
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / (std::string(test->name()) + std::to_string(++number));
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

CState NewCState(int32_t kind) {
  fsdp_state* state = nullptr;
  EXPECT_EQ(fsdp_state_create(kind, &state), FSDP_OK);
  return {state, fsdp_state_free};
}

CReader OpenCReader(const std::string& path) {
  fsdp_reader* reader = nullptr;
  EXPECT_EQ(fsdp_reader_open(path.c_str(), nullptr, &reader), FSDP_OK) << fsdp_error_message();
  return {reader, fsdp_reader_close};
}

CModel::CModel() { std::iota(weight.begin(), weight.end(), 0.0f); }

void CModel::AddTo(fsdp_state* state, int64_t begin, int64_t end, bool is_first) const {
  const int64_t dims[] = {10, 3};
  const fsdp_shard rows = {begin * 3, end * 3, weight.data() + begin * 3};
  ASSERT_EQ(fsdp_state_add_tensor(state, "model/w", FSDP_FLOAT32, 2, dims, &rows, begin < end ? 1 : 0), FSDP_OK)
      << fsdp_error_message();
  const int64_t half_dims[] = {4};
  const fsdp_shard halves = {0, 4, half.data()};
  const fsdp_shard one = {0, 1, &step};
  const int64_t none_dims[] = {0, 5};
  ASSERT_EQ(fsdp_state_add_tensor(state, "model/a/b.c", FSDP_BFLOAT16, 1, half_dims, &halves, is_first ? 1 : 0), 0);
  ASSERT_EQ(fsdp_state_add_tensor(state, "optim/state/w/step", FSDP_FLOAT32, 0, nullptr, &one, is_first ? 1 : 0), 0);
  ASSERT_EQ(fsdp_state_add_tensor(state, "model/none", FSDP_INT64, 2, none_dims, nullptr, 0), FSDP_OK);
  ASSERT_EQ(fsdp_state_add_text(state, "optim/param_groups", "[]", 2), FSDP_OK);
  ASSERT_EQ(fsdp_state_add_text(state, "extra/note", "h\xc3\xa9", 3), FSDP_OK);
  ASSERT_EQ(fsdp_state_add_alias(state, "head.w", "w"), FSDP_OK) << fsdp_error_message();
}

void ExpectCModel(const std::string& path, int64_t step, int32_t world_size) {
  const CReader reader = OpenCReader(path);
  ASSERT_NE(reader, nullptr);
  const CModel model;
  EXPECT_STREQ(fsdp_reader_format(reader.get()), "hdf5");
  EXPECT_EQ(fsdp_reader_step(reader.get()), step);
  EXPECT_EQ(fsdp_reader_world_size(reader.get()), world_size);
  EXPECT_EQ(fsdp_reader_tensor_count(reader.get()), 4);
  EXPECT_EQ(ReadAll<float>(reader.get(), "model/w", FSDP_FLOAT32, 0, 30), model.weight);
  EXPECT_EQ(ReadAll<float>(reader.get(), "model/head.w", FSDP_FLOAT32, 4, 6), (std::vector<float>{4, 5}));
  EXPECT_EQ(ReadAll<uint16_t>(reader.get(), "model/a/b.c", FSDP_BFLOAT16, 0, 4), model.half);
  EXPECT_EQ(ReadAll<double>(reader.get(), "model/a/b.c", FSDP_FLOAT64, 1, 3), (std::vector<double>{2, 3}));
  EXPECT_EQ(ReadAll<float>(reader.get(), "optim/state/w/step", FSDP_FLOAT32, 0, 1), (std::vector<float>{7}));
  fsdp_tensor none = {};
  ASSERT_EQ(fsdp_reader_tensor(reader.get(), fsdp_reader_find(reader.get(), "model/none"), &none), FSDP_OK);
  EXPECT_EQ(none.numel, 0);
  EXPECT_EQ(std::vector<int64_t>(none.dims, none.dims + none.ndim), (std::vector<int64_t>{0, 5}));
  ASSERT_EQ(fsdp_reader_alias_count(reader.get()), 1);
  const char *alias, *name, *text;
  ASSERT_EQ(fsdp_reader_alias(reader.get(), 0, &alias, &name), FSDP_OK);
  EXPECT_STREQ(alias, "head.w");
  EXPECT_STREQ(name, "w");
  ASSERT_EQ(fsdp_reader_text_count(reader.get()), 2);
  int64_t bytes = 0;
  for (int64_t i = 0; i < 2; ++i) {
    ASSERT_EQ(fsdp_reader_text(reader.get(), i, &name, &text, &bytes), FSDP_OK);
    EXPECT_EQ(std::string(text, bytes), std::string(name) == "extra/note" ? "h\xc3\xa9" : "[]");
  }
}

}  // namespace fsdp
