// SPDX-License-Identifier: Apache-2.0
//
// PickleReferences: the numbers of the memo that a pickle reads. Python numbers every container, call and text, and
// reads few of them again. With this known before the pickle is parsed, the memo holds only values that are read again,
// and a value whose number is never read can be replaced by something smaller (PickleObjects).
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_REFERENCES_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_REFERENCES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fsdp {

// Immutable after Of.
class PickleReferences {
 public:
  // Reads the opcodes of `bytes` up to STOP or to the first damaged one, which also ends parsing. Linear time; one bit
  // of memory for each number, at most bytes.size() / 8 bytes in total and as much again temporarily.
  static PickleReferences Of(std::string_view bytes);

  // Nothing is known about larger numbers: the pickle is too short to count that far.
  uint64_t limit() const { return limit_; }

  // Whether the pickle reads `number`, which is below limit().
  bool contains(uint64_t number) const {
    return number / 64 < bits_.size() && (bits_[number / 64] >> (number % 64) & 1) != 0;
  }

  // The rank of `number` among the numbers that are read. Precondition: contains(number). Constant time.
  size_t index(uint64_t number) const;

  // Bytes of memory.
  int64_t memory() const {
    return static_cast<int64_t>(bits_.capacity() * sizeof(uint64_t) + before_.capacity() * sizeof(uint32_t));
  }

 private:
  static constexpr size_t kWordsOfCount = 8;

  void Add(uint64_t number);
  void Count();

  uint64_t limit_ = 0;
  std::vector<uint64_t> bits_;    // by number
  std::vector<uint32_t> before_;  // how many bits are set before each kWordsOfCount words
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_REFERENCES_H_
