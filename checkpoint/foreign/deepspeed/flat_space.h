// SPDX-License-Identifier: Apache-2.0
//
// FlatSpace: where the elements of parameters are in the flat tensors of ranks. ZeRO lays parameters one after another
// and cuts them in one of two ways; both are lists of runs, each a flat tensor of one file, and a parameter is an
// offset:
//
//   ZeRO 1, 2   one list: of each group, the parts of rank 0, 1, ...     |g0 r0|g0 r1|g1 r0|g1 r1|
//               a parameter is `numel` elements from its offset on
//   ZeRO 3      a list of each rank: its sub-groups' tensors             r0 |s0|s1|   r1 |s0|s1|
//               rank r has elements [r * c, (r + 1) * c) of a parameter, c = ceil(numel / ranks), at the same offset
//
// With one list both rules are the same. Nothing is stored for a parameter but its offset, so 64 ranks with thousands
// of parameters take little memory. Pure but for the reader.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_FLAT_SPACE_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_FLAT_SPACE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

// Elements of one flat tensor, consecutive in a file.
struct FlatRun {
  int64_t begin = 0;  // in its list
  int64_t numel = 0;
  int64_t byte = 0;  // in the file, of the first element
  uint32_t file = 0;
  DType dtype = DType::kFloat32;
};

// Fills `out` with the bytes from `byte` of file `file` on.
using FlatReader = std::function<absl::Status(uint32_t file, int64_t byte, absl::Span<std::byte> out)>;

class FlatSpace {
 public:
  explicit FlatSpace(int lists) : lists_(lists) {}

  // Adds a run to list `list`.
  void Add(int list, const FlatRun& run) { lists_[list].push_back(run); }

  // Call it once after the last Add and before the functions below. False if two runs of a list overlap.
  bool Finish();

  enum class Coverage : uint8_t { kNone, kPart, kWhole };

  // How much of a parameter of `numel` elements at `offset` is there. kPart also if its parts have different dtypes;
  // kWhole for a parameter without elements. Sets `dtype` for kWhole.
  Coverage Covers(int64_t offset, int64_t numel, DType* dtype) const;

  // Reads elements `interval` of that parameter to `out`. Requires kWhole. Errors of `read`.
  absl::Status Read(int64_t offset, int64_t numel, const Interval& interval, const FlatReader& read,
                    std::byte* out) const;

  // Calls `use` for each piece of elements `interval`, in their order, until it returns false: the run, null if there
  // is no such element, and the elements of that run.
  void ForEachPiece(int64_t offset, int64_t numel, const Interval& interval,
                    const std::function<bool(const FlatRun* run, const Interval& in_list)>& use) const;

 private:
  std::vector<std::vector<FlatRun>> lists_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_FLAT_SPACE_H_
