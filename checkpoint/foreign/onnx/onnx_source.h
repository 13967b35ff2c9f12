// SPDX-License-Identifier: Apache-2.0
//
// OpenOnnxSource: the initializers of a model of ONNX as a TensorSource, a file or the directory of a model.onnx, with
// external data in files next to it. The
// wire format of protobuf is read by hand, in bounded memory (onnx_model.h). int4, uint4, int2 and uint2 are read as
// int8 and uint8; nodes are left out, with the constants in them. The format has no checksums but an optional SHA-1 of
// external files, which is not compared.
#ifndef FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The model in a directory.
inline constexpr char kOnnxModelName[] = "model.onnx";

// kInvalidArgument, with their names, when tensors are texts, sparse or float4 with an odd number in a row, unless
// options.skip_links leaves them out, and for external data outside of the directory; kNotFound names a file of
// external data that is missing, kDataLoss one that is too short, and what contradicts itself (onnx_model.h).
absl::StatusOr<std::unique_ptr<TensorSource>> OpenOnnxSource(const std::string& path,
                                                             const TensorSourceOptions& options = {});

// The same for an open file, whose path appears in messages, with external data in `directory`: for tests and fuzzing.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenOnnxFile(std::unique_ptr<File> file, const std::string& directory,
                                                           const TensorSourceOptions& options);

// The traits of every source that this opens, and of its driver.
const FormatTraits& OnnxTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_SOURCE_H_
