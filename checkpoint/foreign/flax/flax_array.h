// SPDX-License-Identifier: Apache-2.0
//
// Arrays in files of flax.serialization: extensions of MessagePack with a second message in them.
//
//   extension 1 or 3: [[dim, ...], "float32", bytes]         3: a scalar of NumPy
//   extension 2:      [real, imaginary]                      a complex number of Python
//
// An array of more than 1 GiB is a map of its pieces: {"__msgpack_chunked_array__": true, "shape": {"0": dim, ...},
// "chunks": {"0": array of one dimension, ...}}.
#ifndef FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_ARRAY_H_
#define FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_ARRAY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/flax/msgpack_cursor.h"
#include "fsdp/checkpoint/foreign/orbax/narrow_integer.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

inline constexpr int kFlaxArray = 1;  // extensions
inline constexpr int kFlaxComplex = 2;
inline constexpr int kFlaxScalar = 3;
inline constexpr std::string_view kFlaxChunkedKey = "__msgpack_chunked_array__";

struct StoredArray {
  std::string dtype_name;
  std::optional<DType> dtype;           // nullopt: no tensor here has it (float4)
  std::optional<NarrowInteger> narrow;  // what each byte holds, if it is an integer of fewer bits
  Shape shape;
  std::vector<ByteRange> pieces;  // of the file, with the elements, row-major; whole elements in each
};

// Reads the message in an extension, skipping the elements. kDataLoss states what is not as above, or which sizes
// contradict each other.
absl::StatusOr<StoredArray> ReadStoredArray(MsgpackCursor& cursor);

// kDataLoss unless the cursor is at `end`, the end of the extension that was read.
absl::Status CheckExtensionEnd(const MsgpackCursor& cursor, int64_t end);

// The same of the map of an array in chunks, of `pairs` keys, of which kFlaxChunkedKey has been read.
absl::StatusOr<StoredArray> ReadChunkedArray(MsgpackCursor& cursor, int64_t pairs);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_ARRAY_H_
