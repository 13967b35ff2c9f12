// SPDX-License-Identifier: Apache-2.0
//
// max_memory bounds the resident memory of the whole process. The part that does not scale with the model's bytes is
// estimated first, from the number of tensors, the length of their names and the number of rank files; payload gets the
// rest. The estimate is a fit and not an account, because most of the memory is used by the HDF5 library and by
// node-based maps. It must err on the high side: exceeding a job's memory limit kills the job, whereas an error reports
// the limit that is needed.
#include "fsdp/checkpoint/convert/convert_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

constexpr int64_t kMB = 1000 * 1000;

// Resident memory of `ckpt convert` before it opens anything.
constexpr int64_t kProgramBytes = 13 * kMB;

// The minimum for payload: a block or two for each of two threads, and as much again for checking digests and
// converting dtypes.
constexpr int64_t kLeastPayloadBytes = 30 * kMB;

// Fitted from above to peaks of resident memory, with names of 50 bytes (including the program's own memory):
//
//   tensors  ranks  peak, to sharded  estimate    peak, from sharded  estimate
//     1,000      1             31 MB     37 MB               10 MB       15 MB
//     1,000     16             94 MB    109 MB               28 MB       35 MB
//    10,000     16            291 MB    354 MB              229 MB      241 MB
//   100,000      4            808 MB    997 MB              666 MB      742 MB
int64_t MetadataBytes(const StateDict& contents, const ConvertShape& shape) {
  const auto tensors = static_cast<int64_t>(contents.entries().size());
  int64_t named = 0;  // bytes for the tensors in the state dicts of source and target
  for (const auto& [key, value] : contents.entries()) {
    named += 1500 + 12 * static_cast<int64_t>(key.fqn.size() + key.state.size());
  }
  // Two tables of names and a header or a pickle. Measured 1.1 to 1.4 KB per tensor with names of 60 bytes: 200,000
  // tensors from a .pt took 222 MB to safetensors and 263 MB to a .pt; the estimate is 296 MB.
  if (shape.is_plain) return named * 2 / 3;
  const int64_t opening = named + tensors * shape.source_ranks * 1300;
  if (shape.target_ranks == 0) return std::max(opening, named * 3 / 2);
  const int64_t hdf5_cache = std::min(tensors * (15'000 + 5'000 * int64_t{shape.target_ranks}), 70 * kMB);
  return std::max(opening, named * 3 / 2 + hdf5_cache + tensors * shape.target_ranks * 1500);
}

std::string ParityText(const ConvertShape& shape) {
  return shape.parity_bytes > 0 ? absl::StrCat(", and parity ", shape.parity_bytes / kMB, " MB") : "";
}

}  // namespace

absl::StatusOr<int64_t> PayloadMemory(const StateDict& contents, const ConvertShape& shape, int64_t max_memory) {
  const int64_t metadata = MetadataBytes(contents, shape);
  const int64_t payload = max_memory - kProgramBytes - metadata;
  const int64_t least = std::max(kLeastPayloadBytes, shape.parity_bytes);
  if (payload >= least) return payload;
  const int64_t enough = (kProgramBytes + metadata + least) / (int64_t{1} << 20) + 1;
  return absl::ResourceExhaustedError(
      absl::StrCat("the names and places of ", contents.entries().size(), " tensors in ",
                   std::max(1, shape.target_ranks), " files take about ", metadata / kMB, " MB", ParityText(shape),
                   ", too much for ConvertOptions::max_memory=", max_memory >> 20, "MiB; ", enough, "MiB would do"));
}

}  // namespace fsdp
