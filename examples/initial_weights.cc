// SPDX-License-Identifier: Apache-2.0
#include "examples/initial_weights.h"

#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"

namespace fsdp {
namespace {

constexpr char kPrefix[] = "transformer.";

// `state` under the names without prefix; the tensors share their memory with `state`.
StateDict WithoutPrefix(const StateDict& state) {
  StateDict renamed;
  renamed.type = state.type;
  for (const auto& [key, value] : state.entries()) {
    renamed.Set(StateKey::Model(std::string(absl::StripPrefix(key.fqn, kPrefix))), value);
  }
  return renamed;
}

}  // namespace

absl::Status LoadInitialWeights(const std::string& path, StateDict& wanted) {
  ASSIGN_OR_RETURN(const StateDict contents, DescribeCheckpoint(path));
  const bool has_prefix = contents.contains(StateKey::Model("transformer.wte.weight"));
  if (has_prefix || !contents.contains(StateKey::Model("wte.weight"))) return LoadCheckpoint(path, wanted);
  StateDict renamed = WithoutPrefix(wanted);
  return LoadCheckpoint(path, renamed);
}

}  // namespace fsdp
