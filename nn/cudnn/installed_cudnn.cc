// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cudnn/installed_cudnn.h"

#include <stdlib.h>

#include <string_view>

namespace fsdp {
namespace {

absl::StatusOr<CudnnLibrary> Load() {
  const char* const wanted = getenv("FSDP_CUDNN");
  if (wanted != nullptr && std::string_view(wanted) == "0") return absl::NotFoundError("FSDP_CUDNN=0");
  return LoadCudnnFrom("libcudnn.so.9");
}

}  // namespace

absl::StatusOr<const CudnnLibrary*> InstalledCudnn() {
  static const auto* const loaded = new absl::StatusOr<CudnnLibrary>(Load());
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

}  // namespace fsdp
