// SPDX-License-Identifier: Apache-2.0
//
// The functions of the NCCL that this program loaded when it started.
#include "fsdp/collectives/cuda/nccl_window_functions.h"

#include <dlfcn.h>

namespace fsdp {
namespace {

template <typename Function>
void Find(const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

NcclWindowFunctions FindNcclWindowFunctions() {
  NcclWindowFunctions functions;
  Find("ncclCommWindowRegister", functions.register_window);
  Find("ncclCommWindowDeregister", functions.deregister_window);
  return functions;
}

}  // namespace fsdp
