// SPDX-License-Identifier: Apache-2.0
//
// Kernels on the emulator: that they compute what a GPU would, and that what CUDA leaves undefined is found.

#include "fsdp/cuda/emulator/block.h"

#include <cuda_runtime.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "fsdp/cuda/emulator/runtime.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/shared_memory.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

class EmulatorTest : public testing::Test {
 protected:
  EmulatorTest() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~EmulatorTest() override {
    cudaStreamDestroy(stream_);
    ResetEmulatedDevices();
    cudaGetLastError();
  }

  template <typename T>
  T* Malloc(size_t n) {
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, n * sizeof(T)), cudaSuccess);
    return static_cast<T*>(data);
  }

  template <typename T>
  std::vector<T> Read(const T* data, size_t n) {
    std::vector<T> values(n);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return values;
  }

  cudaStream_t stream_ = nullptr;
};

struct Values {
  int at[256];
};

// Each thread's value becomes its mirror image's, within the block.
__global__ void Mirror(const int* from, int* to, bool with_barrier) {
  auto& shared = SharedMemory<Values>();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  shared.at[threadIdx.x] = from[i];
  if (with_barrier) __syncthreads();
  to[i] = shared.at[blockDim.x - 1 - threadIdx.x];
}

TEST_F(EmulatorTest, BarriersAreNeededAndWork) {
  std::vector<int> values(512), mirrored(512);
  std::iota(values.begin(), values.end(), 0);
  for (int i = 0; i < 512; ++i) mirrored[i] = i / 256 * 256 + 255 - i % 256;
  int* from = Malloc<int>(512);
  int* to = Malloc<int>(512);
  cudaMemcpyAsync(from, values.data(), 512 * sizeof(int), cudaMemcpyHostToDevice, stream_);
  Launch(Mirror, 2, 256, sizeof(Values), stream_, from, to, true);
  EXPECT_EQ(Read(to, 512), mirrored);
  // Without it there is poison in the first half of ascending blocks and in the last of descending ones.
  Launch(Mirror, 2, 256, sizeof(Values), stream_, from, to, false);
  const std::vector<int> wrong = Read(to, 512);
  EXPECT_EQ(wrong[0], -1);
  EXPECT_EQ(wrong[511], -1);
}

__global__ void Shuffle(float* sums, unsigned* ballots, float* from_lane_3) {
  float sum = static_cast<float>(threadIdx.x);
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  sums[threadIdx.x] = sum;
  ballots[threadIdx.x] = __ballot_sync(~0u, threadIdx.x % 2);
  from_lane_3[threadIdx.x] = __shfl_sync(~0u, static_cast<float>(threadIdx.x), 3);
}

TEST_F(EmulatorTest, LanesOfAWarpExchange) {
  float* sums = Malloc<float>(64);
  unsigned* ballots = Malloc<unsigned>(64);
  float* from_lane_3 = Malloc<float>(64);
  Launch(Shuffle, 1, 64, 0, stream_, sums, ballots, from_lane_3);
  EXPECT_THAT(Read(ballots, 64), testing::Each(0xaaaaaaaau));
  std::vector<float> want(32, 496.0f);
  want.resize(64, 496.0f + 32 * 32);
  EXPECT_EQ(Read(sums, 64), want);
  EXPECT_EQ(Read(from_lane_3, 64)[63], 35);
}

TEST_F(EmulatorTest, NewMemoryIsNan) {
  EXPECT_TRUE(std::isnan(Read(Malloc<float>(3), 3)[2]));
  EXPECT_TRUE(std::isnan(Read(Malloc<double>(3), 3)[0]));
}

__global__ void TrapAt(int thread) {
  if (static_cast<int>(threadIdx.x) == thread) __trap();
  __syncthreads();
}

TEST_F(EmulatorTest, ATrapEndsTheUseOfTheDevice) {
  Launch(TrapAt, 3, 64, 0, stream_, 5);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchFailure);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 1), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
}

TEST_F(EmulatorTest, LaunchesAreChecked) {
  Launch(TrapAt, 1, 1025, 0, stream_, -1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  Launch(TrapAt, 1, 32, 1 << 20, stream_, -1);
  EXPECT_NE(cudaGetLastError(), cudaSuccess);
  Launch(TrapAt, 1, 32, 100 << 10, stream_, -1);  // more than 48 KiB, which Launch asks for
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  Launch(TrapAt, 1, 32, 0, nullptr, -1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}

TEST_F(EmulatorTest, CopiesAreChecked) {
  float* data = Malloc<float>(3);
  float host[4] = {};
  EXPECT_EQ(cudaMemcpyAsync(data, host, 16, cudaMemcpyDefault, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(data, host, 12, cudaMemcpyDeviceToHost, stream_), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemsetAsync(host, 0, 4, stream_), cudaErrorInvalidValue);
}

using EmulatorDeathTest = EmulatorTest;

__global__ void SplitBarrier(bool returns) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else if (!returns) {
    __syncthreads();
  }
}

__global__ void WriteBeyond(float* data, int i) {
  if (data != nullptr) data[i] = 0;
  if (data == nullptr) SharedMemory<Values>().at[i] = 0;
}

__global__ void SplitWarp() {
  if (threadIdx.x < 16) __syncwarp();
}

TEST_F(EmulatorDeathTest, WhatCudaLeavesUndefinedEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [this](auto launch) {
    launch();
    cudaStreamSynchronize(stream_);
  };
  EXPECT_DEATH(run([&] { Launch(SplitBarrier, 1, 64, 0, stream_, false); }), "wait at different barriers");
  EXPECT_DEATH(run([&] { Launch(SplitBarrier, 1, 64, 0, stream_, true); }), "a thread has returned while others");
  EXPECT_DEATH(run([&] { Launch(SplitWarp, 1, 32, 0, stream_); }), "lanes of its warp that do not come");
  EXPECT_DEATH(run([&] { Launch(WriteBeyond, 1, 1, sizeof(Values), stream_, nullptr, 256); }),
               "wrote past its shared memory");
  float* data = Malloc<float>(3);
  EXPECT_DEATH(run([&] {
                 Launch(WriteBeyond, 1, 1, 0, stream_, data, 3);
                 cudaFreeAsync(data, stream_);
               }),
               "wrote past 12 bytes of device memory");
  EXPECT_DEATH(std::printf("%f", *data), "");  // the host cannot touch it
}

}  // namespace
}  // namespace fsdp
