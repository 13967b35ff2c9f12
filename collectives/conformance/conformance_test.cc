// SPDX-License-Identifier: Apache-2.0
//
// Every backend moves and adds the right data: one suite, all backends, all world sizes.
#include "fsdp/collectives/conformance/conformance.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/coalesced_calls.h"
#include "fsdp/collectives/group/process_group.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// Nothing, less than a vector, less and more than the eager limit; mostly not multiples of anything.
constexpr int64_t kCounts[] = {0, 1, 7, 1000, 5003};

// The number of elements with which every dtype and op is tried.
constexpr int64_t kCommonCount = 1003;

// The number of elements of eight bytes that is more than a staging slot holds.
constexpr int64_t kBeyondSlots = 33001;

constexpr Placement kPlacements[] = {Placement::kShared, Placement::kPrivate, Placement::kMixed};
constexpr DType kReducible[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                DType::kFloat16, DType::kInt64,   DType::kInt32};

class ConformanceTest : public testing::TestWithParam<GroupUnderTest> {
 protected:
  void SetUp() override {
    if (const absl::Status can = CanRun(GetParam()); !can.ok()) GTEST_SKIP() << can.message();
  }

  int size() const { return GetParam().size; }

  // Runs `rank_main` with its own stream on every rank; synchronises it at the end.
  absl::Status Run(const std::function<absl::Status(ProcessGroup& group, Stream& stream)>& rank_main) {
    return GetParam().Run([&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
      FSDP_RETURN_IF_ERROR(rank_main(*group, *stream));
      return stream->Synchronize();
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, ConformanceTest, testing::ValuesIn(GroupsUnderTest()),
                         [](const auto& info) { return NameOf(info.param); });

struct GatherCase {
  Placement placement;
  DType dtype;
  int64_t n;
  bool in_place;
};

absl::Status TestAllGather(ProcessGroup& group, Stream& stream, const GatherCase& c) {
  const int64_t first = group.rank() * c.n;
  FSDP_ASSIGN_OR_RETURN(const Tensor output, NewTensor(group, c.placement, c.dtype, c.n * group.size(), 1));
  FSDP_ASSIGN_OR_RETURN(const Tensor apart, NewTensor(group, c.placement, c.dtype, c.n, 3));
  const Tensor input = c.in_place ? output.Slice({first, first + c.n}) : apart;
  const auto mine = [&](int64_t i) { return ValueOf(group.rank(), i); };
  Fill(group, input, mine);
  group.AllGather(input, output, stream);
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  FSDP_RETURN_IF_ERROR(
      ExpectElements(group, output, [&](int64_t i) { return ValueOf(static_cast<int>(i / c.n), i % c.n); }));
  return ExpectElements(group, input, mine);
}

TEST_P(ConformanceTest, AllGatherGathersEveryDTypeInPlaceAndNot) {
  EXPECT_OK(Run([](ProcessGroup& group, Stream& stream) {
    for (const bool in_place : {false, true}) {
      for (const DType dtype : AllDTypes()) {
        if (dtype == DType::kFloat8E8M0FNU || IsPacked(dtype)) continue;  // not of single small integers
        FSDP_RETURN_IF_ERROR(TestAllGather(group, stream, {Placement::kShared, dtype, kCommonCount, in_place}));
      }
      for (const int64_t n : kCounts) {
        FSDP_RETURN_IF_ERROR(TestAllGather(group, stream, {Placement::kShared, DType::kFloat32, n, in_place}));
      }
    }
    for (const Placement placement : kPlacements) {
      const bool in_place = placement != Placement::kMixed;
      FSDP_RETURN_IF_ERROR(TestAllGather(group, stream, {placement, DType::kInt64, kBeyondSlots, in_place}));
    }
    return absl::OkStatus();
  }));
}

// The result of op over all ranks for the element at index i of each rank's input.
double Reduced(ReduceOp op, int size, int64_t i) {
  double sum = 0;
  double lowest = ValueOf(0, i);
  double highest = lowest;
  for (int r = 0; r < size; ++r) {
    const double value = ValueOf(r, i);
    sum += value;
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  switch (op) {
    case ReduceOp::kSum:
      return sum;
    case ReduceOp::kAvg:
      return static_cast<float>(sum) / static_cast<float>(size);
    case ReduceOp::kMin:
      return lowest;
    case ReduceOp::kMax:
      return highest;
  }
  return 0;
}

// The average of small integers in float32 arithmetic, as for 16- and 32-bit dtypes; float64 has its own.
double Expected(DType dtype, ReduceOp op, int size, int64_t i) {
  return dtype == DType::kFloat64 && op == ReduceOp::kAvg ? Reduced(ReduceOp::kSum, size, i) / size
                                                          : Reduced(op, size, i);
}

struct ReduceCase {
  Placement placement;
  DType dtype;
  ReduceOp op;
  int64_t n;
};

// NCCL averages by adding products with 1/n. 1/n, the product, n - 1 additions and the quotient of the comparison are n
// + 2 roundings. Everything else is exact.
double Tolerance(const ProcessGroup& group, const ReduceCase& c) {
  if (group.backend() != "nccl" || c.op != ReduceOp::kAvg || SizeOf(c.dtype) < 4) return 0;
  return (group.size() + 2) * std::ldexp(1, c.dtype == DType::kFloat64 ? -53 : -24);
}

// Every dtype with every op; every size with the two ops that training uses most; every placement beyond the slots.
std::vector<ReduceCase> ReduceCases(int64_t beyond_slots) {
  std::vector<ReduceCase> cases;
  for (const DType dtype : kReducible) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
      if (IsFloatingPoint(dtype) || op != ReduceOp::kAvg) {
        cases.push_back({Placement::kShared, dtype, op, kCommonCount});
      }
    }
  }
  for (const int64_t n : kCounts) {
    cases.push_back({Placement::kShared, DType::kBFloat16, ReduceOp::kSum, n});
    cases.push_back({Placement::kPrivate, DType::kFloat32, ReduceOp::kAvg, n});
  }
  for (const Placement placement : kPlacements) {
    cases.push_back({placement, DType::kFloat64, ReduceOp::kSum, beyond_slots});
  }
  return cases;
}

absl::Status TestReduceScatter(ProcessGroup& group, Stream& stream, const ReduceCase& c) {
  const int64_t first = group.rank() * c.n;
  FSDP_ASSIGN_OR_RETURN(const Tensor input, NewTensor(group, c.placement, c.dtype, c.n * group.size(), 1));
  FSDP_ASSIGN_OR_RETURN(const Tensor output, NewTensor(group, c.placement, c.dtype, c.n, 3));
  const auto mine = [&](int64_t i) { return ValueOf(group.rank(), i); };
  const auto reduced = [&](int64_t i) { return Expected(c.dtype, c.op, group.size(), first + i); };
  Fill(group, input, mine);
  group.ReduceScatter(input, output, c.op, stream);
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  FSDP_RETURN_IF_ERROR(ExpectElements(group, output, reduced, Tolerance(group, c)));
  FSDP_RETURN_IF_ERROR(ExpectElements(group, input, mine));
  const Tensor own = input.Slice({first, first + c.n});
  group.ReduceScatter(input, own, c.op, stream);
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  return ExpectElements(group, own, reduced, Tolerance(group, c));
}

TEST_P(ConformanceTest, ReduceScatterReducesInRankOrder) {
  EXPECT_OK(Run([](ProcessGroup& group, Stream& stream) {
    for (const ReduceCase& c : ReduceCases(kBeyondSlots / group.size() + 1)) {
      FSDP_RETURN_IF_ERROR(TestReduceScatter(group, stream, c));
    }
    return absl::OkStatus();
  }));
}

absl::Status TestAllReduce(ProcessGroup& group, Stream& stream, const ReduceCase& c) {
  FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, c.placement, c.dtype, c.n, 1));
  Fill(group, t, [&](int64_t i) { return ValueOf(group.rank(), i); });
  group.AllReduce(t, c.op, stream);
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  return ExpectElements(
      group, t, [&](int64_t i) { return Expected(c.dtype, c.op, group.size(), i); }, Tolerance(group, c));
}

