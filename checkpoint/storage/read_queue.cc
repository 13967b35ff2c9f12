// SPDX-License-Identifier: Apache-2.0
//
// A read descends a ladder, and each rung continues where the previous one stopped (Read::present):
//
//   Start:   page cache  ->  io_uring, direct        for the rest, from a page boundary
//   Finish:                      short or refused?  ->  pread, direct  ->  File::Read, through the page cache
//
// So no rung has to handle errors: a failed or short transfer leaves `present` unchanged, the next rung tries the same
// bytes, and the last one, File::Read, reports the error. Direct I/O reads whole pages; the last page of a file may be
// partial, so a read is done once its range, not all its pages, is present.
#include "fsdp/checkpoint/storage/read_queue.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/cached_pages.h"
#include "fsdp/checkpoint/storage/system_call.h"

namespace fsdp {

struct ReadQueue::Ring {
  io_uring ring = {};
  bool is_open = false;
  bool takes_reads = true;  // false once a submission failed: its entry may still be in the ring, so none may follow
  int in_flight = 0;

  ~Ring() {
    if (is_open) io_uring_queue_exit(&ring);
  }
};

bool ReadQueue::Read::is_direct() const {
  return descriptors.direct >= 0 && descriptors.alignment.offset <= kPageBytes &&
         reinterpret_cast<uintptr_t>(memory) % descriptors.alignment.memory == 0 && present % kPageBytes == 0;
}

ReadQueue::ReadQueue(int depth, UringUse use) : depth_(depth) {
  if (use == UringUse::kNever) return;
  ring_ = std::make_unique<Ring>();
  ring_->is_open = io_uring_queue_init(static_cast<unsigned>(depth), &ring_->ring, 0) == 0;
  if (!ring_->is_open) ring_.reset();
}

ReadQueue::~ReadQueue() {
  while (ring_ != nullptr && ring_->in_flight > 0) AwaitOne();
}

void ReadQueue::Start(std::shared_ptr<const File> file, const ByteRange& range, std::byte* memory) {
  Check(!full(), "more reads than the queue is deep");
  Read& read = started_.emplace_back();
  read.descriptors = file->descriptors();
  read.file = std::move(file);
  read.range = range;
  read.pages = WholePages(range);
  read.memory = memory;
  if (read.descriptors.cached < 0) return;
  read.present = ReadCached(read.descriptors.cached, read.pages.offset, absl::MakeSpan(memory, read.pages.nbytes));
  if (read.is_done()) return;
  read.present = read.present / kPageBytes * kPageBytes;
  if (ring_ != nullptr && read.is_direct()) read.in_flight = Submit(read);
}

bool ReadQueue::Submit(Read& read) {
  io_uring_sqe* const entry = ring_->takes_reads ? io_uring_get_sqe(&ring_->ring) : nullptr;
  if (entry == nullptr) return false;
  io_uring_prep_read(entry, read.descriptors.direct, read.memory + read.present,
                     static_cast<unsigned>(read.pages.nbytes - read.present), read.pages.offset + read.present);
  io_uring_sqe_set_data(entry, &read);
  int submitted = 0;
  do {
    submitted = io_uring_submit(&ring_->ring);
  } while (submitted == -EINTR || submitted == -EAGAIN);
  if (submitted != 1) {
    ring_->takes_reads = false;
    return false;
  }
  ++ring_->in_flight;
  return true;
}

void ReadQueue::AwaitOne() {
  io_uring_cqe* completion = nullptr;
  int waited = 0;
  do {
    waited = io_uring_wait_cqe(&ring_->ring, &completion);
  } while (waited == -EINTR);
  Check(waited == 0, "io_uring does not give a read back");
  auto* const read = static_cast<Read*>(io_uring_cqe_get_data(completion));
  // Complete reads the missing bytes after an error or a short read.
  if (completion->res > 0) read->present += completion->res;
  read->in_flight = false;
  io_uring_cqe_seen(&ring_->ring, completion);
  --ring_->in_flight;
}

absl::Status ReadQueue::Complete(Read& read) {
  if (!read.is_done() && read.is_direct()) {
    const auto left = absl::MakeSpan(read.memory, read.pages.nbytes).subspan(read.present);
    read.present += TransferAll<std::byte>(read.pages.offset + read.present, left, [&](int64_t at, auto out) {
      return pread(read.descriptors.direct, out.data(), out.size(), at);
    });
  }
  if (read.is_done()) return absl::OkStatus();
  // Bytes of the first page before the range are not wanted, so File::Read starts at the range.
  const int64_t at = std::max(read.range.offset, read.pages.offset + read.present);
  return read.file->Read(at, absl::MakeSpan(read.memory + (at - read.pages.offset), read.range.end() - at));
}

absl::StatusOr<const std::byte*> ReadQueue::Finish() {
  Check(!empty(), "no read to finish");
  Read& read = started_.front();
  while (read.in_flight) AwaitOne();
  const absl::Status status = Complete(read);
  const std::byte* const bytes = read.memory + (read.range.offset - read.pages.offset);
  started_.pop_front();
  FSDP_RETURN_IF_ERROR(status);
  return bytes;
}

}  // namespace fsdp
