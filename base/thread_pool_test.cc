// SPDX-License-Identifier: Apache-2.0

#include "fsdp/base/thread_pool.h"

#include <sys/resource.h>

#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>
#include <latch>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

std::unique_ptr<ThreadPool> PoolOf(int threads) {
  absl::StatusOr<std::unique_ptr<ThreadPool>> pool = ThreadPool::Create(threads, "test");
  EXPECT_OK(pool);
  return *std::move(pool);
}

TEST(ThreadPoolTest, EveryIndexRunsOnce) {
  for (int threads : {1, 2, 3, 8}) {
    auto pool = PoolOf(threads);
    EXPECT_EQ(pool->threads(), threads);
    for (int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(count);
      EXPECT_OK(pool->ParallelFor(count, [&](int64_t i) {
        runs[i].fetch_add(1);
        return absl::OkStatus();
      }));
      for (const auto& n : runs) EXPECT_EQ(n.load(), 1);
    }
  }
}

TEST(ThreadPoolTest, BodiesRunAtTheSameTime) {
  auto pool = PoolOf(3);
  // Passes only if three bodies run at the same time.
  std::latch all_in(3);
  EXPECT_OK(pool->ParallelFor(3, [&](int64_t) {
    all_in.arrive_and_wait();
    return absl::OkStatus();
  }));
}

TEST(ThreadPoolTest, OneThreadIsAPlainLoop) {
  auto pool = PoolOf(1);
  std::vector<int64_t> order;
  EXPECT_OK(pool->ParallelFor(5, [&](int64_t i) {
    order.push_back(i);
    return absl::OkStatus();
  }));
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3, 4));
}

TEST(ThreadPoolTest, TheLowestFailedIndexIsReported) {
  auto pool = PoolOf(4);
  for (int repetition = 0; repetition < 200; ++repetition) {
    EXPECT_THAT(
        pool->ParallelFor(
            64, [](int64_t i) { return i >= 5 ? absl::DataLossError(absl::StrCat("index ", i)) : absl::OkStatus(); }),
        StatusIs(absl::StatusCode::kDataLoss, "index 5"));
  }
}

TEST(ThreadPoolTest, NothingStartsAfterAnError) {
  auto pool = PoolOf(1);
  int runs = 0;
  EXPECT_THAT(pool->ParallelFor(100,
                                [&](int64_t i) {
                                  ++runs;
                                  return i == 2 ? absl::NotFoundError("gone") : absl::OkStatus();
                                }),
              StatusIs(absl::StatusCode::kNotFound, "gone"));
  EXPECT_EQ(runs, 3);
  EXPECT_OK(pool->ParallelFor(2, [](int64_t) { return absl::OkStatus(); })) << "an error must not stick to the pool";
}

TEST(ThreadPoolTest, NestedLoopsMakeProgress) {
  auto pool = PoolOf(2);
  std::atomic<int> runs{0};
  EXPECT_OK(pool->ParallelFor(4, [&](int64_t) {
    return pool->ParallelFor(4, [&](int64_t) {
      return pool->ParallelFor(4, [&](int64_t) {
        runs.fetch_add(1);
        return absl::OkStatus();
      });
    });
  }));
  EXPECT_EQ(runs.load(), 64);
}

TEST(ThreadPoolTest, ManyCallersShareAPool) {
  auto pool = PoolOf(3);
  std::atomic<int> runs{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int repetition = 0; repetition < 100; ++repetition) {
        EXPECT_OK(pool->ParallelFor(10, [&](int64_t) {
          runs.fetch_add(1);
          return absl::OkStatus();
        }));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(runs.load(), 4000);
}

TEST(ThreadPoolTest, RunTakesTasks) {
  auto pool = PoolOf(2);
  std::atomic<int> sum{0};
  const auto add = [&](int n) {
    return [&sum, n] {
      sum.fetch_add(n);
      return absl::OkStatus();
    };
  };
  EXPECT_OK(pool->Run({add(1), add(2), add(4)}));
  EXPECT_EQ(sum.load(), 7);
  EXPECT_OK(pool->Run({}));
  EXPECT_THAT(pool->Run({add(8), [] { return absl::AbortedError("second"); }}),
              StatusIs(absl::StatusCode::kAborted, "second"));
}

TEST(ThreadPoolTest, ABackgroundPoolDoesTheWorkAndItsCallerWaits) {
  ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::CreateBackground(2, "io", {.nice = 19}));
  EXPECT_EQ(pool->threads(), 2);
  const std::thread::id caller = std::this_thread::get_id();
  const int mine = getpriority(PRIO_PROCESS, 0);
  std::latch all_in(2);  // the pool's own two threads
  for (const int64_t count : {2, 1}) {
    EXPECT_OK(pool->ParallelFor(count, [&](int64_t) {
      if (count == 2) all_in.arrive_and_wait();
      EXPECT_NE(std::this_thread::get_id(), caller);
      EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 19);  // the niceness of the calling thread
      // A loop inside a body makes progress, because its caller works too.
      return pool->ParallelFor(3, [](int64_t) { return absl::OkStatus(); });
    }));
  }
  EXPECT_THAT(pool->ParallelFor(2, [](int64_t i) { return i == 0 ? absl::AbortedError("first") : absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kAborted, "first"));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), mine);
}