TEST_P(ConformanceTest, AllReduceGivesEveryRankTheSame) {
  EXPECT_OK(Run([](ProcessGroup& group, Stream& stream) {
    for (const ReduceCase& c : ReduceCases(kBeyondSlots)) {
      FSDP_RETURN_IF_ERROR(TestAllReduce(group, stream, c));
    }
    return absl::OkStatus();
  }));
}

TEST_P(ConformanceTest, BroadcastGivesEveryRankTheRootsElements) {
  EXPECT_OK(Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    for (const Placement placement : kPlacements) {
      for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{5003}, kBeyondSlots}) {
        const int root = static_cast<int>(n % group.size());
        FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, placement, DType::kInt64, n, 1));
        Fill(group, t, [&](int64_t i) { return ValueOf(group.rank(), i); });
        group.Broadcast(t, root, stream);
        FSDP_RETURN_IF_ERROR(stream.Synchronize());
        FSDP_RETURN_IF_ERROR(ExpectElements(group, t, [&](int64_t i) { return ValueOf(root, i); }));
      }
    }
    return absl::OkStatus();
  }));
}

// The input may be overwritten, and the output read, after the stream has passed the collective: no rank may still use
// either.
TEST_P(ConformanceTest, BackToBackCollectivesDoNotDisturbEachOther) {
  EXPECT_OK(Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    for (const int64_t n : {int64_t{5}, int64_t{6000}}) {
      FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, Placement::kShared, DType::kInt64, n));
      constexpr int kSteps = 30;
      std::vector<Buffer> inputs(kSteps);
      std::vector<Buffer> outputs(kSteps);
      for (int step = 0; step < kSteps; ++step) {
        const auto values = ValuesOf(n, [&](int64_t i) { return ValueOf(group.rank(), i + step); });
        FSDP_ASSIGN_OR_RETURN(inputs[step], HostElements(*group.device(), t.dtype(), values));
        FSDP_ASSIGN_OR_RETURN(outputs[step], group.device()->AllocatePinned(t.nbytes()));
      }
      for (int step = 0; step < kSteps; ++step) {
        stream.CopyAsync(t.data(), inputs[step].data(), t.nbytes());
        group.AllReduce(t, ReduceOp::kSum, stream);
        stream.CopyAsync(outputs[step].data(), t.data(), t.nbytes());
      }
      FSDP_RETURN_IF_ERROR(stream.Synchronize());
      for (int step = 0; step < kSteps; ++step) {
        const auto* sums = reinterpret_cast<const int64_t*>(outputs[step].data());
        for (int64_t i = 0; i < n; ++i) {
          const double wanted = Reduced(ReduceOp::kSum, group.size(), i + step);
          if (static_cast<double>(sums[i]) == wanted) continue;
          return absl::DataLossError(absl::StrCat("step ", step, ": ", sums[i], " at ", i, ", wanted ", wanted));
        }
      }
    }
    return stream.Synchronize();
  }));
}

