// SPDX-License-Identifier: Apache-2.0
//
// PickleBuilder: makes the values of a Pickle, and counts the memory that they take. The machine decides what to make,
// the builder how it is stored; values go by id, which is their index in the Pickle. It also knows the calls that make
// one of Python's own containers (OrderedDict, Counter, set, bytearray): those become values instead of kCalls.
#ifndef FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_BUILDER_H_
#define FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/torch/pickle/pickle.h"
#include "fsdp/checkpoint/torch/pickle/pickle_input.h"

namespace fsdp {

// Used by one machine while it parses one pickle; not thread-safe. Values are only added, so ids stay valid.
class PickleBuilder {
 public:
  // The place of each value is where `input` is; both must outlive the builder.
  PickleBuilder(Pickle& pickle, const PickleInput& input) : pickle_(pickle), input_(input) {}

  // Scalars; each call makes a new value.
  uint32_t None() { return Add(PickleKind::kNone); }
  uint32_t Bool(bool value);
  uint32_t Integer(int64_t value);
  uint32_t Float(double value);

  // A string, bytes or a big integer: `text` must be a part of the input, whose offset is stored, not a copy.
  uint32_t Text(PickleKind kind, std::string_view text);

  // A value that holds others, as Pickle::items_ describes for each kind.
  uint32_t Items(PickleKind kind, std::vector<uint32_t> items);

  // A persistent id whose id is the value `name`; Pickle::persistent() lists it.
  uint32_t Persistent(uint32_t name);

  // Adds `item` behind the items of a value that Items made. Amortized constant time.
  void Append(uint32_t container, uint32_t item);

  // The container that callee(*arguments) makes, a copy of the argument's items; nullopt for a call of anything else.
  // kDataLoss for arguments that Python's constructor would not take.
  absl::StatusOr<std::optional<uint32_t>> Container(uint32_t callee, uint32_t arguments);

  // The value behind an id, for the machine's checks of operands. References to items are valid until the next Append.
  PickleKind KindOf(uint32_t id) const { return pickle_.nodes_[id].kind; }
  const std::vector<uint32_t>& ItemsOf(uint32_t id) const { return pickle_.items(id); }
  PickleValue Value(uint32_t id) const { return {&pickle_, id}; }

  // Bytes that all values take, allocator overhead left out.
  size_t memory() const {
    return pickle_.nodes_.size() * sizeof(Pickle::Node) + item_bytes_ + is_ascii_.capacity() * kAsciiEntryBytes;
  }

 private:
  // A value without contents, placed at the current opcode.
  uint32_t Add(PickleKind kind);
  // Container for the three groups of callees that it knows.
  // An empty dict, set or bytes object.
  uint32_t Empty(PickleKind kind);
  absl::StatusOr<std::optional<uint32_t>> Bytes(PickleValue callee, PickleValue arguments);
  absl::StatusOr<uint32_t> DictOfPairs(PickleValue pairs);

  Pickle& pickle_;
  const PickleInput& input_;
  size_t item_bytes_ = 0;
  // An entry of a flat_hash_map has a byte of control.
  static constexpr size_t kAsciiEntryBytes = sizeof(std::pair<uint32_t, bool>) + 1;

  // By id of a string. Each is looked at once: a pickle can encode one long string millions of times.
  absl::flat_hash_map<uint32_t, bool> is_ascii_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_BUILDER_H_
