// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/transport_backend.h"

#include <map>

namespace fsdp {
namespace {

// A static inside a function, because initialisers of other files use it before main.
std::map<std::string_view, TransportBackend>& Backends() {
  static auto* backends = new std::map<std::string_view, TransportBackend>();
  return *backends;
}

}  // namespace

bool RegisterTransportBackend(const TransportBackend& backend) {
  Backends()[backend.name] = backend;
  return true;
}

const TransportBackend* RegisteredTransportBackend(std::string_view name) {
  const auto found = Backends().find(name);
  return found == Backends().end() ? nullptr : &found->second;
}

std::vector<std::string> RegisteredTransportBackends() {
  std::vector<std::string> names;
  for (const auto& [name, backend] : Backends()) names.emplace_back(name);
  return names;
}

}  // namespace fsdp