TEST_P(ConformanceTest, CollectivesRunInTheOrderOfIssueOnWhicheverStreams) {
  EXPECT_OK(GetParam().Run([](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const int64_t n = 3000;
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> unshard, group->device()->CreateStream("unshard"));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> reduce, group->device()->CreateStream("reduce"));
    FSDP_ASSIGN_OR_RETURN(const Tensor gathered,
                          NewTensor(*group, Placement::kShared, DType::kFloat32, n * group->size()));
    FSDP_ASSIGN_OR_RETURN(const Tensor summed, NewTensor(*group, Placement::kPrivate, DType::kFloat32, n));
    const Tensor own = gathered.Slice({group->rank() * n, (group->rank() + 1) * n});
    Fill(*group, own, [&](int64_t i) { return ValueOf(group->rank(), i); });
    Fill(*group, summed, [](int64_t) { return 1; });
    for (int step = 0; step < 30; ++step) {
      group->AllGather(own, gathered, *unshard);
      group->AllReduce(summed, ReduceOp::kMax, *reduce);
      group->Barrier(step % 2 == 0 ? *unshard : *reduce);
    }
    FSDP_RETURN_IF_ERROR(unshard->Synchronize());
    FSDP_RETURN_IF_ERROR(reduce->Synchronize());
    FSDP_RETURN_IF_ERROR(
        ExpectElements(*group, gathered, [&](int64_t i) { return ValueOf(static_cast<int>(i / n), i % n); }));
    return ExpectElements(*group, summed, [](int64_t) { return 1; });
  }));
}

