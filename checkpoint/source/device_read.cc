// SPDX-License-Identifier: Apache-2.0
//
// Reads are cut into pieces that fill one pinned buffer after the other. Flush reads the pieces of the current buffer
// on the threads of the pool, records their copies on a stream, and switches to the other buffer; before it fills that
// buffer again, Flush waits for the event after its copies. So the copies of one buffer overlap with the reads into the
// other, and pinned memory, which is scarce, is bounded by two buffers for loads of any size. Elements are converted on
// the host: the copy moves bytes of the wanted dtype.
#include "fsdp/checkpoint/source/device_read.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {
namespace {

// Pieces start at multiples of this: copy engines are fastest then, and conversions need aligned elements.
constexpr int64_t kAlignment = 256;

int64_t Aligned(int64_t nbytes) { return (nbytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t BytesOf(const std::vector<TensorRead>& reads) {
  int64_t nbytes = 0;
  for (const TensorRead& read : reads) nbytes += Aligned(read.interval.size() * SizeOf(read.dtype));
  return nbytes;
}

class DeviceReader {
 public:
  DeviceReader(const TensorSource& source, ThreadPool& pool) : source_(source), pool_(pool) {}

  absl::Status Open(Device& device, int64_t buffer_bytes) {
    FSDP_ASSIGN_OR_RETURN(stream_, device.CreateStream("checkpoint-load"));
    for (Slot& slot : slots_) {
      FSDP_ASSIGN_OR_RETURN(slot.buffer, device.AllocatePinned(buffer_bytes));
    }
    return absl::OkStatus();
  }

  // Appends `read` to the current buffer, in several pieces with a Flush between them if it does not fit.
  absl::Status Add(TensorRead read) {
    const int64_t size = SizeOf(read.dtype);
    while (!read.interval.empty()) {
      const int64_t room = (slots_[slot_].buffer.nbytes() - used_) / size;
      if (room == 0) {
        FSDP_RETURN_IF_ERROR(Flush());
        continue;
      }
      const int64_t end = std::min(read.interval.end, read.interval.begin + room);
      TensorRead piece = read;
      piece.interval.end = end;
      piece.out = slots_[slot_].buffer.data() + used_;
      destinations_.push_back(read.out);
      used_ = std::min(used_ + Aligned(piece.interval.size() * size), slots_[slot_].buffer.nbytes());
      read.out += piece.interval.size() * size;
      read.interval.begin = end;
      pieces_.push_back(std::move(piece));
    }
    return absl::OkStatus();
  }

  // Reads the added pieces, and starts their copies.
  absl::Status Flush() {
    if (pieces_.empty()) return absl::OkStatus();
    Slot& slot = slots_[slot_];
    FSDP_RETURN_IF_ERROR(slot.copied.Synchronize());
    FSDP_RETURN_IF_ERROR(source_.ReadAll(pieces_, pool_));
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const TensorRead& piece = pieces_[i];
      stream_->CopyAsync(destinations_[i], piece.out, piece.interval.size() * SizeOf(piece.dtype));
    }
    slot.copied = stream_->Record();
    slot_ = 1 - slot_;
    used_ = 0;
    pieces_.clear();
    destinations_.clear();
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

  const TensorSource& source_;
  ThreadPool& pool_;
  Slot slots_[2];
  std::unique_ptr<Stream> stream_;  // destroyed before the slots: it waits for copies from their buffers
  int slot_ = 0;
  int64_t used_ = 0;
  std::vector<TensorRead> pieces_;
  std::vector<std::byte*> destinations_;
};

}  // namespace

absl::Status ReadToDevice(const TensorSource& source, const std::vector<TensorRead>& reads, Device& device,
                          ThreadPool& pool, int64_t buffer_bytes) {
  DeviceReader reader(source, pool);
  FSDP_RETURN_IF_ERROR(reader.Open(device, std::min(buffer_bytes, BytesOf(reads))));
  absl::Status status;
  for (size_t i = 0; status.ok() && i < reads.size(); ++i) status = reader.Add(reads[i]);
  const absl::Status finished = reader.Finish();
  return status.ok() ? finished : status;
}

}  // namespace fsdp
