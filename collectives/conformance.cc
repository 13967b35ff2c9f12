// SPDX-License-Identifier: Apache-2.0
#include "collectives/conformance.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/run_ranks.h"
#include "tensor/convert.h"

namespace fsdp {

absl::Status GroupUnderTest::Run(const RankMain& rank_main, absl::Duration timeout) const {
  if (backend == "local") {
    return RunRanks(size, rank_main, timeout);
  }
  return absl::UnimplementedError(absl::StrCat("no backend \"", backend, "\""));
}

std::vector<GroupUnderTest> GroupsUnderTest() { return GroupsUnderTest({1, 2, 3, 4, 7}); }

std::vector<GroupUnderTest> GroupsUnderTest(const std::vector<int>& sizes) {
  std::vector<GroupUnderTest> groups;
  for (const char* backend : {"local"}) {
    for (const int size : sizes) {
      groups.push_back({backend, size});
    }
  }
  return groups;
}

std::string NameOf(const GroupUnderTest& group) { return absl::StrCat(group.backend, "_", group.size); }

absl::StatusOr<Tensor> NewTensor(ProcessGroup& group, Placement placement, DType dtype, int64_t numel, int64_t pad) {
  const bool shared = placement == Placement::kShared || (placement == Placement::kMixed && group.rank() % 2 == 0);
  const int64_t nbytes = (numel + pad) * SizeOf(dtype);
  ASSIGN_OR_RETURN(const Buffer buffer, shared ? group.Allocate(nbytes) : group.device()->Allocate(nbytes));
  return Tensor(buffer.Slice(pad * SizeOf(dtype), numel * SizeOf(dtype)), dtype, Shape({numel}));
}

void Fill(const Tensor& t, const ElementFunction& value) {
  std::vector<double> values(static_cast<size_t>(t.numel()));
  for (int64_t i = 0; i < t.numel(); ++i) {
    values[i] = value(i);
  }
  const absl::Status status = Convert(DType::kFloat64, values.data(), t.dtype(), t.data(), t.numel());
  Check(status.ok(), "test values fit their dtype");
}

absl::Status ExpectElements(const Tensor& t, const ElementFunction& expected) {
  const size_t n = static_cast<size_t>(t.numel());
  std::vector<std::byte> wanted_bytes(n * SizeOf(t.dtype()));
  const Tensor wanted(Buffer::Unowned(wanted_bytes.data(), wanted_bytes.size()), t.dtype(), t.shape());
  Fill(wanted, expected);
  std::vector<double> want(n);
  std::vector<double> got(n);
  RETURN_IF_ERROR(Convert(t.dtype(), wanted.data(), DType::kFloat64, want.data(), t.numel()));
  RETURN_IF_ERROR(Convert(t.dtype(), t.data(), DType::kFloat64, got.data(), t.numel()));
  for (size_t i = 0; i < n; ++i) {
    if (got[i] != want[i]) {
      return absl::DataLossError(absl::StrCat("element ", i, " of ", n, " (", std::string(DTypeName(t.dtype())),
                                              ") is ", got[i], ", wanted ", want[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp
