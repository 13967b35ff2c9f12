// SPDX-License-Identifier: Apache-2.0
//
// Values are compared as bits first, so that NaN and the sign of zero count; the tolerance applies only to other
// values.
#include "fsdp/collectives/conformance/conformance.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {

absl::Status GroupUnderTest::Run(const RankMain& rank_main, absl::Duration timeout) const {
  return RunOnBackend(*this, rank_main, timeout);
}

// 1 has no peers; 2 and 4 are powers of two; 3 and 7 leave slices of unequal size.
std::vector<GroupUnderTest> GroupsUnderTest() { return GroupsUnderTest({1, 2, 3, 4, 7}); }

std::vector<GroupUnderTest> GroupsUnderTest(const std::vector<int>& sizes) {
  std::vector<GroupUnderTest> groups;
  for (const std::string& backend : BackendsUnderTest()) {
    for (const int size : sizes) {
      groups.push_back({backend, size});
    }
  }
  return groups;
}

std::string NameOf(const GroupUnderTest& group) { return absl::StrCat(group.backend, "_", group.size); }

// kMixed lets one collective run on ranks that publish their memory and on ranks that go through slots.
absl::StatusOr<Tensor> NewTensor(ProcessGroup& group, Placement placement, DType dtype, int64_t numel, int64_t pad) {
  const bool together = dynamic_cast<const AllocatesTogether*>(&group) != nullptr;
  const bool mixed = placement == Placement::kMixed && !together;
  const bool shared = placement == Placement::kShared || (mixed && group.rank() % 2 == 0);
  const int64_t nbytes = (numel + pad) * SizeOf(dtype);
  FSDP_ASSIGN_OR_RETURN(const Buffer buffer, shared ? group.Allocate(nbytes) : group.device()->Allocate(nbytes));
  return Tensor(buffer.Slice(pad * SizeOf(dtype), numel * SizeOf(dtype)), dtype, Shape({numel}));
}

// Values are converted on the host, by code that no backend shares, and copied to the device.
absl::StatusOr<Buffer> HostElements(Device& device, DType dtype, const std::vector<double>& values) {
  const auto numel = static_cast<int64_t>(values.size());
  FSDP_ASSIGN_OR_RETURN(Buffer elements, device.AllocatePinned(numel * SizeOf(dtype)));
  FSDP_RETURN_IF_ERROR(Convert(DType::kFloat64, values.data(), dtype, elements.data(), numel));
  return elements;
}

namespace {

absl::Status Copy(Device& device, void* to, const void* from, int64_t nbytes) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("conformance"));
  stream->CopyAsync(to, from, nbytes);
  return stream->Synchronize();
}

absl::Status Differs(const Tensor& t, int64_t i, double got, double wanted) {
  return absl::DataLossError(absl::StrCat("element ", i, " of ", t.numel(), " (", std::string(DTypeName(t.dtype())),
                                          ") is ", got, ", wanted ", wanted));
}

}  // namespace

void SetElements(Device& device, const Tensor& t, const std::vector<double>& values) {
  const absl::StatusOr<Buffer> elements = HostElements(device, t.dtype(), values);
  Check(elements.ok(), "test values fit their dtype");
  Check(Copy(device, t.data(), elements->data(), t.nbytes()).ok(), "test values are copied");
}

absl::Status CompareElements(Device& device, const Tensor& t, const std::vector<double>& values, double relative) {
  FSDP_ASSIGN_OR_RETURN(const Buffer wanted, HostElements(device, t.dtype(), values));
  FSDP_ASSIGN_OR_RETURN(const Buffer found, device.AllocatePinned(t.nbytes()));
  FSDP_RETURN_IF_ERROR(Copy(device, found.data(), t.data(), t.nbytes()));
  const int64_t width = SizeOf(t.dtype());
  for (int64_t i = 0; i < t.numel(); ++i) {
    // Equal bytes need no conversion, which also makes NaN equal to itself.
    const std::byte* const element = found.data() + i * width;
    if (std::memcmp(element, wanted.data() + i * width, width) == 0) continue;
    double got = 0;
    FSDP_RETURN_IF_ERROR(Convert(t.dtype(), element, DType::kFloat64, &got, 1));
    if (std::abs(got - values[i]) > relative * std::abs(values[i])) return Differs(t, i, got, values[i]);
  }
  return absl::OkStatus();
}

}  // namespace fsdp
