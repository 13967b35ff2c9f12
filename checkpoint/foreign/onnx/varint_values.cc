// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/onnx/varint_values.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr int64_t kReadBytes = int64_t{64} << 10;
constexpr int kMaxVarintBytes = 10;

bool IsLast(std::byte byte) { return (byte & std::byte{0x80}) == std::byte{0}; }

// True if the number fits in `size` bytes with a sign or without one.
bool Fits(uint64_t number, int size) {
  if (size == 8 || number >> (8 * size) == 0) return true;
  return static_cast<int64_t>(number) >= -(int64_t{1} << (8 * size - 1)) && static_cast<int64_t>(number) < 0;
}

}  // namespace

absl::Status VarintValues::AddRun(ProtobufCursor& cursor, const ByteRange& range) {
  Run run = {.range = range, .first = count_, .offsets = {}};
  std::vector<std::byte> block;
  bool is_start = true;  // the next byte begins a value
  int length = 0;        // of the value so far
  for (int64_t at = range.offset; at < range.end(); at += std::ssize(block)) {
    block.resize(std::min(kReadBytes, range.end() - at));
    FSDP_RETURN_IF_ERROR(cursor.Read(absl::MakeSpan(block)));
    for (size_t i = 0; i < block.size(); ++i) {
      if (is_start && (count_ - run.first) % kStride == 0) run.offsets.push_back(at + static_cast<int64_t>(i));
      length = is_start ? 1 : length + 1;
      if (length > kMaxVarintBytes) {
        return absl::DataLossError(
            absl::StrCat("the number at byte ", at + static_cast<int64_t>(i) - length + 1, " has more than 64 bits"));
      }
      is_start = IsLast(block[i]);
      count_ += is_start ? 1 : 0;
    }
  }
  if (!is_start) return absl::DataLossError(absl::StrCat("the numbers up to byte ", range.end(), " end in a number"));
  if (count_ > run.first) runs_.push_back(std::move(run));
  return absl::OkStatus();
}

void VarintValues::AddNumber(const ByteRange& range) {
  runs_.push_back({.range = range, .first = count_, .offsets = {range.offset}});
  ++count_;
}

int64_t VarintValues::memory() const {
  int64_t nbytes = 0;
  for (const Run& run : runs_) nbytes += static_cast<int64_t>(2 * sizeof(Run) + 16 * run.offsets.size());
  return nbytes;
}

absl::Status VarintValues::Read(const File& file, const Interval& interval, int unit_bytes, std::byte* out) const {
  auto run = std::upper_bound(runs_.begin(), runs_.end(), interval.begin,
                              [](int64_t value, const Run& r) { return value < r.first; });
  if (run != runs_.begin()) --run;
  for (int64_t begin = interval.begin; begin < interval.end; ++run) {
    const int64_t end = std::next(run) == runs_.end() ? count_ : std::next(run)->first;
    const Interval part = {begin, std::min(interval.end, end)};
    if (part.empty()) continue;
    FSDP_RETURN_IF_ERROR(ReadRun(file, *run, part, unit_bytes, out + (begin - interval.begin) * unit_bytes));
    begin = part.end;
  }
  return absl::OkStatus();
}

absl::Status VarintValues::ReadRun(const File& file, const Run& run, const Interval& values, int unit_bytes,
                                   std::byte* out) {
  const int64_t stride = (values.begin - run.first) / kStride;
  int64_t next = run.first + stride * kStride;  // the value that begins next
  uint64_t number = 0;
  int shift = 0;
  std::vector<std::byte> block;
  for (int64_t at = run.offsets[stride]; next < values.end; at += std::ssize(block)) {
    // A file that became shorter after it was indexed would end in a number.
    if (at >= run.range.end()) return absl::DataLossError("its numbers changed while they were read");
    block.resize(std::min(kReadBytes, run.range.end() - at));
    FSDP_RETURN_IF_ERROR(file.Read(at, absl::MakeSpan(block)));
    for (size_t i = 0; i < block.size() && next < values.end; ++i) {
      if (shift < 64) number |= static_cast<uint64_t>(block[i] & std::byte{0x7F}) << shift;
      shift += 7;
      if (!IsLast(block[i])) continue;
      if (next >= values.begin) {
        if (!Fits(number, unit_bytes)) {
          return absl::DataLossError(absl::StrCat("element ", next, " is ", static_cast<int64_t>(number),
                                                  ", which does not fit in ", unit_bytes, " bytes"));
        }
        std::memcpy(out + (next - values.begin) * unit_bytes, &number, unit_bytes);  // little-endian
      }
      ++next;
      number = 0;
      shift = 0;
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
