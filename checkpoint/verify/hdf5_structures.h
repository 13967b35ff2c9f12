// SPDX-License-Identifier: Apache-2.0
//
// FindDamagedStructures: which of HDF5's structures a damaged byte lies in. One digest covers all of a file that is not
// payload, and says only that something is wrong there. But the files of a checkpoint have structures of HDF5 1.8 and
// later alone, each of which begins with a signature and has a checksum of its own, and zeros between them: whatever is
// neither a whole structure nor zero is what was damaged. A hint for a message, for bytes that are known to be damaged;
// nothing is concluded from a structure that seems whole.
#ifndef FSDP_CHECKPOINT_VERIFY_HDF5_STRUCTURES_H_
#define FSDP_CHECKPOINT_VERIFY_HDF5_STRUCTURES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "fsdp/checkpoint/format/manifest.h"

namespace fsdp {

inline constexpr char kGlobalHeapKind[] = "global heap";
inline constexpr char kObjectHeaderKind[] = "object header";

struct DamagedStructure {
  ByteRange range;  // of the file
  std::string
      kind;  // "superblock", kObjectHeaderKind, "B-tree", "fractal heap", kGlobalHeapKind, "padding", "metadata"
};

// `bytes` are those of a file from `offset` on, none of which are payload. Global heaps, which have no checksum, are
// named where nothing else is. Sorted; empty when nothing is found.
std::vector<DamagedStructure> FindDamagedStructures(absl::Span<const std::byte> bytes, int64_t offset);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_VERIFY_HDF5_STRUCTURES_H_
