// SPDX-License-Identifier: Apache-2.0
//
// FlatPlaces: the unit and the offset in its flat parameter of each tensor of a LOCAL state. FlatDatasetPath: the names
// of the datasets that hold flat shards. Each kind of value (model, each optimizer state) has its own flat tensors.
//
//   unit "h.0"      | weight (35)         |pad| bias (7) |     of "model"; the same for "exp_avg", "exp_avg_sq"
//   rank files      | /flat/1/model/float32 | in rank 0, the rest in rank 1
//
// Pure.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_FLAT_PLACE_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_FLAT_PLACE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct FlatPlace {
  int unit = 0;        // index into the units
  int64_t offset = 0;  // of the tensor's first element in the unit's flat parameter
};

class FlatPlaces {
 public:
  explicit FlatPlaces(const std::vector<FlatUnitLayout>& units);

  // The place of the tensor `key`. Nothing for a tensor that is not part of a flat one: a buffer, an extra value, or an
  // optimizer state without dimensions, such as `step`, which belongs to a parameter but does not have its shape.
  std::optional<FlatPlace> Find(const StateKey& key, const Shape& shape) const;

 private:
  struct Parameter {
    FlatPlace place;
    int64_t numel = 0;
  };
  absl::flat_hash_map<std::string, Parameter> parameters_;
};

// "/flat/1/model/float32", "/flat/1/optim/exp_avg/float32": the dataset of unit `unit` for values of `key`'s kind.
std::string FlatDatasetPath(int unit, const StateKey& key, DType dtype);

// One unit with all model tensors of `state`, in order of dtype: the layout for a state that was never flat.
FlatUnitLayout OneFlatUnit(const StateDict& state);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_FLAT_PLACE_H_
