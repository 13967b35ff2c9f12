// SPDX-License-Identifier: Apache-2.0

#include "base/byte_budget.h"

#include <atomic>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(ByteBudgetTest, GrantsWhatFits) {
  ByteBudget budget(100);
  ByteBudget::Lease a = budget.Acquire(60);
  ByteBudget::Lease b = budget.Acquire(40);
  ByteBudget::Lease none = budget.Acquire(0);
  EXPECT_EQ(budget.held_bytes(), 100);
  EXPECT_EQ(a.nbytes(), 60);
  a.Return();
  a.Return();
  EXPECT_EQ(budget.held_bytes(), 40);
  EXPECT_EQ(budget.peak_held_bytes(), 100);
}

TEST(ByteBudgetTest, MovingALeaseMovesTheBytes) {
  ByteBudget budget(100);
  ByteBudget::Lease a = budget.Acquire(60);
  ByteBudget::Lease b = std::move(a);
  EXPECT_EQ(budget.held_bytes(), 60);
  b = budget.Acquire(10);
  EXPECT_EQ(budget.held_bytes(), 10);
  b = ByteBudget::Lease();
  EXPECT_EQ(budget.held_bytes(), 0);
}

TEST(ByteBudgetTest, WaitsUntilBytesComeBack) {
  ByteBudget budget(100);
  std::optional<ByteBudget::Lease> held = budget.Acquire(60);
  std::atomic<bool> returned{false};
  std::thread waiter([&] {
    ByteBudget::Lease lease = budget.Acquire(41);
    EXPECT_TRUE(returned.load());
  });
  returned.store(true);
  held.reset();
  waiter.join();
  EXPECT_EQ(budget.peak_held_bytes(), 60);
}

TEST(ByteBudgetTest, MoreThanTheLimitIsGrantedAlone) {
  for (int64_t limit : {0, 100}) {
    ByteBudget budget(limit);
    std::optional<ByteBudget::Lease> small = budget.Acquire(limit / 2);
    std::thread waiter([&] {
      ByteBudget::Lease large = budget.Acquire(1000);
      EXPECT_EQ(budget.held_bytes(), 1000);
    });
    small.reset();
    waiter.join();
    EXPECT_EQ(budget.held_bytes(), 0);
  }
}

TEST(ByteBudgetTest, NeverHoldsMoreThanTheLimit) {
  ByteBudget budget(64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget, t] {
      for (int i = 0; i < 500; ++i) {
        ByteBudget::Lease lease = budget.Acquire((i * 7 + t * 13) % 65);
        EXPECT_LE(budget.held_bytes(), 64);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.held_bytes(), 0);
  EXPECT_LE(budget.peak_held_bytes(), 64);
}

}  // namespace
}  // namespace fsdp
