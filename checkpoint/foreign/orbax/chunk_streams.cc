// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/chunk_streams.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

// The decoder of one chunk, at a position. Input is read in blocks of kInputBytes.
class ChunkStream {
 public:
  ChunkStream(const ChunkNumber& number, const ValuePlace& place, int64_t nbytes)
      : number_(number), place_(place), nbytes_(nbytes) {}
  virtual ~ChunkStream() = default;

  const ChunkNumber& number() const { return number_; }
  size_t nbytes() const { return input_.capacity() + DecoderBytes(); }  // of memory
  int64_t position() const { return position_; }

  // `offset` is not before the position.
  absl::Status Read(const KeyValues& values, int64_t offset, absl::Span<std::byte> out) {
    std::vector<std::byte> skipped;
    while (position_ < offset) {
      skipped.resize(std::min<int64_t>(offset - position_, kSkipBytes));
      FSDP_RETURN_IF_ERROR(Fill(values, absl::MakeSpan(skipped)));
    }
    FSDP_RETURN_IF_ERROR(Fill(values, out));
    return position_ == nbytes_ ? CheckEnd(values) : absl::OkStatus();
  }

 protected:
  struct Step {
    size_t used = 0;  // bytes of `in`
    size_t made = 0;  // bytes of `out`
    bool is_end = false;
  };

  virtual size_t DecoderBytes() const = 0;

  // Decodes some bytes of `in` to `out`.
  virtual absl::StatusOr<Step> Decode(absl::Span<const std::byte> in, absl::Span<std::byte> out) = 0;

 private:
  static constexpr int64_t kInputBytes = int64_t{1} << 20;
  static constexpr int64_t kSkipBytes = int64_t{256} << 10;

  absl::Status Fill(const KeyValues& values, absl::Span<std::byte> out) {
    while (!out.empty()) {
      FSDP_ASSIGN_OR_RETURN(const Step step, DecodeNext(values, out));
      out.remove_prefix(step.made);
      position_ += static_cast<int64_t>(step.made);
      if (step.used == 0 && step.made == 0) {
        return absl::DataLossError(
            absl::StrCat("its compressed bytes end after ", position_, " of ", nbytes_, " bytes of elements"));
      }
    }
    return absl::OkStatus();
  }