// The coalesced calls are of all kinds, dtypes and sizes, 0 included. Calls before and after must keep their order.
TEST_P(ConformanceTest, CoalescedCallsAreThoseCalls) {
  EXPECT_OK(Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    const int64_t n = 700;
    const int size = group.size();
    FSDP_ASSIGN_OR_RETURN(const Tensor summed, NewTensor(group, Placement::kShared, DType::kFloat32, n));
    FSDP_ASSIGN_OR_RETURN(const Tensor part, NewTensor(group, Placement::kPrivate, DType::kInt64, 3));
    FSDP_ASSIGN_OR_RETURN(const Tensor gathered, NewTensor(group, Placement::kShared, DType::kInt64, 3 * size));
    FSDP_ASSIGN_OR_RETURN(const Tensor averaged, NewTensor(group, Placement::kShared, DType::kBFloat16, n * size, 1));
    FSDP_ASSIGN_OR_RETURN(const Tensor mine, NewTensor(group, Placement::kPrivate, DType::kBFloat16, n));
    FSDP_ASSIGN_OR_RETURN(const Tensor sent, NewTensor(group, Placement::kPrivate, DType::kUInt8, 5));
    FSDP_ASSIGN_OR_RETURN(const Tensor nothing, NewTensor(group, Placement::kPrivate, DType::kFloat32, 0));
    for (int step = 0; step < 3; ++step) {
      Fill(group, summed, [&](int64_t) { return step + 1; });
      Fill(group, part, [&](int64_t i) { return ValueOf(group.rank(), i + step); });
      Fill(group, averaged, [&](int64_t) { return 4 * step; });
      Fill(group, sent, [&](int64_t i) { return i + group.rank(); });
      group.AllReduce(summed, ReduceOp::kMax, stream);
      {
        const CoalescedCalls coalesced(group);
        group.AllReduce(summed, ReduceOp::kSum, stream);
        group.AllGather(part, gathered, stream);
        group.AllReduce(nothing, ReduceOp::kSum, stream);
        group.ReduceScatter(averaged, mine, ReduceOp::kAvg, stream);
        group.Broadcast(sent, size - 1, stream);
      }
      group.AllReduce(gathered, ReduceOp::kMin, stream);
      { const CoalescedCalls none(group); }
      FSDP_RETURN_IF_ERROR(stream.Synchronize());
      FSDP_RETURN_IF_ERROR(ExpectElements(group, summed, [&](int64_t) { return (step + 1) * size; }));
      FSDP_RETURN_IF_ERROR(
          ExpectElements(group, gathered, [&](int64_t i) { return ValueOf(static_cast<int>(i / 3), i % 3 + step); }));
      FSDP_RETURN_IF_ERROR(ExpectElements(group, mine, [&](int64_t) { return 4 * step; }));
      FSDP_RETURN_IF_ERROR(ExpectElements(group, sent, [&](int64_t i) { return i + size - 1; }));
    }
    return absl::OkStatus();
  }));
}

