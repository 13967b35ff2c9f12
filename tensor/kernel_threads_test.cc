// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/kernel_threads.h"

#include <omp.h>

#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;

TEST(KernelThreadsTest, OneUnderTheThreadSanitizer) {
  SetKernelThreads(3);
  EXPECT_EQ(omp_get_max_threads(), kUnderThreadSanitizer ? 1 : 3);
}

// So each kernel sets it, on the worker that runs it.
TEST(KernelThreadsTest, EachThreadHasItsOwn) {
  SetKernelThreads(2);
  int elsewhere = 0;
  std::thread other([&] {
    SetKernelThreads(1);
    elsewhere = omp_get_max_threads();
  });
  other.join();
  EXPECT_EQ(elsewhere, 1);
  EXPECT_EQ(omp_get_max_threads(), kUnderThreadSanitizer ? 1 : 2);
}

// The intervals in order of pieces.
std::vector<Interval> Pieces(int threads, int64_t n, int64_t grain) {
  std::vector<Interval> pieces(NumPieces(threads, n, grain));
  ParallelFor(threads, n, grain, [&](int piece, Interval interval) { pieces[piece] = interval; });
  return pieces;
}

TEST(ParallelForTest, PiecesFollowEachOtherAndBeginAtMultiplesOfTheGrain) {
  if (kUnderThreadSanitizer) GTEST_SKIP() << "one piece";
  EXPECT_THAT(Pieces(2, 100, 10), ElementsAre(Interval{0, 50}, Interval{50, 100}));
  EXPECT_THAT(Pieces(2, 101, 10), ElementsAre(Interval{0, 50}, Interval{50, 101}));
  EXPECT_THAT(Pieces(3, 7, 1), ElementsAre(Interval{0, 2}, Interval{2, 4}, Interval{4, 7}));
  EXPECT_THAT(Pieces(4, 25, 10), ElementsAre(Interval{0, 10}, Interval{10, 20}, Interval{20, 25}));
}

TEST(ParallelForTest, LessThanAGrainOrOneThreadIsOnePiece) {
  EXPECT_THAT(Pieces(4, 9, 10), ElementsAre(Interval{0, 9}));
  EXPECT_THAT(Pieces(1, 1000, 10), ElementsAre(Interval{0, 1000}));
}

TEST(ParallelForTest, NothingIsNoPiece) { EXPECT_THAT(Pieces(4, 0, 10), ElementsAre()); }

TEST(ParallelForTest, EachPieceHasAThreadOfItsOwn) {
  if (kUnderThreadSanitizer) GTEST_SKIP() << "one piece";
  std::mutex mutex;
  std::set<std::thread::id> threads;
  ParallelFor(3, 3, 1, [&](int, Interval) {
    const std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 3u);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 1u);
}

TEST(ParallelForTest, TheFirstErrorOfTheLowestPieceIsReturned) {
  std::vector<int> called(10);
  const absl::Status status = ParallelForEach(2, 10, [&](int, int64_t i) {
    called[i] = 1;
    if (i == 2 || i == 3 || i == 7) return absl::InternalError(std::to_string(i));
    return absl::OkStatus();
  });
  EXPECT_EQ(status.message(), "2");
  EXPECT_EQ(called[3], 0);
}

TEST(ParallelForTest, WithinAPieceThereIsOneThread) {
  if (kUnderThreadSanitizer) GTEST_SKIP() << "one piece";
  std::vector<int> inner(2);
  ParallelFor(2, 2, 1, [&](int piece, Interval) { inner[piece] = NumPieces(2, 100, 1); });
  EXPECT_THAT(inner, ElementsAre(1, 1));
}

}  // namespace
}  // namespace fsdp
