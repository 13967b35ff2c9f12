// SPDX-License-Identifier: Apache-2.0
//
// Reads are cut into pieces that fill one pinned buffer after the other. Flush reads the pieces of the current buffer
// on the threads of the pool, records their copies on a stream, and switches to the other buffer; before it fills that
// buffer again, Flush waits for the event after its copies. So the copies of one buffer overlap with the reads into the
// other, and pinned memory, which is scarce, is bounded by two buffers for loads of any size. Elements are converted on
// the host: the copy moves bytes of the wanted dtype.
//
//   buffer   |piece|piece      |piece|   ...free...   |small|small|small|     small tensors from the end, so that they
//            0                       used_            back_                   are next to each other
//
// The order of the reads stays the order in the source, in which neighbours are read together.
#include "fsdp/checkpoint/source/device_read.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/packed_copies.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {
namespace {

// Pieces start at multiples of this: copy engines are fastest then, and conversions need aligned elements.
constexpr int64_t kAlignment = 256;

int64_t Aligned(int64_t nbytes) { return (nbytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t BytesOf(const TensorRead& read) { return read.interval.size() * SizeOf(read.dtype); }

int64_t BytesOf(const std::vector<DeviceRead>& reads) {
  int64_t nbytes = 0;
  for (const DeviceRead& read : reads) nbytes += Aligned(BytesOf(read.read));
  return nbytes;
}

class DeviceReader {
 public:
  DeviceReader(const TensorSource& source, Device& device, ThreadPool& pool)
      : source_(source), device_(device), pool_(pool) {}

  absl::Status Open(int64_t buffer_bytes) {
    FSDP_ASSIGN_OR_RETURN(stream_, device_.CreateStream("checkpoint-load"));
    packed_ = std::make_unique<PackedCopies>(*stream_);
    for (Slot& slot : slots_) {
      FSDP_ASSIGN_OR_RETURN(slot.buffer, device_.AllocatePinned(buffer_bytes));
    }
    back_ = BackOfEmpty();
    return absl::OkStatus();
  }

  // Adds `read` to the current buffer, after a Flush if it has no room.
  absl::Status Add(const DeviceRead& read) {
    const int64_t nbytes = BytesOf(read.read);
    const bool is_small = PackedCopies::IsSmall(nbytes) && read.memory.device() == device_.id();
    return is_small && Aligned(nbytes) <= BackOfEmpty() ? AddSmall(read, nbytes) : AddLarge(read.read);
  }

  // Reads the added pieces, and starts their copies.
  absl::Status Flush() {
    if (pieces_.empty()) return absl::OkStatus();
    Slot& slot = slots_[slot_];
    FSDP_RETURN_IF_ERROR(slot.copied.Synchronize());
    FSDP_RETURN_IF_ERROR(source_.ReadAll(pieces_, pool_));
    for (const Copy& copy : copies_) stream_->CopyAsync(copy.to, copy.from, copy.nbytes);
    std::reverse(small_.begin(), small_.end());  // to the order of their places
    FSDP_RETURN_IF_ERROR(packed_->ToDevice(slot.buffer, small_));
    slot.copied = stream_->Record();
    slot_ = 1 - slot_;
    used_ = 0;
    back_ = BackOfEmpty();
    pieces_.clear();
    copies_.clear();
    small_.clear();
    return absl::OkStatus();
  }

  absl::Status Finish() {
    const absl::Status flushed = Flush();
    const absl::Status copied = stream_->Synchronize();  // after an error too: copies still read from the buffers
    return flushed.ok() ? copied : flushed;
  }

 private:
  struct Slot {
    Buffer buffer;
    Event copied;
  };
  struct Copy {
    std::byte* to;
    const std::byte* from;
    int64_t nbytes;
  };

  const Buffer& buffer() const { return slots_[slot_].buffer; }

  // Where the small tensors of an empty buffer end.
  int64_t BackOfEmpty() const { return buffer().nbytes() / kAlignment * kAlignment; }

  absl::Status AddSmall(const DeviceRead& read, int64_t nbytes) {
    if (back_ - used_ < Aligned(nbytes)) FSDP_RETURN_IF_ERROR(Flush());
    back_ -= Aligned(nbytes);
    TensorRead piece = read.read;
    piece.out = buffer().data() + back_;
    pieces_.push_back(std::move(piece));
    small_.push_back({Tensor(read.memory.Slice(0, nbytes), DType::kUInt8, {nbytes}), back_});
    return absl::OkStatus();
  }

  // In several pieces with a Flush between them if it does not fit.
  absl::Status AddLarge(TensorRead read) {
    const int64_t size = SizeOf(read.dtype);
    while (!read.interval.empty()) {
      // Without small tensors up to the very end, which may hold one more element.
      const int64_t end_of_room = back_ == BackOfEmpty() ? buffer().nbytes() : back_;
      const int64_t room = std::max<int64_t>(0, (end_of_room - used_) / size);
      if (room == 0) {
        FSDP_RETURN_IF_ERROR(Flush());
        continue;
      }
      const int64_t end = std::min(read.interval.end, read.interval.begin + room);
      TensorRead piece = read;
      piece.interval.end = end;
      piece.out = buffer().data() + used_;
      const int64_t nbytes = BytesOf(piece);
      copies_.push_back({read.out, piece.out, nbytes});
      used_ += Aligned(nbytes);
      read.out += nbytes;
      read.interval.begin = end;
      pieces_.push_back(std::move(piece));
    }
    return absl::OkStatus();
  }

  const TensorSource& source_;
  Device& device_;
  ThreadPool& pool_;
  Slot slots_[2];
  std::unique_ptr<PackedCopies> packed_;
  std::unique_ptr<Stream> stream_;  // destroyed before the slots and packed_: it waits for copies from their buffers
  int slot_ = 0;
  int64_t used_ = 0, back_ = 0;
  std::vector<TensorRead> pieces_;
  std::vector<Copy> copies_;
  std::vector<PackedCopies::Slot> small_;
};

}  // namespace

absl::Status ReadToDevice(const TensorSource& source, const std::vector<DeviceRead>& reads, Device& device,
                          ThreadPool& pool, int64_t buffer_bytes) {
  DeviceReader reader(source, device, pool);
  FSDP_RETURN_IF_ERROR(reader.Open(std::min(buffer_bytes, BytesOf(reads))));
  absl::Status status;
  for (size_t i = 0; status.ok() && i < reads.size(); ++i) status = reader.Add(reads[i]);
  const absl::Status finished = reader.Finish();
  return status.ok() ? finished : status;
}

}  // namespace fsdp
