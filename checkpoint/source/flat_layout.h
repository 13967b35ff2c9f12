// SPDX-License-Identifier: Apache-2.0
//
// FlatLayout: the offsets of a model's parameters in the flat parameters of FSDP1. A unit's flat parameter is the
// concatenation of its parameters in the model's order, without the parameters of units inside it; with use_orig_params
// each begins at a multiple of 16 bytes. Padding for the world size follows. Files of torch do not record this layout:
// it follows from the names and shapes of the parameters, in order, and from the list of units. Pure.
#ifndef FSDP_CHECKPOINT_SOURCE_FLAT_LAYOUT_H_
#define FSDP_CHECKPOINT_SOURCE_FLAT_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// The contents of the file that --flat_layout names: {"parameters": [{"name": "embed.weight", "shape": [13, 6]}, ...],
// "units": ["", "h.0"]}
struct FlatLayout {
  struct Parameter {
    std::string fqn;
    Shape shape;
  };
  std::vector<Parameter> parameters;  // in the model's order
  std::vector<std::string> units;     // module names, the root's is ""; empty: found from names or sizes
};

// kInvalidArgument describes the error in the JSON.
absl::StatusOr<FlatLayout> ParseFlatLayout(const std::string& json);

// The same for a file; nothing if `path` is empty.
absl::StatusOr<std::optional<FlatLayout>> ReadFlatLayout(const std::string& path);

// One flat parameter.
struct FlatUnit {
  struct Part {
    std::string fqn;
    Shape shape;
    int64_t offset = 0;  // of its first element, once it is placed
  };
  std::string name;
  std::vector<Part> parts;
};

// Puts each parameter into the innermost of `units`. kInvalidArgument for a parameter outside of all units, and for a
// unit without parameters.
absl::StatusOr<std::vector<FlatUnit>> DivideIntoUnits(const std::vector<FlatLayout::Parameter>& parameters,
                                                      const std::vector<std::string>& units);

// Places the parts one after the other in a flat parameter of `numel` elements, including padding for `world_size`
// ranks if there is any. kInvalidArgument when they do not add up to `numel`.
absl::Status PlacePacked(int64_t numel, int world_size, FlatUnit& unit);

// The same for a flat parameter that may come from use_orig_params. kInvalidArgument also when the parts add up to
// `numel` both with and without alignment.
absl::Status PlaceParts(int64_t numel, int world_size, FlatUnit& unit);

// "h.0" of "_fsdp_wrapped_module.h.0._fsdp_wrapped_module._flat_param"; CHECK-fails for any other name.
std::string UnitOfFlatName(const std::string& name);

// True for names that end in "_flat_param".
bool IsFlatName(const std::string& name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_FLAT_LAYOUT_H_
