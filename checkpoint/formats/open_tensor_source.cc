// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/path_kind.h"
#include "fsdp/checkpoint/hdf5/hdf5_file_source.h"
#include "fsdp/checkpoint/safetensors/safetensors_source.h"
#include "fsdp/checkpoint/source/hdf5_source.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/torch/dcp/dcp_source.h"
#include "fsdp/checkpoint/torch/pt/torch_source.h"
#include "fsdp/checkpoint/verify/latest.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<TensorSource>> OpenTensorSource(const std::string& path,
                                                               const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const PathKind kind, RecognisePath(path));
  switch (kind) {
    case PathKind::kCheckpoint:
      return OpenHdf5Source(path, options);
    case PathKind::kRoot: {
      FSDP_ASSIGN_OR_RETURN(const std::string newest, LatestCheckpoint(path));
      return OpenHdf5Source(newest, options);
    }
    case PathKind::kHdf5File:
      return OpenHdf5FileSource(path);
    case PathKind::kSafetensorsFile:
    case PathKind::kHuggingFaceDirectory:
      return OpenSafetensorsSource(path);
    case PathKind::kTorchFile:
    case PathKind::kTorchDirectory:
      return OpenTorchSource(path, options);
    case PathKind::kDcpDirectory:
      return OpenDcpSource(path, options);
  }
  return absl::InternalError("not a PathKind");
}

}  // namespace fsdp
