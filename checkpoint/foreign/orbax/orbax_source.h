// SPDX-License-Identifier: Apache-2.0
//
// OpenOrbaxSource: a checkpoint of Orbax (JAX, Flax) as a TensorSource: an item, a step of several items, or the newest
// step of a root (orbax_paths.h). Arrays are the model's, the optimizer's or extra values by their names
// (orbax_names.h); texts and items of JSON are extra values. Also an OCDBT database or folders of zarr arrays that
// tensorstore wrote without Orbax. Nothing is executed.
//
// Compared are CRCs of manifest and nodes, sizes, the keys with the leaves of _METADATA, chunks with the shapes of
// arrays. The elements have no checksum, so a changed byte in them is noticed only if it breaks their compression.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// kInvalidArgument, with their names, when arrays are of a dtype that no tensor here has (float4), unless
// options.skip_links leaves them out; also for an unfinished checkpoint. kDataLoss when files are missing or damaged,
// or contradict each other.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenOrbaxSource(const std::string& path,
                                                              const TensorSourceOptions& options = {});

// The directory that is read when `path` is opened: the newest step of a root, or `path`.
absl::StatusOr<std::string> ResolveOrbaxPath(const std::string& path);

// The traits of every source that this opens, and of its driver.
const FormatTraits& OrbaxTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_SOURCE_H_
