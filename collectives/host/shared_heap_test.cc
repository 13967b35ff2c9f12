// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/host/shared_heap.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/host/available_memory.h"
#include "fsdp/tensor/host_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

class SharedHeapTest : public testing::Test {
 protected:
  void SetUp() override { heap_ = SharedHeap::Create(device_).value(); }

  // Bytes of real memory behind the heap.
  int64_t CommittedBytes() const {
    struct stat status = {};
    EXPECT_EQ(fstat(heap_->memory().fd(), &status), 0);
    return status.st_blocks * 512;
  }

  const std::shared_ptr<Device> device_ = CreateHostDevice();
  std::shared_ptr<SharedHeap> heap_;
};

TEST_F(SharedHeapTest, BuffersAreAlignedApartAndZero) {
  std::vector<Buffer> buffers;
  for (const int64_t nbytes : {int64_t{1}, int64_t{0}, int64_t{5000}, 2 * kMiB, 3 * kMiB}) {
    ASSERT_OK_AND_ASSIGN(Buffer buffer, heap_->Allocate(nbytes));
    EXPECT_EQ(buffer.nbytes(), nbytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + nbytes, [](std::byte b) { return b == std::byte{0}; }));
    std::memset(buffer.data(), 0xff, static_cast<size_t>(nbytes));
    buffers.push_back(std::move(buffer));
  }
}

TEST_F(SharedHeapTest, MemoryIsTakenAtOnceAndGivenBack) {
  EXPECT_EQ(CommittedBytes(), 0);
  ASSERT_OK_AND_ASSIGN(Buffer buffer, heap_->Allocate(4 * kMiB));
  EXPECT_EQ(CommittedBytes(), 4 * kMiB);
  EXPECT_EQ(device_->allocated_bytes(), 4 * kMiB);
  buffer = Buffer();
  EXPECT_EQ(CommittedBytes(), 0);
  EXPECT_EQ(device_->allocated_bytes(), 0);
}

TEST_F(SharedHeapTest, FreedRangesAreJoinedAndUsedAgain) {
  ASSERT_OK_AND_ASSIGN(Buffer a, heap_->Allocate(8192));
  ASSERT_OK_AND_ASSIGN(Buffer b, heap_->Allocate(4096));
  ASSERT_OK_AND_ASSIGN(Buffer c, heap_->Allocate(4096));
  ASSERT_OK_AND_ASSIGN(const Buffer d, heap_->Allocate(4096));
  const std::byte* const first = a.data();
  std::memset(a.data(), 0xff, 8192);
  a = Buffer();
  c = Buffer();
  b = Buffer();
  ASSERT_OK_AND_ASSIGN(const Buffer again, heap_->Allocate(16384));
  EXPECT_EQ(again.data(), first);
  EXPECT_EQ(again.data()[0], std::byte{0});
  EXPECT_EQ(d.data(), first + 16384);
}

TEST_F(SharedHeapTest, OffsetsAreOfBuffersInside) {
  ASSERT_OK_AND_ASSIGN(const Buffer buffer, heap_->Allocate(10000));
  EXPECT_EQ(heap_->OffsetOf(buffer.data() + 7, 9993), buffer.data() + 7 - heap_->memory().data());
  EXPECT_EQ(heap_->OffsetOf(heap_->memory().data() + heap_->memory().nbytes() - 1, 2), std::nullopt);
  const char outside = 0;
  EXPECT_EQ(heap_->OffsetOf(&outside, 1), std::nullopt);
}

TEST_F(SharedHeapTest, TooMuchIsAnErrorThatNamesTheDevice) {
  ASSERT_OK_AND_ASSIGN(const Buffer some, heap_->Allocate(4096));
  EXPECT_THAT(heap_->Allocate(heap_->memory().nbytes()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("device cpu"), HasSubstr("in use 4096"), HasSubstr("no free range"))));
  EXPECT_THAT(heap_->Allocate(heap_->memory().nbytes() - 4 * kMiB),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("are available")));
  EXPECT_EQ(device_->allocated_bytes(), 4096);
  EXPECT_OK(heap_->Allocate(4096));
}

TEST_F(SharedHeapTest, ABufferOutlivesTheHeapsOwner) {
  ASSERT_OK_AND_ASSIGN(const Buffer buffer, heap_->Allocate(4096));
  heap_.reset();
  std::memset(buffer.data(), 1, 4096);
}

TEST_F(SharedHeapTest, PeersMapTheSameMemory) {
  ASSERT_OK_AND_ASSIGN(const Buffer buffer, heap_->Allocate(4096));
  ASSERT_OK_AND_ASSIGN(const SharedMemory peer,
                       SharedMemory::OpenReadOnly(getpid(), heap_->memory().fd(), heap_->memory().nbytes()));
  std::memcpy(buffer.data(), "hello", 6);
  EXPECT_STREQ(reinterpret_cast<const char*>(peer.data() + *heap_->OffsetOf(buffer.data(), 6)), "hello");
  EXPECT_THAT(SharedMemory::OpenReadOnly(getpid(), heap_->memory().fd(), 4096),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("wanted 4096")));
  EXPECT_THAT(SharedMemory::OpenReadOnly(getpid(), 9999, 4096), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(AvailableMemoryTest, TheHostHasSome) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_LT(AvailableMemoryBytes(), int64_t{1} << 60);
}

TEST(AvailableMemoryTest, WhatIsLeftOfACgroupCountsFilePagesAsFree) {
  const std::string stat = "anon 100\nfile 700\ninactive_file 400\nactive_file 200\nshmem 100\n";
  EXPECT_EQ(CgroupAvailableBytes("1000\n", "900\n", stat), 700);
  EXPECT_EQ(CgroupAvailableBytes("1000\n", "900\n", ""), 100);
  EXPECT_EQ(CgroupAvailableBytes("1000\n", "1100\n", ""), 0);
  EXPECT_EQ(CgroupAvailableBytes("max\n", "900\n", stat), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(CgroupAvailableBytes("", "", ""), std::numeric_limits<int64_t>::max());
}

// A program that a rank starts must not keep the memory, or the rank's place in the group, alive.
TEST_F(SharedHeapTest, DescriptorsCloseOnExec) { EXPECT_NE(fcntl(heap_->memory().fd(), F_GETFD) & FD_CLOEXEC, 0); }

}  // namespace
}  // namespace fsdp
