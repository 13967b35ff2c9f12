// SPDX-License-Identifier: Apache-2.0
#include "examples/initial_weights.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"

namespace fsdp {
namespace {

// `state` under the names without prefix; the tensors share their memory with `state`.
StateDict WithoutPrefix(const StateDict& state, std::string_view prefix) {
  StateDict renamed;
  renamed.type = state.type;
  for (const auto& [key, value] : state.entries()) {
    renamed.Set(StateKey::Model(std::string(absl::StripPrefix(key.fqn, std::string(prefix)))), value);
  }
  return renamed;
}

bool AnyHasPrefix(const StateDict& state, std::string_view prefix) {
  const auto& entries = state.entries();
  return std::any_of(entries.begin(), entries.end(),
                     [prefix](const auto& entry) { return absl::StartsWith(entry.first.fqn, std::string(prefix)); });
}

}  // namespace

absl::Status LoadInitialWeights(const std::string& path, std::string_view base_prefix, StateDict& wanted,
                                Device* device) {
  LoadOptions options;
  options.device = device;
  ASSIGN_OR_RETURN(const StateDict contents, DescribeCheckpoint(path, /*model_only=*/true));
  if (AnyHasPrefix(contents, base_prefix)) return LoadCheckpoint(path, wanted, options);
  StateDict renamed = WithoutPrefix(wanted, base_prefix);
  const bool has_names = std::any_of(renamed.entries().begin(), renamed.entries().end(),
                                     [&](const auto& entry) { return contents.contains(entry.first); });
  return LoadCheckpoint(path, has_names ? renamed : wanted, options);  // an error names what a stranger's file lacks
}

}  // namespace fsdp
