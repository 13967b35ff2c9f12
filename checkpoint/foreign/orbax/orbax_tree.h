// SPDX-License-Identifier: Apache-2.0
//
// OrbaxTree: the file _METADATA of an Orbax checkpoint: the leaves of the tree that was saved, and how they are stored.
// A leaf is the array whose name is its path joined by dots; a key with dots in it differs from a path only here. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_TREE_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_TREE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/json_view.h"

namespace fsdp {

inline constexpr char kOrbaxTreeName[] = "_METADATA";

struct OrbaxLeaf {
  enum class Kind : uint8_t {
    kArray,       // jax.Array, np.ndarray, a Python number
    kText,        // in _strings.json
    kEmpty,       // None or an empty dict, list or tuple: there is nothing to store
    kAggregated,  // in the msgpack file "checkpoint" of early versions
  };
  std::string name;  // "params.layers_0.kernel"
  Kind kind = Kind::kArray;
};

struct OrbaxTree {
  std::vector<OrbaxLeaf> leaves;
  bool use_ocdbt = false;

  // Chunks that are all fill value are stored, too: a missing one is damage. False in checkpoints of early versions,
  // which do not say.
  bool stores_every_chunk = false;
};

// kDataLoss says what is wrong with `json`.
absl::StatusOr<OrbaxTree> ParseOrbaxTree(std::string_view json);

// Parses an object as Python writes it, with NaN and infinities, which become null. `text` must outlive the result.
absl::StatusOr<JsonView> ParseJsonOfPython(std::string& text);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_TREE_H_