TEST(ThreadPoolTest, BoostAddsThreadsOfTheCallersPriority) {
  ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::CreateBackground(1, "io", {.nice = 19}));
  const int mine = getpriority(PRIO_PROCESS, 0);
  std::latch begun(1);
  std::latch both_in(2);  // the pool has only one thread
  std::array<std::atomic<int>, 2> nice = {};
  std::thread waiting([&] {
    EXPECT_OK(pool->ParallelFor(2, [&](int64_t i) {
      nice[i] = getpriority(PRIO_PROCESS, 0);
      if (i == 0) begun.count_down();
      both_in.arrive_and_wait();
      return absl::OkStatus();
    }));
  });
  begun.wait();
  pool->Boost();
  waiting.join();
  EXPECT_EQ(nice[0], 19);
  EXPECT_EQ(nice[1], mine);
  EXPECT_EQ(pool->threads(), 1);
}

// Takes a millisecond of processor time.
void Compute() {
  const std::clock_t start = std::clock();
  while (std::clock() - start < CLOCKS_PER_SEC / 1000) continue;
}

double SecondsOf(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(ThreadPoolTest, AThreadTakesNoMoreThanItsShareOfACore) {
  ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::CreateBackground(1, "io", {.processor_share = 0.02}));
  const auto compute = [](int64_t) {
    Compute();
    return absl::OkStatus();
  };
  // Ten bodies and the nine rests between them. A new loop continues the rest of the loop before.
  EXPECT_GE(SecondsOf([&] {
              EXPECT_OK(pool->ParallelFor(5, compute));
              EXPECT_OK(pool->ParallelFor(5, compute));
            }),
            9 * 0.05);
}

TEST(ThreadPoolTest, ALoopInsideOfABodyTakesNoMoreThanItsShare) {
  ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::CreateBackground(1, "io", {.processor_share = 0.02}));
  const double inner = SecondsOf([&] {
    EXPECT_OK(pool->ParallelFor(1, [&](int64_t) {
      return pool->ParallelFor(5, [](int64_t) {
        Compute();
        return absl::OkStatus();
      });
    }));
  });
  EXPECT_GE(inner, 4 * 0.05);
  // The rest inside the inner loop counts for the body that opened it, so the next body may start immediately.
  EXPECT_LT(SecondsOf([&] { EXPECT_OK(pool->ParallelFor(1, [](int64_t) { return absl::OkStatus(); })); }), 0.2);
}

TEST(ThreadPoolTest, TimeInWhichABodyWaitsCountsAsSleep) {
  ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::CreateBackground(1, "io", {.processor_share = 0.5}));
  EXPECT_LT(SecondsOf([&] {
              EXPECT_OK(pool->ParallelFor(10, [](int64_t) {
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
                return absl::OkStatus();
              }));
            }),
            0.19);
}

TEST(ThreadPoolTest, ThrottlingEndsWithABoostOrOnceThePoolIsOldEnough) {
  const auto compute = [](int64_t) {
    Compute();
    return absl::OkStatus();
  };
  // The rest after the first body would be a hundred seconds.
  const ThreadPool::BackgroundOptions options = {.processor_share = 1e-5};
  ASSERT_OK_AND_ASSIGN(const auto boosted, ThreadPool::CreateBackground(1, "io", options));
  std::latch begun(1);
  std::thread waiting([&] {
    EXPECT_OK(boosted->ParallelFor(5, [&](int64_t i) {
      if (i == 0) begun.count_down();
      return compute(i);
    }));
  });
  begun.wait();
  EXPECT_LT(SecondsOf([&] {
              boosted->Boost();
              waiting.join();
            }),
            20);
  ThreadPool::BackgroundOptions short_options = options;
  short_options.throttle_for = std::chrono::milliseconds(50);
  ASSERT_OK_AND_ASSIGN(const auto old, ThreadPool::CreateBackground(1, "io", short_options));
  const double seconds = SecondsOf([&] { EXPECT_OK(old->ParallelFor(5, compute)); });
  EXPECT_LT(seconds, 20);
  EXPECT_GE(seconds, 0.04);
}

TEST(ThreadPoolTest, AShareOutsideOfZeroToOneIsRefused) {
  for (const double share : {0.0, -1.0, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(ThreadPool::CreateBackground(1, "io", {.processor_share = share}),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("of a core each, expected")));
  }
}

TEST(ThreadPoolTest, APoolWithoutThreadsIsRefused) {
  EXPECT_THAT(ThreadPool::Create(0, "io"),
              StatusIs(absl::StatusCode::kInvalidArgument, "thread pool \"io\": cannot have 0 threads"));
}

}  // namespace
}  // namespace fsdp
