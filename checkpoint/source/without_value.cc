// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/without_value.h"

namespace fsdp {

StateDict WithoutValue(const StateKey& key, const StateDict& state) {
  StateDict rest;
  rest.Reserve(state.entries().size());
  for (const auto& [kept, value] : state.entries()) {
    if (!(kept == key)) rest.Set(kept, value);
  }
  rest.type = state.type;
  rest.aliases = state.aliases;
  rest.units = state.units;
  rest.attributes = state.attributes;
  return rest;
}

}  // namespace fsdp
