// SPDX-License-Identifier: Apache-2.0
#include "collectives/conformance.h"

#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/host_process_group.h"
#include "collectives/run_ranks.h"
#include "collectives/shm_fabric.h"
#include "tensor/convert.h"

namespace fsdp {

absl::Status GroupUnderTest::Run(const RankMain& rank_main, absl::Duration timeout) const {
  if (backend == "local") {
    return RunRanks(size, rank_main, timeout);
  }
  // Ranks of shm are threads here; they meet through a local group, as processes do through the store.
  return RunRanks(size, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric,
                     CreateShmFabric(meeting->rank(), size, meeting->device(),
                                     [&](std::string_view blob) { return meeting->GatherBlobs(blob); }));
    const auto group = std::make_shared<HostProcessGroup>(std::move(fabric), timeout);
    const absl::Status status = rank_main(group);
    if (!status.ok()) {
      group->Abort(status);
    }
    return status;
  });
}

std::vector<GroupUnderTest> GroupsUnderTest() { return GroupsUnderTest({1, 2, 3, 4, 7}); }

std::vector<GroupUnderTest> GroupsUnderTest(const std::vector<int>& sizes) {
  std::vector<GroupUnderTest> groups;
  for (const char* backend : {"local", "shm"}) {
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

void SetElements(const Tensor& t, const std::vector<double>& values) {
  const absl::Status status = Convert(DType::kFloat64, values.data(), t.dtype(), t.data(), t.numel());
  Check(status.ok(), "test values fit their dtype");
}

absl::Status CompareElements(const Tensor& t, const std::vector<double>& values) {
  std::vector<std::byte> bytes(static_cast<size_t>(t.nbytes()));
  const Tensor wanted(Buffer::Unowned(bytes.data(), t.nbytes()), t.dtype(), t.shape());
  SetElements(wanted, values);
  if (bytes.empty() || std::memcmp(t.data(), bytes.data(), bytes.size()) == 0) {
    return absl::OkStatus();
  }
  const int64_t width = SizeOf(t.dtype());
  int64_t i = 0;
  while (std::memcmp(static_cast<const std::byte*>(t.data()) + i * width, bytes.data() + i * width, width) == 0) {
    ++i;
  }
  double got = 0;
  RETURN_IF_ERROR(Convert(t.dtype(), static_cast<const std::byte*>(t.data()) + i * width, DType::kFloat64, &got, 1));
  return absl::DataLossError(absl::StrCat("element ", i, " of ", t.numel(), " (", std::string(DTypeName(t.dtype())),
                                          ") is ", got, ", wanted ", values[i]));
}

}  // namespace fsdp
