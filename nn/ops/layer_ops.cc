// SPDX-License-Identifier: Apache-2.0
//
// The registry. A library of kernels is linked with alwayslink, so its static initialisers run before main and register
// it; nothing in the program names it. Writes thus happen on one thread before main, and reads after, which needs no
// lock.
#include "fsdp/nn/ops/layer_ops.h"

#include <map>

namespace fsdp {
namespace {

// A function-local static, because other static initialisers fill it before this file's own would run.
std::map<DeviceType, LayerOpsFactory>& Registry() {
  static auto* const registry = new std::map<DeviceType, LayerOpsFactory>;
  return *registry;
}

}  // namespace

bool RegisterLayerOps(DeviceType type, LayerOpsFactory create) {
  Registry()[type] = create;
  return true;
}

LayerOpsFactory RegisteredLayerOps(DeviceType type) {
  const auto found = Registry().find(type);
  return found == Registry().end() ? nullptr : found->second;
}

}  // namespace fsdp
