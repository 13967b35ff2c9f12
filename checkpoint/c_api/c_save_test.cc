// SPDX-License-Identifier: Apache-2.0
//
// The functions of fsdp_checkpoint.h that save, by one rank and by several, which are threads.
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "fsdp/checkpoint/c_api/c_api_testutil.h"
#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

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

int32_t SaveRows(const CModel& model, int32_t kind, const std::string& root, int64_t step, const fsdp_group& group) {
  const CState state = NewCState(kind);
  const int64_t rows = (10 + group.world_size - 1) / group.world_size;
  const int64_t begin = std::min<int64_t>(10, group.rank * rows);
  model.AddTo(state.get(), begin, std::min<int64_t>(10, begin + rows), group.rank == 0);
  return fsdp_save(state.get(), root.c_str(), step, &group, nullptr, nullptr);
}

TEST(CSaveTest, AFullCheckpointOfOneRankComesBack) {
  const std::string root = NewCApiDirectory();
  const CState state = NewCState(FSDP_FULL);
  const CModel model;
  model.AddTo(state.get(), 0, 10, true);
  char* path = nullptr;
  ASSERT_EQ(fsdp_save(state.get(), root.c_str(), 12, nullptr, nullptr, &path), FSDP_OK) << fsdp_error_message();
  EXPECT_EQ(std::string(path), root + "/step-00000012");
  fsdp_free(path);
  ExpectCModel(root, 12, 1);
  EXPECT_EQ(fsdp_save(state.get(), root.c_str(), 12, nullptr, nullptr, nullptr), FSDP_ALREADY_EXISTS);
  EXPECT_THAT(fsdp_error_message(), HasSubstr("exists and is not to be overwritten; options->overwrite replaces it"));
  fsdp_save_options options = {};
  options.struct_size = sizeof(options);
  options.overwrite = 1;
  EXPECT_EQ(fsdp_save(state.get(), root.c_str(), 12, nullptr, &options, nullptr), FSDP_OK) << fsdp_error_message();
}

TEST(CSaveTest, AShardedCheckpointOfThreeRanksComesBack) {
  const std::string root = NewCApiDirectory();
  const CModel model;
  Ranks ranks(3);
  const std::vector<int32_t> codes =
      ranks.Run([&](int32_t, const fsdp_group& group) { return SaveRows(model, FSDP_SHARDED, root, 5, group); });
  EXPECT_EQ(codes, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_TRUE(fs::exists(root + "/step-00000005/rank-00002-of-00003.h5"));
  ExpectCModel(root + "/step-00000005", 5, 3);
}

TEST(CSaveTest, ALocalCheckpointHasTheUnitsOfItsFlatParameters) {
  const std::string root = NewCApiDirectory();
  const std::vector<float> flat = {0, 1, 2, 3, 4, 5, 6, 7};  // a [2, 3], then b [2]; each rank has four elements
  Ranks ranks(2);
  const std::vector<int32_t> codes = ranks.Run([&](int32_t rank, const fsdp_group& group) {
    const CState state = NewCState(FSDP_LOCAL);
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
  const CReader reader = OpenCReader(root);
  EXPECT_EQ(fsdp_reader_path(reader.get()), root + "/step-00000000");
  EXPECT_EQ(ReadAll<float>(reader.get(), "model/u.a", FSDP_FLOAT32, 0, 6), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(ReadAll<float>(reader.get(), "model/u.b", FSDP_FLOAT32, 0, 2), (std::vector<float>{6, 7}));
}

TEST(CSaveTest, UnitsThatDoNotFitTheirParametersAreRefused) {
  const std::string root = NewCApiDirectory();
  const std::vector<float> flat(6);
  const char* const fqns[] = {"a"};
  const int64_t dims[] = {6};
  const fsdp_shard all = {0, 6, flat.data()};
  for (const auto& [offset, numel, total] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {-1, 6, 6}, {0, 7, 7}, {0, -6, 6}, {0, 6, -1}, {INT64_MAX, 6, 6}, {0, 6, 5}}) {
    const CState state = NewCState(FSDP_LOCAL);
    ASSERT_EQ(fsdp_state_add_tensor(state.get(), "model/a", FSDP_FLOAT32, 1, dims, &all, 1), FSDP_OK);
    int32_t code = fsdp_state_add_unit(state.get(), "u", total, 1, fqns, &offset, &numel);
    if (code == FSDP_OK) code = fsdp_save(state.get(), root.c_str(), 0, nullptr, nullptr, nullptr);
    EXPECT_EQ(code, FSDP_INVALID_ARGUMENT) << offset << " " << numel << " " << total << " " << fsdp_error_message();
  }
}

TEST(CSaveTest, ASaverCopiesTheStateAndSavesInTheBackground) {
  const std::string root = NewCApiDirectory();
  Ranks ranks(2);
  const std::vector<int32_t> codes = ranks.Run([&](int32_t rank, const fsdp_group& group) -> int32_t {
    fsdp_saver* saver = nullptr;
    if (const int32_t code = fsdp_saver_create(root.c_str(), &group, nullptr, &saver)) return code;
    for (const int64_t step : {1, 2}) {
      CModel model;
      const CState state = NewCState(FSDP_SHARDED);
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
  ExpectCModel(root + "/step-00000001", 1, 2);
  ExpectCModel(root, 2, 2);
}

TEST(CSaveTest, TheFailureOfOneRankIsEveryRanks) {
  const std::string root = NewCApiDirectory();
  Ranks ranks(2);
  const std::vector<int32_t> codes = ranks.Run([&](int32_t rank, const fsdp_group& group) {
    const CState state = NewCState(FSDP_SHARDED);
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

TEST(CSaveTest, ACallThatOneRankGotWrongIsAnErrorOnEveryRank) {
  const std::string root = NewCApiDirectory();
  Ranks ranks(3);
  const std::vector<int32_t> codes = ranks.Run([&](int32_t rank, const fsdp_group& group) {
    const CState state = NewCState(FSDP_SHARDED);
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

TEST(CSaveTest, AGatherThatFailsOrGivesBlobsWronglyIsAnError) {
  const CState state = NewCState(FSDP_SHARDED);
  fsdp_group group = {sizeof(fsdp_group), 0, 2, nullptr, nullptr};
  const std::string root = NewCApiDirectory();
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
TEST(CSaveTest, AThreadThatEndsInItsGatherEndsAlone) {
  const std::string root = NewCApiDirectory();
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

}  // namespace
}  // namespace fsdp
