// SPDX-License-Identifier: Apache-2.0
//
// Each rank checks its own arguments when it issues a collective, and all ranks compare their specs when they meet. The
// two checks find different mistakes. A wrong size on one rank is an error of that rank, which its peers see as "gave
// up". Sizes that are right on each rank but differ between ranks are an error of all, with the same text everywhere.
#include "fsdp/collectives/group/collective.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

bool IsReduction(CollectiveOp op) { return op == CollectiveOp::kReduceScatter || op == CollectiveOp::kAllReduce; }

std::string Elements(DType dtype, int64_t count) {
  return absl::StrCat(std::string(DTypeName(dtype)), "[", count, "]");
}

// std::less orders pointers into different allocations; the operator < need not.
bool Overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const std::less<const void*> before;
  return a_bytes > 0 && b_bytes > 0 && before(a, static_cast<const std::byte*>(b) + b_bytes) &&
         before(b, static_cast<const std::byte*>(a) + a_bytes);
}

// A tensor with its name in error messages.
struct NamedTensor {
  std::string_view name;
  const Tensor& tensor;
};

absl::Status CheckDefined(const NamedTensor& t) {
  if (!t.tensor.defined()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(t.name), " is an undefined tensor"));
  }
  return absl::OkStatus();
}

// `whole` must have `size` times the elements of `part`, be of its dtype, and overlap it only as its own slice.
absl::Status CheckWholeAndPart(const NamedTensor& whole, const NamedTensor& part, int rank, int size) {
  FSDP_RETURN_IF_ERROR(CheckDefined(whole));
  FSDP_RETURN_IF_ERROR(CheckDefined(part));
  const Tensor& w = whole.tensor;
  const Tensor& p = part.tensor;
  if (w.dtype() != p.dtype() || w.numel() != p.numel() * size) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(whole.name), " is ", Elements(w.dtype(), w.numel()),
                                                   ", wanted ", Elements(p.dtype(), p.numel() * size), ": ", size,
                                                   " x ", std::string(part.name), "'s ",
                                                   Elements(p.dtype(), p.numel())));
  }
  // The pointers are compared and not dereferenced: the memory may be on a device.
  const std::byte* const own_slice = static_cast<const std::byte*>(w.data()) + rank * p.nbytes();
  if (p.data() != own_slice && Overlap(w.data(), w.nbytes(), p.data(), p.nbytes())) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(part.name), " overlaps ", std::string(whole.name),
                                                   " without being its slice ", rank, " of ", size));
  }
  return absl::OkStatus();
}

// kAvg of integers is refused, because the quotient is not an integer in general.
absl::Status CheckReducible(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kFloat32:
    case DType::kBFloat16:
    case DType::kFloat16:
      return absl::OkStatus();
    case DType::kInt64:
    case DType::kInt32:
      if (op != ReduceOp::kAvg) {
        return absl::OkStatus();
      }
      break;
    default:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("cannot reduce ", std::string(DTypeName(dtype)), " with ",
                                                 std::string(ReduceOpName(op)),
                                                 "; float64, float32, bfloat16 and float16 take sum, avg, min and max, "
                                                 "int64 and int32 all but avg"));
}

}  // namespace

// The names of torch.distributed, which users know from its messages.
const char* CollectiveOpName(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::kAllReduce:
      return "all_reduce";
    case CollectiveOp::kBroadcast:
      return "broadcast";
    case CollectiveOp::kBarrier:
      return "barrier";
    case CollectiveOp::kAllGatherObject:
      return "gather_blobs";
    case CollectiveOp::kReplay:
      return "replay";
  }
  return "unknown";
}

std::string CollectiveId::ToString() const { return absl::StrCat(CollectiveOpName(op), " #", sequence); }

// Blobs may have any length on each rank; the other operations need equal counts.
bool CollectiveSpec::AgreesWith(const CollectiveSpec& other) const {
  return op == other.op && dtype == other.dtype && reduce_op == other.reduce_op && root == other.root &&
         (count == other.count || op == CollectiveOp::kAllGatherObject);
}

std::string CollectiveSpec::ArgumentsToString() const {
  if (op == CollectiveOp::kBarrier || op == CollectiveOp::kAllGatherObject) {
    return "";
  }
  if (op == CollectiveOp::kReplay) return absl::StrCat("of ", count, " collectives");
  const std::string prefix = IsReduction(op) ? absl::StrCat(std::string(ReduceOpName(reduce_op)), " ") : "";
  const std::string suffix = op == CollectiveOp::kBroadcast ? absl::StrCat(" from root ", root) : "";
  return absl::StrCat(prefix, Elements(dtype, count), suffix);
}

std::string CollectiveSpec::ToString() const {
  const std::string arguments = ArgumentsToString();
  return absl::StrCat(CollectiveOpName(op), arguments.empty() ? "" : " ", arguments);
}

// Every rank compares the same specs in the same order, so all report the same pair: the lowest rank that differs from
// rank 0. If only the arguments differ, the message leaves out the operation.
absl::Status CheckAgreement(absl::Span<const CollectiveSpec> specs, uint64_t sequence) {
  const CollectiveSpec& first = specs[0];
  for (size_t r = 1; r < specs.size(); ++r) {
    const CollectiveSpec& theirs = specs[r];
    if (theirs.AgreesWith(first)) continue;
    const bool same_op = theirs.op == first.op;
    return absl::FailedPreconditionError(
        absl::StrCat(same_op ? CollectiveOpName(first.op) : "collective", " #", sequence, ": rank ", r, " of ",
                     specs.size(), " has ", same_op ? theirs.ArgumentsToString() : theirs.ToString(), ", rank 0 has ",
                     same_op ? first.ArgumentsToString() : first.ToString()));
  }
  return absl::OkStatus();
}

absl::Status CheckAllGather(const Tensor& input, const Tensor& output, int rank, int size) {
  return CheckWholeAndPart({"output", output}, {"input", input}, rank, size);
}

absl::Status CheckReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, int rank, int size) {
  FSDP_RETURN_IF_ERROR(CheckWholeAndPart({"input", input}, {"output", output}, rank, size));
  return CheckReducible(input.dtype(), op);
}

absl::Status CheckAllReduce(const Tensor& t, ReduceOp op) {
  FSDP_RETURN_IF_ERROR(CheckDefined({"the tensor", t}));
  return CheckReducible(t.dtype(), op);
}

absl::Status CheckBroadcast(const Tensor& t, int root, int size) {
  FSDP_RETURN_IF_ERROR(CheckDefined({"the tensor", t}));
  if (root < 0 || root >= size) {
    return absl::InvalidArgumentError(absl::StrCat("root ", root, " is not a rank of ", size));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
