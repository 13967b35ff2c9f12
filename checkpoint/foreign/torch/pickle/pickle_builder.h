// SPDX-License-Identifier: Apache-2.0
//
// PickleBuilder: makes the values of a Pickle, and counts the memory that they take. The machine decides what to make,
// the builder how it is stored; values go by id, as Pickle has them. It also knows the calls that make one of Python's
// own containers (OrderedDict, Counter, set, bytearray): those become values instead of kCalls.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_BUILDER_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_BUILDER_H_

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_input.h"

namespace fsdp {

// Used by one machine while it parses one pickle; not thread-safe. Values are only added, so ids stay valid. The caller
// asks for memory first: no function here refuses.
class PickleBuilder {
 public:
  using Ids = std::deque<uint32_t>;  // the machine's stack

  // The place of each value is where `input` is; both must outlive the builder.
  PickleBuilder(Pickle& pickle, const PickleInput& input) : pickle_(pickle), input_(input) {}

  // A value that holds others, as Pickle::items_ describes for each kind: `items`, or those of `stack` from `first` on.
  uint32_t Items(PickleKind kind, std::initializer_list<uint32_t> items);
  uint32_t Items(PickleKind kind, const Ids& stack, size_t first);

  // A persistent id whose id is the value `name`; Pickle::persistent() lists it.
  uint32_t Persistent(uint32_t name);

  // Adds an item, or those of `stack` from `first` on, behind the items of a value with parts. Amortized constant time
  // for each. Takes up to MemoryOf(twice its new size) in addition.
  void Append(uint32_t container, uint32_t item);
  void Append(uint32_t container, const Ids& stack, size_t first);

  // The container that callee(*arguments) makes, a copy of the argument's items; nullopt for a call of anything else.
  // kDataLoss for arguments that Python's constructor would not take. Takes up to MemoryOf(CopiedItems(arguments)).
  absl::StatusOr<std::optional<uint32_t>> Container(uint32_t callee, uint32_t arguments);
  int64_t CopiedItems(uint32_t arguments) const;

  // Counts what the machine does with a value: it is pushed once more, or gets a number in the memo.
  void CountUse(uint32_t id);
  void CountNumber(uint32_t id);

  // The values from `first` on: a call, its state where it has one, and parts of theirs that nothing else refers to.
  struct Tail {
    uint32_t first = 0;
    size_t first_item = 0;  // of their items, in Pickle::items_
  };

  // nullopt unless all values from some one on are `call`, `state` and parts of the two, and nothing else refers to any
  // of them or will, by a number of the memo. `call` and `state` are on no stack and in no container. Constant time: a
  // call of more than 64 parts has none.
  std::optional<Tail> TailOf(uint32_t call, std::optional<uint32_t> state = std::nullopt) const;

  // Forgets the values of `tail`, and returns the value that stands for the object.
  uint32_t Replace(const Tail& tail, uint32_t object);

  // The value behind an id, for the machine's checks of operands.
  PickleKind KindOf(uint32_t id) const { return pickle_.KindOf(id); }
  PickleValue Value(uint32_t id) const { return {&pickle_, id}; }
  int64_t SizeOf(uint32_t container) const { return pickle_.node(container).size; }

  // Bytes that `ids` ids take, and all values together. Deques need a seventeenth more than what they hold: pointers to
  // their pieces, and what the allocator adds to each.
  static int64_t MemoryOf(int64_t ids) { return ids * static_cast<int64_t>(sizeof(uint32_t)) * 17 / 16; }
  int64_t memory() const {
    return static_cast<int64_t>(pickle_.nodes_.size() * sizeof(Pickle::Node)) * 17 / 16 +
           MemoryOf(static_cast<int64_t>(pickle_.items_.size() + pickle_.persistent_.size())) +
           static_cast<int64_t>(is_ascii_.capacity()) * kAsciiEntryBytes * 3 / 2;
  }

 private:
  // A value without items, placed at the current opcode.
  uint32_t Add(PickleKind kind);
  // Moves the items of `node` to where `count` of them fit, if they do not fit already.
  void MakeRoom(Pickle::Node& node, int64_t count);
  absl::StatusOr<std::optional<uint32_t>> Bytes(PickleValue callee, PickleValue arguments);
  absl::StatusOr<uint32_t> DictOfPairs(PickleValue pairs);
  uint32_t Copy(PickleKind kind, PickleValue from);

  Pickle::Node& NodeOf(uint32_t id) { return pickle_.nodes_[id - Pickle::kFirstNode]; }

  Pickle& pickle_;
  const PickleInput& input_;
  // An entry of a flat_hash_map has a byte of control.
  static constexpr int64_t kAsciiEntryBytes = sizeof(std::pair<uint32_t, bool>) + 1;

  // By id of a string. Each is looked at once: a pickle can encode one long string millions of times.
  absl::flat_hash_map<uint32_t, bool> is_ascii_;

  // The last time that something was appended to a container: how many nodes there were then. The container's items may
  // lie behind those of all of them.
  struct Appended {
    size_t container = 0;  // its node
    size_t nodes = 0;
  };
  void NoteAppend(uint32_t container);
  // Whether a node below `first` was appended to since the node `first` was made.
  bool OlderWasAppended(size_t first) const;

  // By container and by nodes, both rising; a container that is older than one before it in time replaces that one. Of
  // those that did not fit, the most nodes.
  absl::InlinedVector<Appended, 32> appended_;
  size_t appended_nodes_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_BUILDER_H_
