// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_references.h"

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_input.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_leaf.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_opcode.h"

namespace fsdp {
namespace {

using Op = PickleOpcode;

// Skips the operands of `opcode`; false if they are damaged. Opcodes without operands need nothing.
bool SkipOperands(Op opcode, PickleInput& input) {
  switch (opcode) {
    case Op::kProto:
    case Op::kBinPut:
      return input.Take(1).ok();
    case Op::kLongBinPut:
      return input.Take(4).ok();
    case Op::kFrame:
      return input.SkipFrame().ok();
    default:
      return !IsLeaf(opcode) || TakeLeaf(opcode, input).ok();
  }
}

}  // namespace

PickleReferences PickleReferences::Of(std::string_view bytes) {
  PickleReferences references;
  // A pickle writes at least one byte for each number, so it cannot number more values in order.
  references.limit_ = bytes.size();
  PickleInput input(bytes);
  while (true) {
    // Stops at the first damage: the machine stops there too, so later references are never used.
    const absl::StatusOr<uint8_t> code = input.TakeOpcode();
    const auto opcode = code.ok() ? static_cast<Op>(*code) : Op::kStop;
    if (opcode == Op::kStop) break;
    if (opcode == Op::kBinGet || opcode == Op::kLongBinGet) {
      const absl::StatusOr<uint64_t> number = input.TakeUnsigned(opcode == Op::kBinGet ? 1 : 4);
      if (!number.ok()) break;
      references.Add(*number);
    } else if (!SkipOperands(opcode, input)) {
      break;
    }
  }
  references.Count();
  return references;
}

// A number above the limit is ignored, so bits_ takes at most an eighth of the pickle's size.
void PickleReferences::Add(uint64_t number) {
  if (number >= limit_) return;
  if (number / 64 >= bits_.size()) bits_.resize(number / 64 + 1);
  bits_[number / 64] |= uint64_t{1} << (number % 64);
}

// One count for eight words: index() then needs at most seven more popcounts, and the counts a sixteenth of the bits'
// memory.
void PickleReferences::Count() {
  before_.reserve(bits_.size() / kWordsOfCount + 1);
  uint32_t count = 0;
  for (size_t i = 0; i < bits_.size(); ++i) {
    if (i % kWordsOfCount == 0) before_.push_back(count);
    count += static_cast<uint32_t>(__builtin_popcountll(bits_[i]));
  }
}

size_t PickleReferences::index(uint64_t number) const {
  const size_t word = number / 64;
  size_t before = before_[word / kWordsOfCount];
  // At most kWordsOfCount - 1 words, so the time is constant.
  for (size_t i = word / kWordsOfCount * kWordsOfCount; i < word; ++i) {
    before += static_cast<size_t>(__builtin_popcountll(bits_[i]));
  }
  const uint64_t lower = bits_[word] & ((uint64_t{1} << (number % 64)) - 1);
  return before + static_cast<size_t>(__builtin_popcountll(lower));
}

}  // namespace fsdp
