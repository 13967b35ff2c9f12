// SPDX-License-Identifier: Apache-2.0
//
// PickleOpcode: the opcodes of Python's pickle machine that state dicts need, for the machine that reads them and for
// PickleWriter. The names are from Python's pickletools, which also documents each opcode's operands; letters come from
// protocols 0 and 1, values from 0x80 on from protocols 2 to 5. Every other opcode is refused.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_OPCODE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_OPCODE_H_

#include <cstdint>

namespace fsdp {

enum class PickleOpcode : uint8_t {
  // The program: its protocol, blocks to read ahead, its end (the value on top is the result).
  kProto = 0x80,
  kFrame = 0x95,
  kStop = '.',

  // The stack: MARK opens a group, which a container's opcode or POP_MARK closes.
  kMark = '(',
  kPop = '0',
  kPopMark = '1',

  // Numbers. Opcodes without BIN are followed by decimal text up to a newline; LONG1 and LONG4 by a length of one or
  // four bytes and little-endian two's complement; BINFLOAT is big-endian.
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kInt = 'I',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong = 'L',
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kFloat = 'F',
  kBinFloat = 'G',

  // Texts after a little-endian length: one byte in SHORT_, eight in ...8, otherwise four.
  kShortBinString = 'U',
  kBinString = 'T',
  kShortBinUnicode = 0x8c,
  kBinUnicode = 'X',
  kBinUnicode8 = 0x8d,
  kShortBinBytes = 'C',
  kBinBytes = 'B',
  kBinBytes8 = 0x8e,
  kByteArray8 = 0x96,

  // Containers. TUPLE and FROZENSET take the group above the last mark; plural opcodes add that group to the container
  // below the mark, singular ones add one value or one key and value.
  kEmptyTuple = ')',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTuple = 't',
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,

  // The memo: PUT and MEMOIZE number the value on top, GET pushes a reference to it.
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kBinGet = 'h',
  kLongBinGet = 'j',

  // In Python: import, call, construct, set state, look up outside the pickle. Here: recorded (pickle_machine.cc).
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kNewObj = 0x81,
  kBuild = 'b',
  kBinPersId = 'Q',
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_OPCODE_H_
