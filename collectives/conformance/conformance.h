// SPDX-License-Identifier: Apache-2.0
//
// The common parts of the conformance tests of ProcessGroup: the backends under test, and tensors whose elements are
// all known in advance. All backends pass the same tests, which makes them interchangeable.
#ifndef FSDP_COLLECTIVES_CONFORMANCE_CONFORMANCE_H_
#define FSDP_COLLECTIVES_CONFORMANCE_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

// Called on each rank, each on its own thread.
using RankMain = std::function<absl::Status(std::shared_ptr<ProcessGroup> group)>;

// A backend at a world size: a parameter of the suite. `backend` is one of BackendsUnderTest.
struct GroupUnderTest {
  std::string backend;
  int size = 1;

  // RunRanks on this backend; ranks are threads.
  absl::Status Run(const RankMain& rank_main, absl::Duration timeout = absl::Minutes(1)) const;
};

// The backends that this test was linked with, and the code that runs their ranks: conformance_host.cc or
// conformance_cuda.cc.
std::vector<std::string> BackendsUnderTest();
absl::Status CanRun(const GroupUnderTest& group);  // not OK, with the reason, if this machine has too few GPUs
absl::Status RunOnBackend(const GroupUnderTest& group, const RankMain& rank_main, absl::Duration timeout);

// Each backend under test at each of the sizes; without `sizes`, at 1, 2, 3, 4 and 7 ranks.
std::vector<GroupUnderTest> GroupsUnderTest();
std::vector<GroupUnderTest> GroupsUnderTest(const std::vector<int>& sizes);

// "shm_4", for INSTANTIATE_TEST_SUITE_P. Letters, digits and underscores, as GoogleTest requires.
std::string NameOf(const GroupUnderTest& group);

// The memory of a test's tensors: memory that peers reach (ProcessGroup::Allocate), memory that they do not reach
// (Device::Allocate), or the former on even ranks and the latter on odd ones. A group that AllocatesTogether has no
// mixed placement; it is private there.
enum class Placement { kShared, kPrivate, kMixed };

// A group of which every rank calls Allocate, or none.
class AllocatesTogether {
 public:
  virtual ~AllocatesTogether() = default;
};

// A tensor of `numel` elements, `pad` elements after the start of its buffer. Contents are unspecified. A pad of 1
// gives vectorised code an unaligned start.
absl::StatusOr<Tensor> NewTensor(ProcessGroup& group, Placement placement, DType dtype, int64_t numel, int64_t pad = 0);

// Element `i` of rank `rank`'s input: an integer from 0 to 16, so that sums over ranks are exact in every dtype. Odd
// steps and the ranks' offsets make neighbours, rows and ranks differ.
inline int ValueOf(int rank, int64_t i) { return static_cast<int>((i * 5 + i / 1000 + rank * 7) % 17); }

// `values`, rounded to the dtype, in host memory that is pinned for the device.
absl::StatusOr<Buffer> HostElements(Device& device, DType dtype, const std::vector<double>& values);

// Sets the elements to `values`, rounded to the dtype. Blocks. A value that the dtype cannot hold aborts.
void SetElements(Device& device, const Tensor& t, const std::vector<double>& values);

// OK if each element of `t` is bit for bit its value rounded to the dtype, or differs from the value by at most
// `relative` times the value; else kDataLoss with the first other element. Blocks.
absl::Status CompareElements(Device& device, const Tensor& t, const std::vector<double>& values, double relative = 0);

// value(0), ..., value(numel - 1). `value` is called once for each index, in ascending order.
template <typename Function>
std::vector<double> ValuesOf(int64_t numel, const Function& value) {
  std::vector<double> values(static_cast<size_t>(numel));
  for (int64_t i = 0; i < numel; ++i) {
    values[i] = value(i);
  }
  return values;
}

// SetElements and CompareElements with a function of the element's index instead of a list.
template <typename Function>
void Fill(ProcessGroup& group, const Tensor& t, const Function& value) {
  SetElements(*group.device(), t, ValuesOf(t.numel(), value));
}

template <typename Function>
absl::Status ExpectElements(ProcessGroup& group, const Tensor& t, const Function& value, double relative = 0) {
  return CompareElements(*group.device(), t, ValuesOf(t.numel(), value), relative);
}

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CONFORMANCE_CONFORMANCE_H_
