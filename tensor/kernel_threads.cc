// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/kernel_threads.h"

#include <omp.h>

#include <algorithm>
#include <vector>

// ThreadSanitizer looks this function up by its name. oneDNN is not instrumented, so the locks of its primitive cache,
// made on first use, look like races.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:libdnnl.so\n"; }

namespace fsdp {

void SetKernelThreads(int threads) { omp_set_num_threads(kUnderThreadSanitizer ? 1 : threads); }

int NumPieces(int threads, int64_t n, int64_t grain) {
  if (kUnderThreadSanitizer || omp_in_parallel()) threads = 1;
  return static_cast<int>(std::min<int64_t>(threads, (n + grain - 1) / grain));
}

void ParallelFor(int threads, int64_t n, int64_t grain, absl::FunctionRef<void(int piece, Interval)> body) {
  const int pieces = NumPieces(threads, n, grain);
  const int64_t grains = (n + grain - 1) / grain;
  const auto begin = [&](int piece) { return std::min(n, grains * piece / pieces * grain); };
  if (pieces == 0) return;
  if (pieces == 1) return body(0, {0, n});
#pragma omp parallel for num_threads(pieces) schedule(static, 1)
  for (int piece = 0; piece < pieces; ++piece) body(piece, {begin(piece), begin(piece + 1)});
}

absl::Status ParallelForEach(int threads, int64_t n, absl::FunctionRef<absl::Status(int piece, int64_t i)> body) {
  std::vector<absl::Status> statuses(NumPieces(threads, n, /*grain=*/1));
  ParallelFor(threads, n, /*grain=*/1, [&](int piece, Interval interval) {
    for (int64_t i = interval.begin; i < interval.end && statuses[piece].ok(); ++i) statuses[piece] = body(piece, i);
  });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace fsdp