  // All bytes were made; what is left must be the end of the stream and nothing more.
  absl::Status CheckEnd(const KeyValues& values) {
    std::byte beyond = {};
    while (!is_end_ || used_ < input_.size() || read_ < place_.nbytes) {
      FSDP_ASSIGN_OR_RETURN(const Step step, DecodeNext(values, absl::MakeSpan(&beyond, 1)));
      if (step.made != 0) return absl::DataLossError(absl::StrCat("it has more than ", nbytes_, " bytes of elements"));
      if (step.used == 0) return absl::DataLossError("its compressed bytes are truncated");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Step> DecodeNext(const KeyValues& values, absl::Span<std::byte> out) {
    if (used_ == input_.size() && read_ < place_.nbytes) {
      input_.resize(std::min(kInputBytes, place_.nbytes - read_));
      FSDP_RETURN_IF_ERROR(values.Read(place_, read_, absl::MakeSpan(input_)));
      read_ += static_cast<int64_t>(input_.size());
      used_ = 0;
    }
    FSDP_ASSIGN_OR_RETURN(const Step step, Decode(absl::MakeConstSpan(input_).subspan(used_), out));
    used_ += step.used;
    is_end_ = step.is_end;
    return step;
  }

  const ChunkNumber number_;
  const ValuePlace place_;
  const int64_t nbytes_;  // of elements
  int64_t position_ = 0;
  int64_t read_ = 0;  // stored bytes, into input_ so far
  std::vector<std::byte> input_;
  size_t used_ = 0;  // bytes of input_
  bool is_end_ = false;
};

namespace {

class ZstdChunkStream final : public ChunkStream {
 public:
  using ChunkStream::ChunkStream;
  ~ZstdChunkStream() override { ZSTD_freeDStream(stream_); }

 protected:
  // Mostly the window, whose size the frame states.
  size_t DecoderBytes() const override { return ZSTD_sizeof_DStream(stream_); }

  absl::StatusOr<Step> Decode(absl::Span<const std::byte> in, absl::Span<std::byte> out) override {
    if (stream_ == nullptr) stream_ = ZSTD_createDStream();
    if (stream_ == nullptr) return absl::ResourceExhaustedError("no memory for a stream of zstd");
    ZSTD_inBuffer from = {in.data(), in.size(), 0};
    ZSTD_outBuffer to = {out.data(), out.size(), 0};
    const size_t hint = ZSTD_decompressStream(stream_, &to, &from);
    if (ZSTD_isError(hint) == 0) return Step{from.pos, to.pos, hint == 0};
    return absl::DataLossError(absl::StrCat("its zstd frame cannot be read: ", ZSTD_getErrorName(hint)));
  }

 private:
  ZSTD_DStream* stream_ = nullptr;
};

class ZlibChunkStream final : public ChunkStream {
 public:
  using ChunkStream::ChunkStream;
  ~ZlibChunkStream() override {
    if (is_open_) inflateEnd(&stream_);
  }

 protected:
  size_t DecoderBytes() const override { return size_t{48} << 10; }

  absl::StatusOr<Step> Decode(absl::Span<const std::byte> in, absl::Span<std::byte> out) override {
    constexpr int kZlibOrGzip = 32 + MAX_WBITS;
    if (!is_open_ && inflateInit2(&stream_, kZlibOrGzip) != Z_OK) {
      return absl::ResourceExhaustedError("no memory for a stream of zlib");
    }
    is_open_ = true;
    // Bytes after the end are not decoded, so the caller finds them.
    if (is_end_) return Step{0, 0, true};
    const size_t room = std::min<size_t>(out.size(), std::numeric_limits<uInt>::max());
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(room);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      return absl::DataLossError("its zlib stream is damaged");
    }
    is_end_ = result == Z_STREAM_END;
    return Step{in.size() - stream_.avail_in, room - stream_.avail_out, is_end_};
  }

 private:
  z_stream stream_ = {};
  bool is_open_ = false;
  bool is_end_ = false;
};

}  // namespace

// A CRC covers the whole chunk, so it can only be compared when all of it is there; blosc's blocks are in one buffer.
bool CanStream(const ChunkCodec& codec) {
  const bool is_stream = codec.compressor == Compressor::kZstd || codec.compressor == Compressor::kZlib;
  return is_stream && !codec.crc_of_elements && !codec.crc_of_stored;
}

ChunkStreams::ChunkStreams() = default;
ChunkStreams::~ChunkStreams() = default;

absl::Status ChunkStreams::Read(const ChunkNumber& number, Compressor compressor, const KeyValues& values,
                                const ValuePlace& place, int64_t nbytes, int64_t offset, absl::Span<std::byte> out) {
  std::unique_ptr<ChunkStream> stream = Take(number, offset);
  if (stream == nullptr && compressor == Compressor::kZstd) {
    stream = std::make_unique<ZstdChunkStream>(number, place, nbytes);
  } else if (stream == nullptr) {
    stream = std::make_unique<ZlibChunkStream>(number, place, nbytes);
  }
  // A stream with an error is not used again.
  FSDP_RETURN_IF_ERROR(stream->Read(values, offset, out));
  if (stream->position() < nbytes) Put(std::move(stream));
  return absl::OkStatus();
}

// The idle stream of this chunk that is nearest before `offset`: it has the least to skip. Streams cannot go back.
std::unique_ptr<ChunkStream> ChunkStreams::Take(const ChunkNumber& number, int64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto nearest = idle_.end();
  for (auto at = idle_.begin(); at != idle_.end(); ++at) {
    if ((*at)->number() != number || (*at)->position() > offset) continue;
    if (nearest == idle_.end() || (*at)->position() > (*nearest)->position()) nearest = at;
  }
  if (nearest == idle_.end()) return nullptr;
  std::unique_ptr<ChunkStream> stream = std::move(*nearest);
  idle_nbytes_ -= stream->nbytes();
  idle_.erase(nearest);
  return stream;
}

// The oldest are closed, if all together have too much memory; the newest always stays.
void ChunkStreams::Put(std::unique_ptr<ChunkStream> stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_nbytes_ += stream->nbytes();
  idle_.push_back(std::move(stream));
  while (idle_nbytes_ > kMaxIdleBytes && idle_.size() > 1) {
    idle_nbytes_ -= idle_.front()->nbytes();
    idle_.pop_front();
  }
}

}  // namespace fsdp
