// SPDX-License-Identifier: Apache-2.0
//
// The functions of fsdp_checkpoint.h, called in the shared library, as C programs call them. Ranks are threads.
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string NewDirectory() {
  static int number = 0;
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  const fs::path path = fs::path(testing::TempDir()) / (std::string(test->name()) + std::to_string(++number));
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}

// The ranks of a job in one process: rank r's gather(context) returns when all have called it.
class Ranks {
 public:
  explicit Ranks(int32_t world_size) : blobs_(world_size), members_(world_size) {
    for (int32_t rank = 0; rank < world_size; ++rank) members_[rank] = {this, rank};
  }

  fsdp_group Group(int32_t rank) {
    fsdp_group group = {};
    group.struct_size = sizeof(group);
    group.rank = rank;
    group.world_size = static_cast<int32_t>(blobs_.size());
    group.gather = Gather;
    group.context = &members_[rank];
    return group;
  }

  // Calls `rank_main` concurrently for every rank; returns its codes.
  std::vector<int32_t> Run(const std::function<int32_t(int32_t rank, const fsdp_group& group)>& rank_main) {
    std::vector<int32_t> codes(blobs_.size());
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < static_cast<int32_t>(blobs_.size()); ++rank) {
      threads.emplace_back([&, rank] { codes[rank] = rank_main(rank, Group(rank)); });
    }
    for (std::thread& thread : threads) thread.join();
    return codes;
  }

 private:
  struct Member {
    Ranks* ranks;
    int32_t rank;
  };

  static int32_t Gather(void* context, const void* blob, int64_t bytes, fsdp_blob_sink take, void* sink) {
    const auto& member = *static_cast<Member*>(context);
    Ranks& ranks = *member.ranks;
    std::unique_lock<std::mutex> lock(ranks.mutex_);
    ranks.blobs_[member.rank].assign(static_cast<const char*>(blob), bytes);
    ranks.Meet(lock);
    for (size_t rank = 0; rank < ranks.blobs_.size(); ++rank) {
      take(sink, static_cast<int32_t>(rank), ranks.blobs_[rank].data(),
           static_cast<int64_t>(ranks.blobs_[rank].size()));
    }
    ranks.Meet(lock);
    return 0;
  }

  void Meet(std::unique_lock<std::mutex>& lock) {
    const int64_t meeting = meetings_;
    if (++waiting_ == blobs_.size()) {
      waiting_ = 0;
      ++meetings_;
      met_.notify_all();
      return;
    }
    met_.wait(lock, [&] { return meetings_ != meeting; });
  }

  std::mutex mutex_;
  std::condition_variable met_;
  size_t waiting_ = 0;
  int64_t meetings_ = 0;
  std::vector<std::string> blobs_;
  std::vector<Member> members_;
};

// 10 rows of 3, a scalar, a bfloat16, and an empty tensor; element i of the first is i.
struct Model {
  std::vector<float> weight = std::vector<float>(30);
  std::vector<uint16_t> half = {0x3f80, 0x4000, 0x4040, 0x4080};  // 1, 2, 3, 4 in bfloat16
  float step = 7;

  Model() { std::iota(weight.begin(), weight.end(), 0.0f); }

