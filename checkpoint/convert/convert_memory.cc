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
constexpr int64_t kProgramBytes = 16 * kMB;

// The minimum for payload: a block or two for each of two threads, and as much again for checking digests and
// converting dtypes.
constexpr int64_t kLeastPayloadBytes = 30 * kMB;

// Fitted from above to peaks of resident memory, with names of 40 bytes and tensors with a part on every rank:
//
//   tensors  from         to            peak, MB  estimate, MB
//   300,000  safetensors  safetensors        321           464
//   300,000  safetensors  .pt                397           464
//   300,000  safetensors  DCP                625           854
//   300,000  safetensors  FULL               538           674
//   100,000  safetensors  FULL               213           275
//   100,000  safetensors  SHARDED, 1         493           545
//   100,000  safetensors  SHARDED, 16      1,896         2,045
//   100,000  safetensors  DCP, 16          1,120         1,195
//   100,000  SHARDED, 16  SHARDED, 16      2,150         2,491
//   100,000  SHARDED, 16  .pt                478           611
//   100,000  DCP, 16      .pt                573           611
//    10,000  safetensors  SHARDED, 16        267           291
int64_t MetadataBytes(const StateDict& contents, const ConvertShape& shape) {
  const auto tensors = static_cast<int64_t>(contents.entries().size());
  // In the state dicts of source and target, two tables of names, and a header or a pickle.
  int64_t named = 0;
  for (const auto& [key, value] : contents.entries()) {
    named += 1000 + 12 * static_cast<int64_t>(key.fqn.size() + key.state.size());
  }
  const int64_t source = shape.source_ranks > 0 ? tensors * (300 + 260 * int64_t{shape.source_ranks}) : 0;
  if (shape.is_plain) return named + source;
  if (!shape.is_hdf5) return named + source + tensors * (700 + 600 * int64_t{shape.target_ranks});
  if (shape.target_ranks == 0) return named + source + tensors * 500 + std::min(tensors * 10'000, 60 * kMB);
  const int64_t cache = std::min(tensors * (15'000 + 5'000 * int64_t{shape.target_ranks}), 80 * kMB);
  return named + source + tensors * (2000 + 1000 * int64_t{shape.target_ranks}) + cache;
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
