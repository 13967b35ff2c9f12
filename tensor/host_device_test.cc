// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/host_device.h"

#include <cstring>
#include <thread>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/host_memory.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;

uintptr_t AddressOf(const Buffer& buffer) { return reinterpret_cast<uintptr_t>(buffer.data()); }

TEST(HostDeviceTest, SaysWhatItIs) {
  auto device = CreateHostDevice({.kernel_threads = 3});
  EXPECT_EQ(device->type(), DeviceType::kCpu);
  EXPECT_EQ(device->name(), "cpu");
  EXPECT_EQ(KernelThreads(*device), 3);
  EXPECT_EQ(KernelThreads(*CreateHostDevice()), 1);
}

TEST(HostDeviceTest, MemoryIsAlignedAndWritable) {
  auto device = CreateHostDevice();
  for (int64_t nbytes : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{65}, 64 * kKiB - 1, 64 * kKiB, 64 * kKiB + 1,
                         kMiB, 4 * kMiB, 4 * kMiB + 1}) {
    ASSERT_OK_AND_ASSIGN(const Buffer buffer, device->Allocate(nbytes));
    ASSERT_OK_AND_ASSIGN(const Buffer pinned, device->AllocatePinned(nbytes));
    EXPECT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.nbytes(), nbytes);
    const uintptr_t alignment = nbytes >= 64 * kKiB ? 4096 : 64;
    EXPECT_EQ(AddressOf(buffer) % alignment, 0) << nbytes;
    EXPECT_EQ(AddressOf(pinned) % alignment, 0) << nbytes;
    std::memset(buffer.data(), 0xA5, nbytes);
    std::memset(pinned.data(), 0x5A, nbytes);
  }
}

TEST(HostDeviceTest, CountsLiveBytesExactly) {
  auto device = CreateHostDevice();
  EXPECT_EQ(device->allocated_bytes(), 0);
  {
    ASSERT_OK_AND_ASSIGN(Buffer small, device->Allocate(100));
    ASSERT_OK_AND_ASSIGN(const Buffer large, device->AllocatePinned(kMiB + 1));
    const Buffer copy = large;
    EXPECT_EQ(device->allocated_bytes(), 100 + kMiB + 1);
    small = Buffer();
    EXPECT_EQ(device->allocated_bytes(), kMiB + 1);
  }
  EXPECT_EQ(device->allocated_bytes(), 0);
  EXPECT_EQ(device->peak_allocated_bytes(), 100 + kMiB + 1);
  device->ResetPeak();
  EXPECT_EQ(device->peak_allocated_bytes(), 0);
}

TEST(HostDeviceTest, CountsMemoryOfOtherOwners) {
  auto device = CreateHostDevice();
  ASSERT_OK_AND_ASSIGN(const Buffer own, device->Allocate(10));
  device->RecordAllocation(1000);
  EXPECT_EQ(device->allocated_bytes(), 1010);
  device->RecordAllocation(-1000);
  EXPECT_EQ(device->allocated_bytes(), 10);
  EXPECT_EQ(device->peak_allocated_bytes(), 1010);
}

TEST(HostDeviceTest, DevicesCountApart) {
  auto a = CreateHostDevice();
  auto b = CreateHostDevice();
  ASSERT_OK_AND_ASSIGN(const Buffer buffer, a->Allocate(10));
  EXPECT_EQ(b->allocated_bytes(), 0);
}

TEST(HostDeviceTest, ImpossibleSizesAreErrors) {
  auto device = CreateHostDevice();
  ASSERT_OK_AND_ASSIGN(const Buffer held, device->Allocate(10));
  EXPECT_THAT(device->Allocate(-5), StatusIs(absl::StatusCode::kInvalidArgument, "cpu: cannot allocate -5 bytes"));
  EXPECT_THAT(device->Allocate(int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "cpu: cannot allocate 1152921504606846976 bytes; 10 bytes are in use"));
  EXPECT_EQ(device->allocated_bytes(), 10);
  EXPECT_EQ(device->peak_allocated_bytes(), 10);
}

