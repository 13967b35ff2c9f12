// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/conformance/local_reference.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/run_ranks.h"

namespace fsdp {
namespace {

constexpr DType kReducible[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                DType::kFloat16, DType::kInt64,   DType::kInt32};

// Both signs and six binary orders of magnitude, so that float sums round, and another order gives other bits.
double UnevenValue(int rank, int64_t i, DType dtype) {
  const uint64_t bits = (static_cast<uint64_t>(i) * 31 + static_cast<uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15;
  const double fraction = static_cast<double>(bits >> 40) / (1 << 24) - 0.5;
  const double value = std::ldexp(fraction, static_cast<int>(bits >> 8 & 7));
  return IsFloatingPoint(dtype) ? value : std::floor(value * 1000);
}

struct Case {
  DType dtype;
  ReduceOp op;
  bool scatters;
  int64_t n;
};

// The bytes of this rank's result.
absl::StatusOr<std::string> Reduce(ProcessGroup& group, const Case& c) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group.device()->CreateStream("reference"));
  const int64_t given = c.scatters ? c.n * group.size() : c.n;
  // A pad of 1 gives the vectorised kernels an unaligned start.
  FSDP_ASSIGN_OR_RETURN(const Tensor input, NewTensor(group, Placement::kMixed, c.dtype, given, 1));
  FSDP_ASSIGN_OR_RETURN(const Tensor output, NewTensor(group, Placement::kShared, c.dtype, c.n, 1));
  Fill(group, input, [&](int64_t i) { return UnevenValue(group.rank(), i, c.dtype); });
  if (c.scatters) {
    group.ReduceScatter(input, output, c.op, *stream);
  } else {
    group.AllReduce(input, c.op, *stream);
  }
  FSDP_RETURN_IF_ERROR(stream->Synchronize());
  const Tensor& result = c.scatters ? output : input;
  return std::string(static_cast<const char*>(result.data()), static_cast<size_t>(result.nbytes()));
}

std::vector<Case> AllCases(int64_t n) {
  std::vector<Case> cases;
  for (const DType dtype : kReducible) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
      // CheckReducible refuses averages of integers.
      if (op == ReduceOp::kAvg && !IsFloatingPoint(dtype)) continue;
      cases.push_back({dtype, op, true, n});
      cases.push_back({dtype, op, false, n});
    }
  }
  return cases;
}

// The results of all cases, in their order.
absl::StatusOr<std::vector<std::string>> ReduceAll(ProcessGroup& group, const std::vector<Case>& cases) {
  std::vector<std::string> results;
  for (const Case& c : cases) {
    FSDP_ASSIGN_OR_RETURN(std::string result, Reduce(group, c));
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace

absl::Status CompareReductionsWithLocal(ProcessGroup& group, int64_t n) {
  const std::vector<Case> cases = AllCases(n);
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> found, ReduceAll(group, cases));
  std::vector<std::string> wanted;
  // Each rank runs its own group of threads, one for each rank of `group`, and keeps the result of its own rank.
  FSDP_RETURN_IF_ERROR(RunRanks(group.size(), [&](std::shared_ptr<ProcessGroup> local) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(std::vector<std::string> theirs, ReduceAll(*local, cases));
    if (local->rank() == group.rank()) wanted = std::move(theirs);
    return absl::OkStatus();
  }));
  for (size_t i = 0; i < cases.size(); ++i) {
    if (found[i] == wanted[i]) continue;
    const Case& c = cases[i];
    return absl::DataLossError(absl::StrCat(c.scatters ? "reduce_scatter " : "all_reduce ",
                                            std::string(ReduceOpName(c.op)), " of ", std::string(DTypeName(c.dtype)),
                                            "[", n, "] on rank ", group.rank(), " of ", group.size(),
                                            " differs from the result of threads"));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
