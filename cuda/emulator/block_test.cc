// SPDX-License-Identifier: Apache-2.0
//
// Kernels on the emulator: they compute the results of a GPU, and undefined behaviour of CUDA is found.

#include "fsdp/cuda/emulator/block.h"

#include <cuda_runtime.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "fsdp/cuda/async_copy.h"
#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/emulator/runtime.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/mma.h"
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

// Each thread's value becomes the value of its mirror image within the block.
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
  // Without it there is NaN in the first half of ascending blocks and in the last half of descending ones.
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

// Two groups of copies, of which a thread waits for all but `pending`; it then reads both without a barrier.
template <int kPending>
__global__ void CopyTwice(const float* from, float* to) {
  auto& shared = SharedMemory<Values>();
  float* tile = reinterpret_cast<float*>(shared.at);
  const int i = static_cast<int>(threadIdx.x);
  CopyAsync<4>(tile + i, from + i, true);
  CommitCopies();
  CopyAsync<4>(tile + 32 + i, from, i % 2 == 0);
  CommitCopies();
  AwaitCopies<kPending>();
  to[i] = tile[i];
  to[32 + i] = tile[32 + i];
}

TEST_F(EmulatorTest, AsynchronousCopiesArriveWhenTheirGroupIsAwaited) {
  std::vector<float> values(32);
  std::iota(values.begin(), values.end(), 1.0f);
  float* from = Malloc<float>(32);
  float* to = Malloc<float>(64);
  cudaMemcpyAsync(from, values.data(), 32 * sizeof(float), cudaMemcpyHostToDevice, stream_);
  Launch(CopyTwice<0>, 1, 32, sizeof(Values), stream_, from, to);
  std::vector<float> arrived = Read(to, 64);
  EXPECT_EQ(std::vector<float>(arrived.begin(), arrived.begin() + 32), values);
  EXPECT_EQ(arrived[32], 1);
  EXPECT_EQ(arrived[33], 0);  // nothing to copy: zeros
  Launch(CopyTwice<1>, 1, 32, sizeof(Values), stream_, from, to);
  arrived = Read(to, 64);
  EXPECT_EQ(arrived[31], 32);
  EXPECT_TRUE(std::isnan(arrived[32]));
  Launch(CopyTwice<2>, 1, 32, sizeof(Values), stream_, from, to);
  EXPECT_TRUE(std::isnan(Read(to, 64)[0]));
}

// A copy into memory that another thread has not read yet.
__global__ void OverwriteEarly(const float* from, float* to) {
  float* tile = reinterpret_cast<float*>(SharedMemory<Values>().at);
  const int i = static_cast<int>(threadIdx.x);
  tile[i] = 7;
  __syncthreads();
  if (i == 0) CopyAsync<16>(tile, from, true);
  CommitCopies();
  __syncwarp();
  to[i] = tile[i];
  __syncwarp();
  AwaitCopies<0>();
}

TEST_F(EmulatorTest, TheDestinationOfACopyIsNanFromItsStart) {
  float* from = Malloc<float>(32);
  float* to = Malloc<float>(32);
  cudaMemsetAsync(from, 0, 32 * sizeof(float), stream_);
  Launch(OverwriteEarly, 1, 32, sizeof(Values), stream_, from, to);
  const std::vector<float> read = Read(to, 32);
  EXPECT_TRUE(std::isnan(read[0]) && std::isnan(read[3]));
  EXPECT_EQ(read[4], 7);
}

// Row-major a [16, 16] and b [16, 8], rounded to T, through the registers of a warp.
template <typename T>
__global__ void Multiply(const float* a, const float* b, float* c) {
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4 * 2;
  const auto row = [a](int r, int k) { return RoundPair<T>(a[r * 16 + k], a[r * 16 + k + 1]); };
  const auto column = [b](int k, int n) { return RoundPair<T>(b[k * 8 + n], b[(k + 1) * 8 + n]); };
  float sums[4] = {1, 1, 1, 1};
  MultiplyAdd<T>({{row(g, t), row(g + 8, t), row(g, t + 8), row(g + 8, t + 8)}}, {{column(t, g), column(t + 8, g)}},
                 sums);
  for (int e = 0; e < 4; ++e) c[(g + e / 2 * 8) * 8 + t + e % 2] = sums[e];
}

TEST_F(EmulatorTest, TensorCoresMultiplyBFloat16AndFloat16) {
  // 257 needs 9 bits, which float16 has and bfloat16 does not.
  std::vector<float> a(256), b(128), want(128, 1.0f);
  for (int i = 0; i < 256; ++i) a[i] = static_cast<float>(i % 7 - 3);
  for (int i = 0; i < 128; ++i) b[i] = static_cast<float>(i % 5 - 2);
  a[0] = 257;
  for (int i = 0; i < 128; ++i) {
    for (int k = 0; k < 16; ++k) want[i] += a[i / 8 * 16 + k] * b[k * 8 + i % 8];
  }
  float* device_a = Malloc<float>(256);
  float* device_b = Malloc<float>(128);
  float* c = Malloc<float>(128);
  cudaMemcpyAsync(device_a, a.data(), 256 * sizeof(float), cudaMemcpyHostToDevice, stream_);
  cudaMemcpyAsync(device_b, b.data(), 128 * sizeof(float), cudaMemcpyHostToDevice, stream_);
  Launch(Multiply<__half>, 1, 32, 0, stream_, device_a, device_b, c);
  EXPECT_EQ(Read(c, 128), want);
  Launch(Multiply<__nv_bfloat16>, 1, 32, 0, stream_, device_a, device_b, c);
  for (int n = 0; n < 8; ++n) want[n] -= b[n];  // 256 for 257
  EXPECT_EQ(Read(c, 128), want);
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
  Launch(TrapAt, 1, 32, 100 << 10, stream_, -1);  // more than 48 KiB, which Launch requests
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