TEST(HostDeviceTest, BuffersAndStreamsOutliveTheLastReferenceToIt) {
  auto device = CreateHostDevice();
  ASSERT_OK_AND_ASSIGN(const Buffer buffer, device->Allocate(kMiB));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, device->CreateStream("s"));
  device.reset();
  std::memset(buffer.data(), 1, kMiB);
  EXPECT_EQ(stream->device().allocated_bytes(), kMiB);
}

TEST(HostDeviceDeathTest, NeedsAKernelThread) {
  EXPECT_DEATH(CreateHostDevice({.kernel_threads = 0}), "no kernel threads");
}

TEST(HostMemoryTest, AFreedBlockIsTheNextOfItsSize) {
  auto memory = HostMemory::Create(true);
  ASSERT_OK_AND_ASSIGN(Buffer a, memory->Allocate(kMiB));
  const uintptr_t address = AddressOf(a);
  a = Buffer();
  EXPECT_EQ(memory->kept_bytes(), kMiB);
  ASSERT_OK_AND_ASSIGN(const Buffer other_size, memory->Allocate(kMiB + 8192));
  EXPECT_EQ(memory->kept_bytes(), kMiB);
  // The same number of pages.
  ASSERT_OK_AND_ASSIGN(const Buffer b, memory->Allocate(kMiB - 100));
  EXPECT_EQ(AddressOf(b), address);
  EXPECT_EQ(memory->kept_bytes(), 0);
}

TEST(HostMemoryTest, TheWarmestBlockComesFirst) {
  auto memory = HostMemory::Create(true);
  ASSERT_OK_AND_ASSIGN(Buffer a, memory->Allocate(kMiB));
  ASSERT_OK_AND_ASSIGN(Buffer b, memory->Allocate(kMiB));
  const uintptr_t freed_last = AddressOf(b);
  a = Buffer();
  b = Buffer();
  ASSERT_OK_AND_ASSIGN(const Buffer c, memory->Allocate(kMiB));
  EXPECT_EQ(AddressOf(c), freed_last);
}

TEST(HostMemoryTest, SmallBlocksAreNotKept) {
  auto memory = HostMemory::Create(true);
  ASSERT_OK(memory->Allocate(60 * kKiB).status());
  EXPECT_EQ(memory->kept_bytes(), 0);
}

TEST(HostMemoryTest, KeepsNothingWithoutTheCache) {
  auto memory = HostMemory::Create(false);
  ASSERT_OK(memory->Allocate(kMiB).status());
  EXPECT_EQ(memory->kept_bytes(), 0);
  EXPECT_EQ(memory->peak_allocated_bytes(), kMiB);
}

// Sizes that are never requested again must not pile up.
TEST(HostMemoryTest, KeepsLittleMoreThanWasEverLive) {
  auto memory = HostMemory::Create(true);
  for (int64_t i = 1; i <= 300; ++i) {
    ASSERT_OK(memory->Allocate(4 * kMiB + i * 4096).status());
    EXPECT_LE(memory->kept_bytes(), 8 * kMiB + 256 * kMiB);
  }
  EXPECT_GT(memory->kept_bytes(), 200 * kMiB);
  // The block that was freed last is still kept.
  const int64_t kept = memory->kept_bytes();
  ASSERT_OK_AND_ASSIGN(const Buffer last, memory->Allocate(4 * kMiB + 300 * 4096));
  EXPECT_EQ(memory->kept_bytes(), kept - last.nbytes());
}

TEST(HostMemoryTest, ThreadsShareIt) {
  auto memory = HostMemory::Create(true);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      std::vector<Buffer> held;
      for (int i = 0; i < 500; ++i) {
        absl::StatusOr<Buffer> buffer = memory->Allocate((i % 7 + 1) * 20'000);
        ASSERT_OK(buffer);
        std::memset(buffer->data(), t, buffer->nbytes());
        held.push_back(*buffer);
        if (held.size() > 5) held.erase(held.begin());
        for (const Buffer& mine : held) ASSERT_EQ(static_cast<int>(mine.data()[mine.nbytes() - 1]), t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory->allocated_bytes(), 0);
}

}  // namespace
}  // namespace fsdp
