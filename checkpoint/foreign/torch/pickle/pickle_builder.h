// SPDX-License-Identifier: Apache-2.0
//
// PickleBuilder: creates the values of a Pickle, and counts the memory that they take. The machine decides which value
// to create, the builder how to store it; values are passed by id, as in Pickle. It also knows the calls that create
// Python's own containers (OrderedDict, Counter, set, bytearray): those become values instead of kCalls.
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

// Used by one machine while it parses one pickle; not thread-safe. Values are only added, except by Replace, so ids
// stay valid. The caller reserves memory first: no function here refuses.
class PickleBuilder {
 public:
  using Ids = std::deque<uint32_t>;  // the machine's stack

  // The place of each value is the current position of `input`; both must outlive the builder.
  PickleBuilder(Pickle& pickle, const PickleInput& input) : pickle_(pickle), input_(input) {}

  // A value that holds others, as Pickle::items_ describes for each kind: `items`, or the values of `stack` from
  // `first` on.
  uint32_t Items(PickleKind kind, std::initializer_list<uint32_t> items);
  uint32_t Items(PickleKind kind, const Ids& stack, size_t first);

  // A persistent id whose id is the value `name`; Pickle::persistent() lists it.
  uint32_t Persistent(uint32_t name);

  // Appends an item, or the values of `stack` from `first` on, to the items of a value with parts. Amortized constant
  // time for each. Takes up to MemoryOf(twice its new size) in addition.
  void Append(uint32_t container, uint32_t item);
  void Append(uint32_t container, const Ids& stack, size_t first);

  // The container, or the bytes, that callee(*arguments) creates, a copy of the argument's items; nullopt for any other
  // call.
  // kDataLoss for arguments that Python's constructor would refuse. Takes up to MemoryOf(CopiedItems(arguments)).
  absl::StatusOr<std::optional<uint32_t>> Container(uint32_t callee, uint32_t arguments);
  int64_t CopiedItems(uint32_t arguments) const;

  // Counts the machine's uses of a value: it is pushed once more, or gets a number in the memo.
  void CountUse(uint32_t id);
  void CountNumber(uint32_t id);

  // The values from `first` on: a call, its state if there is one, and their parts that have no other reference.
  struct Tail {
    uint32_t first = 0;
    size_t first_item = 0;  // the first of their items in Pickle::items_
  };

  // nullopt unless the last values are exactly `call`, `state` and their parts, and nothing else refers to any of them
  // now or, through the memo, later. `call` and `state` are on no stack and in no container. Constant time: nullopt for
  // a call of more than 64 parts.
  std::optional<Tail> TailOf(uint32_t call, std::optional<uint32_t> state = std::nullopt) const;

  // Forgets the values of `tail`, and returns the id that represents the object.
  uint32_t Replace(const Tail& tail, uint32_t object);

  // The value with an id, for the machine's checks of operands.
  PickleKind KindOf(uint32_t id) const { return pickle_.KindOf(id); }
  PickleValue Value(uint32_t id) const { return {&pickle_, id}; }
  int64_t SizeOf(uint32_t container) const { return pickle_.node(container).size; }

  // Bytes that `ids` ids take, and that all values together take. Deques need a seventeenth more than their contents:
  // pointers to their pieces, and the allocator's overhead for each piece.
  static int64_t MemoryOf(int64_t ids) { return ids * static_cast<int64_t>(sizeof(uint32_t)) * 17 / 16; }
  int64_t memory() const {
    return static_cast<int64_t>(pickle_.nodes_.size() * sizeof(Pickle::Node)) * 17 / 16 +
           MemoryOf(static_cast<int64_t>(pickle_.items_.size() + pickle_.persistent_.size())) +
           static_cast<int64_t>(is_ascii_.capacity()) * kAsciiEntryBytes * 3 / 2;
  }

 private:
  // A value without items, placed at the current opcode.
  uint32_t Add(PickleKind kind);
  // Moves the items of `node` to a place for `count` items, unless they already fit.
  void MakeRoom(Pickle::Node& node, int64_t count);
  uint32_t AddDict(PickleDict type);
  absl::StatusOr<uint32_t> Dict(PickleDict type, PickleValue callee, PickleValue arguments);
  absl::StatusOr<uint32_t> Set(PickleKind kind, PickleValue callee, PickleValue arguments);
  absl::StatusOr<std::optional<uint32_t>> Encoded(PickleValue callee, PickleValue arguments);
  uint32_t Copy(PickleKind kind, PickleValue from);

  Pickle::Node& NodeOf(uint32_t id) { return pickle_.nodes_[id - Pickle::kFirstNode]; }

  Pickle& pickle_;
  const PickleInput& input_;
  // Including the control byte of an entry of a flat_hash_map.
  static constexpr int64_t kAsciiEntryBytes = sizeof(std::pair<uint32_t, bool>) + 1;

  // By id of a string. Each string is examined once: a pickle can encode one long string millions of times.
  absl::flat_hash_map<uint32_t, bool> is_ascii_;

  // The last append to a container: how many nodes existed then. The container's items may come after the items of all
  // these nodes.
  struct Appended {
    size_t container = 0;  // its node
    size_t nodes = 0;
  };
  void RecordAppend(uint32_t container);
  // Whether a node below `first` was appended to since the node `first` was created.
  bool OlderWasAppended(size_t first) const;

  // Sorted by container and by nodes, both rising: an append to a container removes the entries of younger containers.
  // appended_nodes_ is the largest `nodes` of the entries that did not fit.
  absl::InlinedVector<Appended, 32> appended_;
  size_t appended_nodes_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_BUILDER_H_
