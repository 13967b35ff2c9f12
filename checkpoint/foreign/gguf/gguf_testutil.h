// SPDX-License-Identifier: Apache-2.0
//
// GgufBytes: assembles the bytes of a GGUF file, right or wrong, for tests.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_TESTUTIL_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_TESTUTIL_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fsdp {

// `size` bytes, little-endian.
inline std::string GgufNumber(uint64_t value, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

inline std::string GgufText(const std::string& text) { return GgufNumber(text.size(), 8) + text; }

// One key with its value.
inline std::string GgufKey(const std::string& key, uint32_t type, const std::string& value) {
  return absl::StrCat(GgufText(key), GgufNumber(type, 4), value);
}
inline std::string GgufU16(const std::string& key, uint16_t value) { return GgufKey(key, 2, GgufNumber(value, 2)); }
inline std::string GgufU32(const std::string& key, uint32_t value) { return GgufKey(key, 4, GgufNumber(value, 4)); }
inline std::string GgufI32(const std::string& key, int32_t value) {
  return GgufKey(key, 5, GgufNumber(static_cast<uint32_t>(value), 4));
}
inline std::string GgufString(const std::string& key, const std::string& value) {
  return GgufKey(key, 8, GgufText(value));
}

struct GgufBytes {
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // as in the file: the fastest first
    uint32_t type = 0;
    std::string elements;
    int64_t offset_error = 0;  // added to the right offset
  };
  uint32_t version = 3;
  std::vector<std::string> keys = {};
  std::vector<Tensor> tensors = {};
  size_t alignment = 32;
  int64_t count_error = 0;  // added to the number of tensors

  std::string ToString() const {
    std::string bytes = absl::StrCat("GGUF", GgufNumber(version, 4), GgufNumber(tensors.size() + count_error, 8),
                                     GgufNumber(keys.size(), 8));
    for (const std::string& key : keys) bytes += key;
    std::string elements;
    for (const Tensor& tensor : tensors) {
      bytes += GgufText(tensor.name) + GgufNumber(tensor.dims.size(), 4);
      for (const uint64_t dim : tensor.dims) bytes += GgufNumber(dim, 8);
      bytes += GgufNumber(tensor.type, 4) + GgufNumber(elements.size() + tensor.offset_error, 8);
      elements += tensor.elements;
      Pad(elements);
    }
    Pad(bytes);
    return bytes + elements;
  }

 private:
  void Pad(std::string& bytes) const {
    while (bytes.size() % alignment != 0) bytes += '\0';
  }
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_TESTUTIL_H_
