// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/npz/inflated_file.h"

#include <zlib.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"

namespace fsdp {
namespace {

// Per stream, in addition to zlib's own window and tables.
constexpr int64_t kInputBytes = 64 * 1024;
constexpr int64_t kScratchBytes = 64 * 1024;
constexpr uint16_t kDeflateMethod = 8;

absl::Status Broken(const ZipEntry& entry, const std::string& what) {
  return absl::DataLossError(absl::StrCat("entry ", Quote(entry.name), ": ", what));
}

}  // namespace

// One pass over an entry, from its front. Not thread-safe.
class Inflater {
 public:
  // `entry` belongs to the InflatedFile, which outlives this.
  static absl::StatusOr<std::unique_ptr<Inflater>> Start(const File& archive, const ZipEntry& entry) {
    std::unique_ptr<Inflater> inflater(new Inflater(archive, entry));
    // A zip entry has neither zlib's header nor its checksum.
    constexpr int kRawDeflate = -MAX_WBITS;
    if (inflateInit2(&inflater->stream_, kRawDeflate) != Z_OK) {
      return absl::ResourceExhaustedError("zlib has no memory for a stream");
    }
    inflater->is_open_ = true;
    return inflater;
  }
  ~Inflater() {
    if (is_open_) inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  const ZipEntry& entry() const { return entry_; }
  int64_t position() const { return position_; }

  // Fills all of `out` with the bytes from position() on. After the entry's last byte, compares the CRC and checks that
  // no more bytes follow.
  absl::Status Read(absl::Span<std::byte> out) {
    while (!out.empty()) {
      FSDP_ASSIGN_OR_RETURN(const int64_t made, Inflate(out));
      if (made == 0) return Broken(entry_, absl::StrCat("it ends at byte ", position_, " of ", entry_.nbytes));
      crc_ = CombineCrc32(crc_, Crc32(out.first(made)), made);
      position_ += made;
      out.remove_prefix(made);
    }
    return position_ == entry_.nbytes ? CheckEnd() : absl::OkStatus();
  }

  absl::Status SkipTo(int64_t offset) {
    std::vector<std::byte> scratch(std::min(kScratchBytes, offset - position_));
    while (position_ < offset) {
      const int64_t nbytes = std::min<int64_t>(std::ssize(scratch), offset - position_);
      FSDP_RETURN_IF_ERROR(Read(absl::MakeSpan(scratch.data(), nbytes)));
    }
    return absl::OkStatus();
  }

 private:
  Inflater(const File& archive, const ZipEntry& entry) : archive_(archive), entry_(entry), input_(kInputBytes) {}

  // Inflates up to all of `out`; returns 0 at the end of the stream.
  absl::StatusOr<int64_t> Inflate(absl::Span<std::byte> out) {
    constexpr size_t kMost = size_t{1} << 30;
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    // zlib counts in 32 bits: a larger span takes several calls.
    const auto wanted = static_cast<uInt>(std::min(out.size(), kMost));
    stream_.avail_out = wanted;
    while (stream_.avail_out == wanted && !is_over_) {
      FSDP_RETURN_IF_ERROR(FillInput());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      is_over_ = result == Z_STREAM_END;
      // Without this test a truncated stream would loop: zlib waits for input that does not exist.
      const bool is_stuck = result == Z_BUF_ERROR && consumed_ == entry_.stored_bytes;
      if (is_stuck) return Broken(entry_, "its compressed bytes end too early");
      if (result != Z_OK && !is_over_ && result != Z_BUF_ERROR) {
        return Broken(entry_, absl::StrCat("its compressed bytes are damaged behind byte ", position_));
      }
    }
    return static_cast<int64_t>(wanted - stream_.avail_out);
  }

  absl::Status FillInput() {
    if (stream_.avail_in > 0 || consumed_ == entry_.stored_bytes) return absl::OkStatus();
    const int64_t nbytes = std::min(kInputBytes, entry_.stored_bytes - consumed_);
    FSDP_RETURN_IF_ERROR(
        archive_.Read(entry_.payload_offset + consumed_, absl::MakeSpan(input_.data(), static_cast<size_t>(nbytes))));
    consumed_ += nbytes;
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(nbytes);
    return absl::OkStatus();
  }

  absl::Status CheckEnd() {
    std::byte more;
    FSDP_ASSIGN_OR_RETURN(const int64_t made, Inflate(absl::MakeSpan(&more, 1)));
    if (made != 0) return Broken(entry_, absl::StrCat("it has more than the ", entry_.nbytes, " bytes that it claims"));
    if (entry_.crc == 0 || crc_ == entry_.crc) return absl::OkStatus();
    return Broken(entry_, absl::StrCat("its CRC-32 is ", absl::Hex(crc_, absl::kZeroPad8), ", expected ",
                                       absl::Hex(entry_.crc, absl::kZeroPad8)));
  }

  const File& archive_;
  const ZipEntry& entry_;
  std::vector<std::byte> input_;
  z_stream stream_ = {};
  bool is_open_ = false;
  bool is_over_ = false;  // the stream has reached its end mark
  int64_t consumed_ = 0;  // compressed bytes read so far
  int64_t position_ = 0;
  uint32_t crc_ = 0;  // of all bytes before position_
};

InflaterPool::InflaterPool() = default;
InflaterPool::~InflaterPool() = default;

std::unique_ptr<Inflater> InflaterPool::Take(const ZipEntry& entry, int64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto best = idle_.end();
  for (auto at = idle_.begin(); at != idle_.end(); ++at) {
    // An inflater only moves forward, so one behind `offset` is useless; the nearest one before it skips the fewest
    // bytes.
    if (&(*at)->entry() != &entry || (*at)->position() > offset) continue;
    if (best == idle_.end() || (*at)->position() > (*best)->position()) best = at;
  }
  if (best == idle_.end()) return nullptr;
  std::unique_ptr<Inflater> taken = std::move(*best);
  idle_.erase(best);
  return taken;
}

void InflaterPool::Put(std::unique_ptr<Inflater> inflater) {
  std::unique_ptr<Inflater> oldest;  // destroyed outside the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(inflater));
  if (idle_.size() <= kMaxIdle) return;
  oldest = std::move(idle_.front());
  idle_.pop_front();
}

void InflaterPool::Drop(const ZipEntry& entry) {
  std::list<std::unique_ptr<Inflater>> dropped;  // destroyed outside of the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = idle_.begin(); at != idle_.end();) {
    const auto next = std::next(at);
    if (&(*at)->entry() == &entry) dropped.splice(dropped.end(), idle_, at);
    at = next;
  }
}

absl::StatusOr<std::unique_ptr<InflatedFile>> InflatedFile::Open(const File& archive, ZipEntry entry,
                                                                 InflaterPool& pool) {
  if (entry.method != kDeflateMethod) {
    return absl::InvalidArgumentError(
        absl::StrCat("entry ", Quote(entry.name), " is compressed by method ", entry.method, ", expected deflate (8)"));
  }
  // Checked before a stream exists: the claimed size decides how much a reader allocates and inflates.
  if (entry.nbytes / kMaxDeflateRatio > entry.stored_bytes) {
    return Broken(entry, absl::StrCat(entry.stored_bytes, " compressed bytes cannot be the ", entry.nbytes,
                                      " bytes that it claims"));
  }
  return std::unique_ptr<InflatedFile>(new InflatedFile(archive, std::move(entry), pool));
}

absl::Status InflatedFile::Read(int64_t offset, absl::Span<std::byte> out) const {
  const auto nbytes = static_cast<int64_t>(out.size());
  if (offset < 0 || offset > entry_.nbytes || nbytes > entry_.nbytes - offset) {
    return Broken(entry_, absl::StrCat("bytes ", offset, " to ", offset + nbytes, " of ", entry_.nbytes));
  }
  if (out.empty()) return absl::OkStatus();
  std::unique_ptr<Inflater> inflater = pool_.Take(entry_, offset);
  if (inflater == nullptr) {
    FSDP_ASSIGN_OR_RETURN(inflater, Inflater::Start(archive_, entry_));
  }
  FSDP_RETURN_IF_ERROR(inflater->SkipTo(offset));
  FSDP_RETURN_IF_ERROR(inflater->Read(out));
  if (inflater->position() < entry_.nbytes) {
    // A stream that has reached the end is dropped: no later read can use it. One that failed is dropped by the returns
    // above.
    pool_.Put(std::move(inflater));
    return absl::OkStatus();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  is_verified_ = true;
  return absl::OkStatus();
}

absl::Status InflatedFile::VerifyAll() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_verified_) return absl::OkStatus();
  }
  // Reading the last byte inflates everything before it and lets CheckEnd compare the CRC.
  std::byte last;
  return entry_.nbytes == 0 ? absl::OkStatus() : Read(entry_.nbytes - 1, absl::MakeSpan(&last, 1));
}

}  // namespace fsdp
