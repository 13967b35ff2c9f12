// SPDX-License-Identifier: Apache-2.0
//
// StateDict: the one value that fsdp/ and checkpoint/ share. An ordered map from a key (a section and a fully qualified
// name) to a ShardedTensor or a text. fsdp/ fills it; checkpoint/ writes it to files and reads it from them. Copies
// share the tensors' bytes. Not thread-safe.
#ifndef FSDP_TENSOR_STATE_DICT_H_
#define FSDP_TENSOR_STATE_DICT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/tensor/run_metadata.h"
#include "fsdp/tensor/sharded_tensor.h"

namespace fsdp {

// PyTorch's three kinds; the values reach the disk by name only.
enum class StateDictType : uint8_t { kFull, kLocal, kSharded };

// "full", "local", "sharded".
std::string_view StateDictTypeName(StateDictType type);
// The inverse; kInvalidArgument for any other name lists the three.
absl::StatusOr<StateDictType> ParseStateDictType(std::string_view name);

// Identifies a value. The text forms are the paths of checkpoint.h5, unescaped: "model/transformer.wte.weight",
// "optim/state/transformer.wte.weight/exp_avg", "optim/param_groups", "extra/step".
struct StateKey {
  enum class Section : uint8_t { kModel, kOptimState, kParamGroups, kExtra };

  Section section = Section::kModel;
  std::string fqn;    // parameter, buffer or extra name; empty for kParamGroups
  std::string state;  // the optimizer's state name, e.g. exp_avg; empty in other sections

  // Each section has a function, which fills the fields that the section has.
  static StateKey Model(std::string fqn);
  static StateKey OptimState(std::string fqn, std::string state);
  static StateKey ParamGroups();
  static StateKey Extra(std::string name);

  // The text form above.
  std::string ToString() const;

  bool operator==(const StateKey& other) const;
  // By section, then fqn, then state.
  bool operator<(const StateKey& other) const;
};

// Text values are UTF-8: param_groups is JSON, extras may be anything.
using StateValue = std::variant<ShardedTensor, std::string>;

// How one unit's parameters are placed in its flat parameter: by offset, perhaps with padding between them. Kept in
// checkpoints so that a LOCAL one can be made of any other.
struct FlatUnitLayout {
  struct Entry {
    std::string fqn;
    int64_t offset = 0;  // of the parameter's first element in the unsharded flat parameter
    int64_t numel = 0;
  };
  std::string name;               // the unit's module name; "" for the root
  std::vector<Entry> parameters;  // by offset
  int64_t unsharded_numel = 0;    // internal padding counted, padding for the world size not
};

// For saving it holds the values to write; for loading, the memory to read into: loading fills the shards in place.
class StateDict {
 public:
  // A key and its value.
  using Entry = std::pair<StateKey, StateValue>;

  // Adds or replaces. New keys keep the order of insertion. Amortized constant time. A value that is replaced keeps its
  // place.
  void Set(StateKey key, StateValue value);

  // Reserves memory for `count` entries in all, so that adding them does not over-allocate.
  void Reserve(size_t count);

  // Null when absent or of the other kind. Pointers live until the next Set.
  const ShardedTensor* FindTensor(const StateKey& key) const;
  const std::string* FindText(const StateKey& key) const;
  // Lookups take constant time.
  bool contains(const StateKey& key) const { return IndexOf(key).has_value(); }

  // The index of `key` in entries(), which never changes; nullopt when absent.
  std::optional<size_t> IndexOf(const StateKey& key) const;

  // The key under which this state holds the value that another state calls `key`: `key` itself or, if `key` is of a
  // parameter or its optimizer state, another name of the same shared parameter. Names are shared by this state's
  // `aliases`, which are tried first, and by `other_aliases`, the other state's. nullopt if the value is under no such
  // name.
  std::optional<StateKey> Resolve(const StateKey& key,
                                  const std::map<std::string, std::string>& other_aliases = {}) const;

  // In the order of insertion.
  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }

  // The kind of this state, as GetStateDict made it.
  StateDictType type = StateDictType::kFull;

  // Other names of a shared parameter, by alias: "lm_head.weight" -> "transformer.wte.weight".
  std::map<std::string, std::string> aliases;

  // Flat layouts, in unit order; empty if nothing is flat.
  std::vector<FlatUnitLayout> units;

  // Facts about the state that its tensors do not show, such as the config of the model (attributes.h); empty if
  // nothing is known. For saving: facts to record. Loading sets them to the recorded ones.
  RunMetadata attributes;

 private:
  // A slot of the hash table. It does not store the key: a checkpoint may have a million names, and they are most of
  // the memory of its metadata.
  struct Slot {
    uint32_t place = 0;  // in entries_, plus one; 0: a free slot
    uint32_t hash = 0;   // of the key, so that most keys of other slots are not read
  };

  // The slot that holds the place of `key`, or the free slot for it. Precondition: there are slots.
  size_t SlotOf(const StateKey& key, uint32_t hash) const;

  // Makes the number of slots, a power of two, at least 4/3 of `count`.
  void GrowSlots(size_t count);

  std::vector<Entry> entries_;
  std::vector<Slot> slots_;
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_STATE_DICT_H_
