// SPDX-License-Identifier: Apache-2.0
//
// ModuleBuffer: state of a module that is not learned: running statistics, position tables. Optimizers do not see it
// and FSDP never shards it; state dicts hold the persistent ones. (tensor/buffer.h is memory, not this.)
#ifndef FSDP_NN_MODULE_BUFFER_H_
#define FSDP_NN_MODULE_BUFFER_H_

#include <cstdint>
#include <string>

#include "fsdp/tensor/tensor.h"

namespace fsdp {

enum class BufferPersistence : uint8_t {
  kPersistent,     // part of state dicts
  kNonPersistent,  // computed anew by whoever builds the module
};

struct ModuleBuffer {
  std::string fqn;  // fully qualified name under the root module, first one if shared; set by Module::AssignNames
  DType dtype = DType::kFloat32;  // the original one; `data` may be in another
  BufferPersistence persistence = BufferPersistence::kPersistent;
  Tensor data;
};

}  // namespace fsdp

#endif  // FSDP_NN_MODULE_BUFFER_H_
