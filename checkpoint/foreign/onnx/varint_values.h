// SPDX-License-Identifier: Apache-2.0
//
// VarintValues: the elements of a tensor that are stored as varints, whose places follow from those before. The place
// of every 4096th is known, so that any interval is read without the beginning. Thread-safe once all runs are added.
#ifndef FSDP_CHECKPOINT_FOREIGN_ONNX_VARINT_VALUES_H_
#define FSDP_CHECKPOINT_FOREIGN_ONNX_VARINT_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/onnx/protobuf_cursor.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

class VarintValues {
 public:
  // Adds the varints in `range`, at whose beginning `cursor` is, and moves it to its end. kDataLoss unless it ends with
  // a varint.
  absl::Status AddRun(ProtobufCursor& cursor, const ByteRange& range);

  // Adds one varint, which is `range`.
  void AddNumber(const ByteRange& range);

  int64_t count() const { return count_; }
  int64_t memory() const;  // of the places, in bytes

  // The lowest `unit_bytes` bytes of each value of `interval`, little-endian. kDataLoss names a value that needs more
  // of them, as a number with or without a sign.
  absl::Status Read(const File& file, const Interval& interval, int unit_bytes, std::byte* out) const;

 private:
  static constexpr int64_t kStride = 4096;

  struct Run {
    ByteRange range;
    int64_t first = 0;             // value of the run
    std::vector<int64_t> offsets;  // in the file, of every kStride-th value of the run
  };

  static absl::Status ReadRun(const File& file, const Run& run, const Interval& values, int unit_bytes, std::byte* out);

  std::vector<Run> runs_;
  int64_t count_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ONNX_VARINT_VALUES_H_
