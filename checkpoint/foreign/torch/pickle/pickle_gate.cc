// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_gate.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {

absl::Status PickleGate::Check(std::string_view module, std::string_view name, const PickleInput& input) const {
  const std::string full_name = absl::StrCat(std::string(module), ".", std::string(name));
  if (options_.is_allowed != nullptr && options_.is_allowed(full_name)) return absl::OkStatus();
  if (options_.is_inert != nullptr && options_.is_inert(full_name)) return absl::OkStatus();
  const std::string advice(options_.advice == nullptr ? "" : options_.advice(full_name));
  return input.Refused(absl::StrCat("it wants ", Quote(full_name),
                                    ", which no state dict needs: refused, and nothing was executed",
                                    advice.empty() ? "" : "; ", advice));
}

bool PickleGate::IsInert(const PickleBuilder& values, uint32_t id) const {
  if (options_.is_inert == nullptr || values.KindOf(id) != PickleKind::kCall) return false;
  return options_.is_allowed == nullptr || !options_.is_allowed(values.Value(id).callee().name());
}

}  // namespace fsdp
