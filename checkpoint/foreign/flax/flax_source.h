// SPDX-License-Identifier: Apache-2.0
//
// OpenFlaxSource: what flax.serialization wrote (to_bytes, msgpack_serialize) as a TensorSource: a .msgpack file, or
// a directory of transformers with flax_model.msgpack or its parts. Leaves are the model's, the optimizer's or extra
// values by their names, as in Orbax (orbax_names.h); numbers and texts of Python are extra values. Elements are read
// in place. The format has no checksums.
#ifndef FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_SOURCE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The model in a directory of transformers, and the index of a model in parts.
inline constexpr char kFlaxModelName[] = "flax_model.msgpack";
inline constexpr char kFlaxIndexName[] = "flax_model.msgpack.index.json";

// kInvalidArgument, with their names, when leaves are of a dtype that no tensor here has (float4), unless
// options.skip_links leaves them out; kDataLoss when sizes or names contradict each other or the index.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenFlaxSource(const std::string& path,
                                                             const TensorSourceOptions& options = {});

// The same for one open file, whose path appears in messages: for tests and fuzzing.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenFlaxFile(std::unique_ptr<File> file,
                                                           const TensorSourceOptions& options);

// The traits of every source that this opens, and of its driver.
const FormatTraits& FlaxTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_SOURCE_H_
