// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/host/kernel_threads.h"

#include <omp.h>

#include <thread>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(KernelThreadsTest, OneUnderTheThreadSanitizer) {
  SetKernelThreads(3);
  EXPECT_EQ(omp_get_max_threads(), kUnderThreadSanitizer ? 1 : 3);
}

// Which is why each kernel sets it, on the worker that runs it.
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

}  // namespace
}  // namespace fsdp
