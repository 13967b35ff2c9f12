// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/benchmark/raw_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/parallel_reads.h"
#include "fsdp/checkpoint/storage/system_call.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {
namespace {

// As many as a save or load has in flight: the floor must not win by a deeper queue.
constexpr int kInFlight = 4;

ByteRange BlockOf(int64_t block, size_t nbytes) {
  const int64_t begin = block * kBlockBytes;
  return {begin, std::min(kBlockBytes, static_cast<int64_t>(nbytes) - begin)};
}

}  // namespace

// Thread t writes blocks t, t + threads, ...: neighbouring blocks are in flight together, as in a save.
absl::Status RawFile::Write(absl::Span<const std::byte> bytes, int64_t nbytes) const {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, PosixFileSystem().Create(path_));
  FSDP_RETURN_IF_ERROR(file->Reserve(nbytes));
  const int64_t blocks = BlockCount(nbytes);
  const int threads = pool_.threads();
  std::vector<std::unique_ptr<WriteQueue>> queues(threads);
  FSDP_RETURN_IF_ERROR(pool_.ParallelFor(threads, [&](int64_t thread) -> absl::Status {
    queues[thread] = file->NewWriteQueue(kInFlight + 1);
    for (int64_t block = thread; block < blocks; block += threads) {
      const ByteRange range = BlockOf(block, nbytes);
      const int64_t from = range.end() <= static_cast<int64_t>(bytes.size()) ? range.offset : 0;
      FSDP_RETURN_IF_ERROR(queues[thread]->Write(range.offset, bytes.subspan(from, range.nbytes)));
    }
    return queues[thread]->Drain();
  }));
  for (const std::unique_ptr<WriteQueue>& queue : queues) FSDP_RETURN_IF_ERROR(queue->Finish());
  return file->Sync();
}

// The fastest way without direct I/O: parallel pwrite, and the kernel writes back at fsync.
absl::Status RawFile::WriteBuffered(absl::Span<const std::byte> bytes) const {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, PosixFileSystem().Create(path_));
  FSDP_RETURN_IF_ERROR(pool_.ParallelFor(BlockCount(static_cast<int64_t>(bytes.size())), [&](int64_t block) {
    const ByteRange range = BlockOf(block, bytes.size());
    return file->Write(range.offset, bytes.subspan(range.offset, range.nbytes));
  }));
  return file->Sync();
}

// Reads each block to its place without comparing digests, so the callback for an arrived block has no work.
absl::Status RawFile::Read(absl::Span<std::byte> out) const {
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, PosixFileSystem().Open(path_));
  return ReadInParallel(
      pool_, BlockCount(static_cast<int64_t>(out.size())),
      [&](int64_t block) -> absl::StatusOr<LargeRead> {
        const ByteRange range = BlockOf(block, out.size());
        return LargeRead{file, range, out.data() + range.offset};
      },
      [](int64_t, const absl::StatusOr<const std::byte*>& read) { return read.status(); });
}

absl::Status RawFile::ReadBuffered(absl::Span<std::byte> out) const {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, PosixFileSystem().Open(path_));
  const int fd = file->descriptors().cached;
  (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  return pool_.ParallelFor(BlockCount(static_cast<int64_t>(out.size())), [&](int64_t block) -> absl::Status {
    const ByteRange range = BlockOf(block, out.size());
    const auto bytes = out.subspan(range.offset, range.nbytes);
    const size_t done = TransferAll<std::byte>(
        range.offset, bytes, [fd](int64_t at, auto left) { return pread(fd, left.data(), left.size(), at); });
    return done == bytes.size() ? absl::OkStatus() : absl::DataLossError(absl::StrCat("cannot read ", path_));
  });
}

}  // namespace fsdp
