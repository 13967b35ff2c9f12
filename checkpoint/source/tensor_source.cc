// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/tensor_source.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/aligned_block.h"
#include "fsdp/checkpoint/storage/contents_digest.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

absl::Status ReadPiece(const TensorSource& source, const TensorRead& piece, BlockBuffers& buffers) {
  const DType stored = source.contents().FindTensor(piece.key)->dtype;
  if (stored == piece.dtype) return source.Read(piece.key, piece.interval, piece.out);
  const BlockBuffers::Lease scratch = buffers.Take();
  FSDP_RETURN_IF_ERROR(source.Read(piece.key, piece.interval, scratch.data()));
  const absl::Status status = Convert(stored, scratch.data(), piece.dtype, piece.out, piece.interval.size());
  if (status.ok()) return status;
  return Annotate(status, Describe(piece.key));
}

}  // namespace

absl::Status NameOptions(const absl::Status& status, std::string_view options) {
  if (status.ok()) return status;
  return WithMessage(
      status,
      absl::StrReplaceAll(status.message(), {{"TensorSourceOptions::", absl::StrCat(std::string(options), "::")}}));
}

absl::Status CheckElements(const StateKey& key, const Interval& interval, int64_t numel) {
  if (interval.begin <= interval.end && Interval{0, numel}.Contains(interval)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Describe(key), ": elements ", interval.ToString(), " of ", numel));
}

const SourceLayout& TensorSource::layout() const {
  static const auto* const none = new SourceLayout;
  return *none;
}

absl::StatusOr<std::string> TensorSource::Identity() const { return DescribeContents(PosixFileSystem(), files()); }

// For formats without blocks: each piece is one task of the pool. A piece whose dtype must be converted goes through a
// scratch block, which is why Pieces may not return pieces longer than kBlockBytes.
absl::Status TensorSource::ReadAll(const std::vector<TensorRead>& reads, ThreadPool& pool) const {
  std::vector<TensorRead> pieces;
  for (const TensorRead& read : reads) {
    for (const Interval& interval : Pieces(read.key, read.interval)) {
      std::byte* const out = read.out + (interval.begin - read.interval.begin) * SizeOf(read.dtype);
      pieces.push_back({read.key, interval, read.dtype, out});
    }
  }
  BlockBuffers buffers;
  return pool.ParallelFor(static_cast<int64_t>(pieces.size()),
                          [&](int64_t i) { return ReadPiece(*this, pieces[i], buffers); });
}

// Formats without blocks can be cut anywhere. A piece is one large read: smaller pieces cost more calls, larger ones
// more memory per thread.
std::vector<Interval> TensorSource::Pieces(const StateKey& key, const Interval& interval) const {
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  const ShardedTensor* tensor = contents().FindTensor(key);
  const int64_t step = kPieceBytes / (tensor == nullptr ? 1 : SizeOf(tensor->dtype));
  std::vector<Interval> pieces;
  for (int64_t begin = interval.begin; begin < interval.end; begin += step) {
    pieces.push_back({begin, std::min(interval.end, begin + step)});
  }
  return pieces;
}

absl::StatusOr<std::vector<TensorPlace>> TensorSource::Places(const StateKey&) const {
  return absl::UnimplementedError(absl::StrCat(std::string(format()), " does not reveal the places of its bytes"));
}

}  // namespace fsdp