  // Adds rows [begin, end) of "model/w", and on rank 0 the rest.
  void AddTo(fsdp_state* state, int64_t begin, int64_t end, bool is_first) const {
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
};

using State = std::unique_ptr<fsdp_state, void (*)(fsdp_state*)>;
State NewState(int32_t kind) {
  fsdp_state* state = nullptr;
  EXPECT_EQ(fsdp_state_create(kind, &state), FSDP_OK);
  return {state, fsdp_state_free};
}

using Reader = std::unique_ptr<fsdp_reader, void (*)(fsdp_reader*)>;
Reader Open(const std::string& path) {
  fsdp_reader* reader = nullptr;
  EXPECT_EQ(fsdp_reader_open(path.c_str(), nullptr, &reader), FSDP_OK) << fsdp_error_message();
  return {reader, fsdp_reader_close};
}

template <typename Element>
std::vector<Element> ReadAll(const fsdp_reader* reader, const char* name, int32_t dtype, int64_t begin, int64_t end) {
  std::vector<Element> elements(end - begin);
  const fsdp_read read = {fsdp_reader_find(reader, name), begin, end, dtype, elements.data()};
  EXPECT_EQ(fsdp_reader_read(reader, &read, 1, 0), FSDP_OK) << fsdp_error_message();
  return elements;
}

void ExpectModel(const std::string& path, int64_t step, int32_t world_size) {
  const Reader reader = Open(path);
  ASSERT_NE(reader, nullptr);
  const Model model;
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

int32_t SaveRows(const Model& model, int32_t kind, const std::string& root, int64_t step, const fsdp_group& group) {
  const State state = NewState(kind);
  const int64_t rows = (10 + group.world_size - 1) / group.world_size;
  const int64_t begin = std::min<int64_t>(10, group.rank * rows);
  model.AddTo(state.get(), begin, std::min<int64_t>(10, begin + rows), group.rank == 0);
  return fsdp_save(state.get(), root.c_str(), step, &group, nullptr, nullptr);
}

TEST(CApiTest, AFullCheckpointOfOneRankComesBack) {
  const std::string root = NewDirectory();
  const State state = NewState(FSDP_FULL);
  const Model model;
  model.AddTo(state.get(), 0, 10, true);
  char* path = nullptr;
  ASSERT_EQ(fsdp_save(state.get(), root.c_str(), 12, nullptr, nullptr, &path), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(std::string(path), root + "/step-00000012");
  fsdp_free(path);
  ExpectModel(root, 12, 1);
  EXPECT_EQ(fsdp_save(state.get(), root.c_str(), 12, nullptr, nullptr, nullptr), FSDP_ALREADY_EXISTS);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("exists and is not to be overwritten; options->overwrite replaces it"));
  fsdp_save_options options = {};
  options.struct_size = sizeof(options);
  options.overwrite = 1;
  EXPECT_EQ(fsdp_save(state.get(), root.c_str(), 12, nullptr, &options, nullptr), FSDP_OK) << fsdp_error_message();
}

TEST(CApiTest, AShardedCheckpointOfThreeRanksComesBack) {
  const std::string root = NewDirectory();
  const Model model;
  Ranks ranks(3);
  const std::vector<int32_t> codes =
      ranks.Run([&](int32_t, const fsdp_group& group) { return SaveRows(model, FSDP_SHARDED, root, 5, group); });
  EXPECT_EQ(codes, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_TRUE(fs::exists(root + "/step-00000005/rank-00002-of-00003.h5"));
  ExpectModel(root + "/step-00000005", 5, 3);
}

TEST(CApiTest, ALocalCheckpointHasTheUnitsOfItsFlatParameters) {
  const std::string root = NewDirectory();
  const std::vector<float> flat = {0, 1, 2, 3, 4, 5, 6, 7};  // a [2, 3], then b [2]; each rank has four elements
  Ranks ranks(2);
  const std::vector<int32_t> codes = ranks.Run([&](int32_t rank, const fsdp_group& group) {
    const State state = NewState(FSDP_LOCAL);
    const int64_t a_dims[] = {2, 3}, b_dims[] = {2};
    const fsdp_shard a = rank == 0 ? fsdp_shard{0, 4, flat.data()} : fsdp_shard{4, 6, flat.data() + 4};
    const fsdp_shard b = {0, 2, flat.data() + 6};
    const char* const fqns[] = {"u.a", "u.b"};
    const int64_t offsets[] = {0, 6}, numels[] = {6, 2};
    EXPECT_EQ(fsdp_state_add_tensor(state.get(), "model/u.a", FSDP_FLOAT32, 2, a_dims, &a, 1), FSDP_OK);
    EXPECT_EQ(fsdp_state_add_tensor(state.get(), "model/u.b", FSDP_FLOAT32, 1, b_dims, &b, rank), FSDP_OK);
    EXPECT_EQ(fsdp_state_add_unit(state.get(), "u", 8, 2, fqns, offsets, numels), FSDP_OK);
    const int32_t code = fsdp_save(state.get(), root.c_str(), 0, &group, nullptr, nullptr);
    EXPECT_EQ(code, FSDP_OK) << fsdp_error_message();
    return code;
  });
  const Reader reader = Open(root);
  EXPECT_EQ(fsdp_reader_path(reader.get()), root + "/step-00000000");
  EXPECT_EQ(ReadAll<float>(reader.get(), "model/u.a", FSDP_FLOAT32, 0, 6), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(ReadAll<float>(reader.get(), "model/u.b", FSDP_FLOAT32, 0, 2), (std::vector<float>{6, 7}));
}

TEST(CApiTest, UnitsThatDoNotFitTheirParametersAreRefused) {
  const std::string root = NewDirectory();
  const std::vector<float> flat(6);
  const char* const fqns[] = {"a"};
  const int64_t dims[] = {6};
  const fsdp_shard all = {0, 6, flat.data()};
  for (const auto& [offset, numel, total] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {-1, 6, 6}, {0, 7, 7}, {0, -6, 6}, {0, 6, -1}, {INT64_MAX, 6, 6}, {0, 6, 5}}) {
    const State state = NewState(FSDP_LOCAL);
    ASSERT_EQ(fsdp_state_add_tensor(state.get(), "model/a", FSDP_FLOAT32, 1, dims, &all, 1), FSDP_OK);
    int32_t code = fsdp_state_add_unit(state.get(), "u", total, 1, fqns, &offset, &numel);
    if (code == FSDP_OK) code = fsdp_save(state.get(), root.c_str(), 0, nullptr, nullptr, nullptr);
    EXPECT_EQ(code, FSDP_INVALID_ARGUMENT) << offset << " " << numel << " " << total << " " << fsdp_error_message();
  }
}

TEST(CApiTest, ASaverCopiesTheStateAndSavesInTheBackground) {
  const std::string root = NewDirectory();
  Ranks ranks(2);
  const std::vector<int32_t> codes = ranks.Run([&](int32_t rank, const fsdp_group& group) -> int32_t {
    fsdp_saver* saver = nullptr;
    if (const int32_t code = fsdp_saver_create(root.c_str(), &group, nullptr, &saver)) return code;
    for (const int64_t step : {1, 2}) {
      Model model;
      const State state = NewState(FSDP_SHARDED);
      model.AddTo(state.get(), rank * 5, rank * 5 + 5, rank == 0);
      if (const int32_t code = fsdp_saver_save(saver, state.get(), step)) return code;
      std::fill(model.weight.begin(), model.weight.end(), -1.0f);  // after the copy
    }
    char* path = nullptr;
    const int32_t code = fsdp_saver_wait(saver, &path);
    EXPECT_EQ(std::string(path), root + "/step-00000002");
    fsdp_free(path);
    fsdp_saver_free(saver);
    return code;
  });
  EXPECT_EQ(codes, (std::vector<int32_t>{0, 0})) << fsdp_error_message();
  ExpectModel(root + "/step-00000001", 1, 2);
  ExpectModel(root, 2, 2);
}

TEST(CApiTest, TheFailureOfOneRankIsEveryRanks) {
  const std::string root = NewDirectory();
  Ranks ranks(2);
  const std::vector<int32_t> codes = ranks.Run([&](int32_t rank, const fsdp_group& group) {
    const State state = NewState(FSDP_SHARDED);
    const std::vector<float> data(4);
    const int64_t dims[] = {4};
    // No rank has elements [2, 3).
    const fsdp_shard shard = rank == 0 ? fsdp_shard{0, 2, data.data()} : fsdp_shard{3, 4, data.data()};
    EXPECT_EQ(fsdp_state_add_tensor(state.get(), "model/w", FSDP_FLOAT32, 1, dims, &shard, 1), FSDP_OK);
    const int32_t code = fsdp_save(state.get(), root.c_str(), 0, &group, nullptr, nullptr);
    EXPECT_THAT(fsdp_error_message(), HasSubstr("model/w"));
    return code;
  });
  EXPECT_NE(codes[0], FSDP_OK);
  EXPECT_EQ(codes[0], codes[1]);
  EXPECT_FALSE(fs::exists(root + "/step-00000000"));
}

TEST(CApiTest, ACallThatOneRankGotWrongIsAnErrorOnEveryRank) {
  const std::string root = NewDirectory();
  Ranks ranks(3);
  const std::vector<int32_t> codes = ranks.Run([&](int32_t rank, const fsdp_group& group) {
    const State state = NewState(FSDP_SHARDED);
    fsdp_save_options options = {};
    options.struct_size = sizeof(options);
    options.io_threads = rank == 1 ? -1 : 1;
    const int32_t code = fsdp_save(state.get(), root.c_str(), 0, &group, &options, nullptr);
    EXPECT_THAT(fsdp_error_message(), HasSubstr("rank 1 of 3: options: parity is 0 and io_threads is -1"));
    fsdp_saver* saver = nullptr;
    options.io_threads = 0;
    EXPECT_EQ(fsdp_saver_create(rank == 2 ? nullptr : root.c_str(), &group, &options, &saver), FSDP_INVALID_ARGUMENT);
    EXPECT_EQ(fsdp_saver_create(root.c_str(), &group, &options, &saver), FSDP_OK);
    EXPECT_EQ(fsdp_saver_save(saver, rank == 0 ? nullptr : state.get(), 0), FSDP_INVALID_ARGUMENT);
    EXPECT_THAT(fsdp_error_message(), HasSubstr("state is NULL"));
    fsdp_saver_free(saver);
    return code;
  });
  EXPECT_EQ(codes, std::vector<int32_t>(3, FSDP_INVALID_ARGUMENT));
}

TEST(CApiTest, AGatherThatFailsOrGivesBlobsWronglyIsAnError) {
  const State state = NewState(FSDP_SHARDED);
  fsdp_group group = {sizeof(fsdp_group), 0, 2, nullptr, nullptr};
  const std::string root = NewDirectory();
  const auto save = [&] { return fsdp_save(state.get(), root.c_str(), 0, &group, nullptr, nullptr); };
  EXPECT_EQ(save(), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(), "group->gather is NULL");
  group.gather = [](void*, const void*, int64_t, fsdp_blob_sink, void*) -> int32_t { return 5; };
  EXPECT_EQ(save(), FSDP_UNAVAILABLE);
  EXPECT_STREQ(fsdp_error_message(), "rank 0 of 2: the program's gather returned 5");
  group.gather = [](void*, const void* blob, int64_t bytes, fsdp_blob_sink take, void* sink) -> int32_t {
    take(sink, 0, blob, bytes);
    take(sink, 0, blob, bytes);
    take(sink, 2, blob, bytes);
    take(sink, -1, blob, -1);
    return 0;
  };
  EXPECT_EQ(save(), FSDP_INTERNAL);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("the blob of rank 0 2 times, wanted once"));
  group.rank = 2;
  EXPECT_EQ(save(), FSDP_INVALID_ARGUMENT);
  EXPECT_STREQ(fsdp_error_message(), "group: rank 2 of 2, wanted at most 1048576 ranks, counted from 0");
}

// CPython ends a thread this way if it calls back into an exiting interpreter. Regression: this ended the process.
TEST(CApiTest, AThreadThatEndsInItsGatherEndsAlone) {
  const std::string root = NewDirectory();
  fsdp_state* state = nullptr;
  ASSERT_EQ(fsdp_state_create(FSDP_SHARDED, &state), FSDP_OK);
  bool returned = false;
  std::thread thread([&] {
    fsdp_group group = {};
    group.struct_size = sizeof(group);
    group.world_size = 2;
    group.gather = [](void*, const void*, int64_t, fsdp_blob_sink, void*) -> int32_t { pthread_exit(nullptr); };
    fsdp_save(state, root.c_str(), 1, &group, nullptr, nullptr);
    returned = true;
  });
  thread.join();
  fsdp_state_free(state);
  EXPECT_FALSE(returned);
  EXPECT_TRUE(fs::is_empty(root));
}

TEST(CApiTest, AFlippedBitIsDataLossAndNamesTensorAndFile) {
  const std::string root = NewDirectory();
  const State state = NewState(FSDP_FULL);
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
  const Reader reader = Open(directory);
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
  const std::string root = NewDirectory();
  const State state = NewState(FSDP_SHARDED);
  Model model;
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
  const std::string root = NewDirectory();
  const State state = NewState(FSDP_FULL);
  Model model;
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
  ExpectModel(sharded, 1, 4);
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
  const Reader reader = Open(file);
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
  const Reader reader = Open("checkpoint/testdata/all_dtypes.safetensors");
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
  const std::string root = NewDirectory();
  const State state = NewState(FSDP_FULL);
  std::vector<int64_t> numbers(1 << 18);
  std::iota(numbers.begin(), numbers.end(), 0);
  const int64_t dims[] = {1 << 18};
  const fsdp_shard all = {0, 1 << 18, numbers.data()};
  ASSERT_EQ(fsdp_state_add_tensor(state.get(), "model/n", FSDP_INT64, 1, dims, &all, 1), FSDP_OK);
  ASSERT_EQ(fsdp_save(state.get(), root.c_str(), 0, nullptr, nullptr, nullptr), FSDP_OK) << fsdp_error_message();
  const Reader reader = Open(root);
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
