// SPDX-License-Identifier: Apache-2.0
//
// Arguments: decodes the front of a fuzzer's input as numbers, pointers and names that a careless caller of
// fsdp_checkpoint.h might pass. Numbers are often at a limit, since random 64 bits would always be refused.
#ifndef FSDP_CHECKPOINT_FUZZ_ARGUMENTS_H_
#define FSDP_CHECKPOINT_FUZZ_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fsdp {

class Arguments {
 public:
  explicit Arguments(std::string_view bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }

  // 0 when no bytes are left, so every input has enough arguments.
  uint8_t Byte();

  // True for most bytes, so that functions are often called with a valid first argument, and check the others.
  bool Mostly() { return Byte() % 16 != 15; }

  // Below, at or above `limit`, or at a limit of the type.
  int64_t Number(int64_t limit);
  int32_t Number32(int32_t limit);

  // Usually `size`, seldom another size; the function must not read bytes beyond the struct.
  size_t StructSize(size_t size);

 private:
  std::string_view bytes_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FUZZ_ARGUMENTS_H_
