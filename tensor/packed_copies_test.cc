// SPDX-License-Identifier: Apache-2.0
//
// On the host's device: what travels, and where it arrives. tests/few_calls_test.cc counts the copies of a GPU.
#include "fsdp/tensor/packed_copies.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/host_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

class PackedCopiesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(stream_, device_->CreateStream("copies")); }

  // Tensors of odd sizes, together more than two packs, with room between their places; after them `room` bytes.
  std::vector<PackedCopies::Slot> MakeSlots(char value) {
    std::vector<PackedCopies::Slot> slots;
    end_ = 0;
    for (int i = 0; i < 300; ++i) {
      const int64_t nbytes = i == 7 ? PackedCopies::kSmallBytes : 1 + (i * 7919) % 60000;
      absl::StatusOr<Tensor> t = Tensor::Empty(*device_, DType::kUInt8, {nbytes});
      EXPECT_OK(t);
      std::memset(t->data(), value + i % 50, nbytes);
      slots.push_back({*t, end_});
      end_ += (nbytes + 511) / 512 * 512;
    }
    return slots;
  }

  static std::string Bytes(const void* data, int64_t nbytes) {
    return std::string(static_cast<const char*>(data), nbytes);
  }

  const std::shared_ptr<Device> device_ = CreateHostDevice();
  std::unique_ptr<Stream> stream_;
  int64_t end_ = 0;  // of the last slots
};

TEST_F(PackedCopiesTest, EveryTensorArrivesInItsPlaceAndReturns) {
  PackedCopies copies(*stream_);
  const std::vector<PackedCopies::Slot> slots = MakeSlots('A');
  ASSERT_GT(end_, 2 * PackedCopies::kPackBytes);
  ASSERT_OK_AND_ASSIGN(const Buffer pinned, device_->AllocatePinned(end_ + 1));
  std::memset(pinned.data(), '.', pinned.nbytes());
  ASSERT_OK(copies.ToHost(slots, pinned));
  ASSERT_OK(stream_->Synchronize());
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t nbytes = slots[i].on_device.nbytes();
    ASSERT_EQ(Bytes(pinned.data() + slots[i].offset, nbytes), std::string(nbytes, 'A' + i % 50)) << i;
  }
  EXPECT_EQ(static_cast<char>(pinned.data()[end_]), '.');

  const std::vector<PackedCopies::Slot> others = MakeSlots('.');
  ASSERT_OK(copies.ToDevice(pinned, others));
  ASSERT_OK(stream_->Synchronize());
  for (size_t i = 0; i < others.size(); ++i) {
    const int64_t nbytes = others[i].on_device.nbytes();
    ASSERT_EQ(Bytes(others[i].on_device.data(), nbytes), std::string(nbytes, 'A' + i % 50)) << i;
  }
}

TEST_F(PackedCopiesTest, ASingleTensorNeedsNoMemoryOfTheDevice) {
  PackedCopies copies(*stream_);
  std::vector<PackedCopies::Slot> slots = MakeSlots('A');
  slots.resize(1);
  ASSERT_OK_AND_ASSIGN(const Buffer pinned, device_->AllocatePinned(1024));
  const int64_t before = device_->allocated_bytes();
  ASSERT_OK(copies.ToHost(slots, pinned));
  ASSERT_OK(copies.ToDevice(pinned, slots));
  ASSERT_OK(copies.ToHost({}, pinned));
  ASSERT_OK(stream_->Synchronize());
  EXPECT_EQ(device_->allocated_bytes(), before);
  EXPECT_EQ(Bytes(pinned.data(), 1), "A");
}

}  // namespace
}  // namespace fsdp
