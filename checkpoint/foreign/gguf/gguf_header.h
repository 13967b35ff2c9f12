// SPDX-License-Identifier: Apache-2.0
//
// GgufHeader: the bytes of a GGUF file before its elements, versions 2 and 3 (which added big-endian files):
//
//   "GGUF" | version u32 | tensors u64 | keys u64 | keys: name, type, value | infos: name, dimensions, type, offset
//   zeros up to a multiple of general.alignment | elements, each tensor at a multiple of it, in the order of the infos
//
// Everything that is stated twice is compared, as ggml does: offsets with the sizes of the tensors before, and the last
// one with the size of the file.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_HEADER_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_HEADER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/gguf/ggml_type.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_value.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

inline constexpr std::string_view kGgufMagic = "GGUF";
inline constexpr uint32_t kGgufVersion = 3;    // the latest
inline constexpr int64_t kGgufAlignment = 32;  // without the key
inline constexpr int kMaxGgufDims = 4;

// Keys that describe the file and not the model.
inline constexpr char kGgufAlignmentKey[] = "general.alignment";
inline constexpr char kGgufSplitNumberKey[] = "split.no";
inline constexpr char kGgufSplitCountKey[] = "split.count";
inline constexpr char kGgufSplitTensorsKey[] = "split.tensors.count";
bool IsGgufFileKey(std::string_view key);

struct GgufEntry {
  std::string key;
  GgufValue value;
  ByteRange range;  // of key, type and value in the file
};

struct GgufTensor {
  std::string name;
  const GgmlType* type = nullptr;
  Shape shape;         // row-major: the reverse of the file's
  int64_t offset = 0;  // in the file
  int64_t nbytes = 0;
};

struct GgufHeader {
  bool is_big_endian = false;
  int64_t alignment = kGgufAlignment;
  std::vector<GgufEntry> entries;
  std::vector<GgufTensor> tensors;

  // The value of a key; null if it is absent.
  const GgufValue* Find(std::string_view key) const;
};

// Reads the header of `file`, whose alignment is `alignment` without the key. kDataLoss states the broken rule and the
// key or tensor; kInvalidArgument for a version or a type of elements that this release does not know. Memory is at
// most 4 times the header's size and 64 MiB.
absl::StatusOr<GgufHeader> ReadGgufHeader(const File& file, int64_t alignment = kGgufAlignment);

// The next multiple of `alignment`, a power of two.
inline int64_t AlignGguf(int64_t offset, int64_t alignment) { return (offset + alignment - 1) & -alignment; }

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_HEADER_H_
