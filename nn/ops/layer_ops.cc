// SPDX-License-Identifier: Apache-2.0
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