TEST_P(ConformanceTest, AllGatherObjectGathersAnySizes) {
  EXPECT_OK(GetParam().Run([](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    for (const size_t most : {size_t{0}, size_t{20}, size_t{300000}}) {
      // The size decreases with the rank, to nothing on the last.
      const auto blob_of = [&](int r) {
        return std::string(most * (group->size() - 1 - r) / group->size(), static_cast<char>('a' + r));
      };
      FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, group->AllGatherObject(blob_of(group->rank())));
      for (int r = 0; r < group->size(); ++r) {
        if (blobs[r] != blob_of(r)) {
          return absl::DataLossError(absl::StrCat("the blob of rank ", r, " has ", blobs[r].size(), " bytes"));
        }
      }
    }
    return absl::OkStatus();
  }));
}

TEST_P(ConformanceTest, SplitMakesGroupsByColorInKeyOrder) {
  EXPECT_OK(Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    // Odd and even ranks separately, each in reverse order.
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> half, group.Split(group.rank() % 2, -group.rank()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, half->AllGatherObject(absl::StrCat(group.rank())));
    for (int r = 0; r < half->size(); ++r) {
      const int last = group.size() - 1 - (group.size() - 1 - group.rank()) % 2;
      if (blobs[r] != absl::StrCat(last - 2 * r)) {
        return absl::DataLossError(absl::StrCat("rank ", r, " of the half is ", blobs[r]));
      }
    }
    FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, Placement::kShared, DType::kFloat32, 9000));
    Fill(group, t, [](int64_t) { return 1; });
    half->AllReduce(t, ReduceOp::kSum, stream);
    group.AllReduce(t, ReduceOp::kMax, stream);
    FSDP_RETURN_IF_ERROR(stream.Synchronize());
    return ExpectElements(group, t, [&](int64_t) { return (group.size() + 1) / 2; });
  }));
}

TEST_P(ConformanceTest, SplitGroupsSplitAgain) {
  EXPECT_OK(GetParam().Run([](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> same, group->Split(0, 0));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> alone, same->Split(group->rank(), 0));
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, alone->AllGatherObject("me"));
    const bool right = same->rank() == group->rank() && alone->size() == 1 && blobs.size() == 1;
    return right ? absl::OkStatus() : absl::DataLossError("wrong members");
  }));
}

TEST_P(ConformanceTest, AllocateCountsOnTheDevice) {
  EXPECT_OK(GetParam().Run([](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const int64_t before = group->device()->allocated_bytes();
    {
      FSDP_ASSIGN_OR_RETURN(const Buffer buffer, group->Allocate(100000));
      if (group->device()->allocated_bytes() - before != 100000) {
        return absl::DataLossError(absl::StrCat(group->device()->allocated_bytes() - before, " bytes are counted"));
      }
      FSDP_ASSIGN_OR_RETURN(const Buffer nothing, group->Allocate(0));
      if (reinterpret_cast<uintptr_t>(buffer.data()) % 64 != 0 || nothing.nbytes() != 0) {
        return absl::DataLossError("not aligned");
      }
    }
    return group->device()->allocated_bytes() == before ? absl::OkStatus() : absl::DataLossError("bytes stay counted");
  }));
}

// A rank that has its data may leave while others are still in the same collective.
TEST_P(ConformanceTest, ARankThatFinishesFirstDoesNotDisturbTheOthers) {
  for (int repeat = 0; repeat < 10; ++repeat) {
    EXPECT_OK(Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, Placement::kShared, DType::kInt32, 10000));
      Fill(group, t, [](int64_t) { return 2; });
      group.AllReduce(t, ReduceOp::kSum, stream);
      group.Barrier(stream);
      FSDP_RETURN_IF_ERROR(stream.Synchronize());
      return ExpectElements(group, t, [&](int64_t) { return 2 * group.size(); });
    }));
  }
}

}  // namespace
}  // namespace fsdp
