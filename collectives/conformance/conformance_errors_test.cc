// SPDX-License-Identifier: Apache-2.0
//
// Every backend reports errors on every rank and never hangs: one suite, all backends.
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/group/process_group.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class ConformanceErrorsTest : public testing::TestWithParam<GroupUnderTest> {
 protected:
  void SetUp() override {
    if (const absl::Status can = CanRun(GetParam()); !can.ok()) GTEST_SKIP() << can.message();
  }

  int size() const { return GetParam().size; }

  // The error that each rank's stream ends with.
  std::vector<absl::Status> Errors(const std::function<void(ProcessGroup& group, Stream& stream)>& rank_main,
                                   absl::Duration timeout = absl::Minutes(1)) {
    std::vector<absl::Status> errors(static_cast<size_t>(size()));
    EXPECT_OK(GetParam().Run(
        [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
          FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
          rank_main(*group, *stream);
          errors[group->rank()] = stream->Synchronize();
          return absl::OkStatus();
        },
        timeout));
    return errors;
  }

  static Tensor Floats(ProcessGroup& group, int64_t n, DType dtype = DType::kFloat32) {
    return NewTensor(group, Placement::kShared, dtype, n).value();
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, ConformanceErrorsTest, testing::ValuesIn(GroupsUnderTest({2, 4})),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(ConformanceErrorsTest, DisagreementOnTheDTypeNamesBothSides) {
  const int last = size() - 1;
  const auto errors = Errors([&](ProcessGroup& group, Stream& stream) {
    group.Barrier(stream);
    const Tensor t = Floats(group, 1024, group.rank() == last ? DType::kFloat32 : DType::kBFloat16);
    group.AllReduce(t, ReduceOp::kSum, stream);
  });
  const std::string text = absl::StrCat("all_reduce #2: rank ", last, " of ", size(),
                                        " has sum float32[1024], rank 0 has sum bfloat16[1024]");
  EXPECT_THAT(errors, Each(StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(text))));
}

TEST_P(ConformanceErrorsTest, DisagreementOnTheCountNamesBothSides) {
  const auto errors = Errors([&](ProcessGroup& group, Stream& stream) {
    const int64_t n = group.rank() == 1 ? 100000 : 100001;
    group.AllGather(Floats(group, n), Floats(group, n * size()), stream);
  });
  const std::string text =
      absl::StrCat("all_gather #1: rank 1 of ", size(), " has float32[100000], rank 0 has float32[100001]");
  EXPECT_THAT(errors, Each(StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(text))));
}

TEST_P(ConformanceErrorsTest, DisagreementOnTheOperationNamesBothSides) {
  const auto errors = Errors([&](ProcessGroup& group, Stream& stream) {
    if (group.rank() == 1) {
      group.Barrier(stream);
    } else {
      group.ReduceScatter(Floats(group, 8 * size()), Floats(group, 8), ReduceOp::kAvg, stream);
    }
  });
  const std::string text =
      absl::StrCat("collective #1: rank 1 of ", size(), " has barrier, rank 0 has reduce_scatter avg float32[8]");
  EXPECT_THAT(errors, Each(StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(text))));
}

TEST_P(ConformanceErrorsTest, DisagreementOnRootAndReduceOpNamesBothSides) {
  const auto roots = Errors(
      [&](ProcessGroup& group, Stream& stream) { group.Broadcast(Floats(group, 3), group.rank() == 1, stream); });
  EXPECT_THAT(roots, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("has float32[3] from root 1, rank 0 has float32[3] from root 0"))));
  const auto ops = Errors([&](ProcessGroup& group, Stream& stream) {
    group.AllReduce(Floats(group, 3), group.rank() == 1 ? ReduceOp::kMax : ReduceOp::kMin, stream);
  });
  EXPECT_THAT(ops, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("has max float32[3], rank 0 has min float32[3]"))));
}

TEST_P(ConformanceErrorsTest, WrongArgumentsOfOneRankReachThePeersToo) {
  const auto errors = Errors([&](ProcessGroup& group, Stream& stream) {
    group.AllGather(Floats(group, 10), Floats(group, 10 * size() + (group.rank() == 1)), stream);
  });
  const std::string text = absl::StrCat("output is float32[", 10 * size() + 1, "], wanted float32[", 10 * size(), "]");
  EXPECT_THAT(errors, Each(StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text))));
  EXPECT_THAT(errors[0].message(), HasSubstr("rank 1"));
  EXPECT_THAT(errors[0].message(), HasSubstr("gave up"));
}

TEST_P(ConformanceErrorsTest, WrongArgumentsAreRefused) {
  struct Case {
    std::function<void(ProcessGroup& group, Stream& stream)> call;
    std::string text;
  };
  const std::vector<Case> cases = {
      {[](ProcessGroup& g, Stream& s) { g.AllReduce(Floats(g, 4, DType::kInt8), ReduceOp::kSum, s); },
       "cannot reduce int8 with sum"},
      {[](ProcessGroup& g, Stream& s) { g.AllReduce(Floats(g, 4, DType::kInt64), ReduceOp::kAvg, s); },
       "cannot reduce int64 with avg"},
      {[](ProcessGroup& g, Stream& s) { g.Broadcast(Floats(g, 4), g.size(), s); }, "is not a rank of"},
      {[](ProcessGroup& g, Stream& s) { g.AllReduce(Tensor(), ReduceOp::kSum, s); }, "undefined tensor"},
      {[](ProcessGroup& g, Stream& s) {
         const Tensor t = Floats(g, 4 * g.size() + 1);
         g.AllGather(t.Slice({4 * g.rank() + 1, 4 * g.rank() + 5}), t.Slice({0, 4 * g.size()}), s);
       },
       "input overlaps output without being its slice"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Errors(c.call), Each(StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.text))));
  }
}

TEST_P(ConformanceErrorsTest, AStreamThatFailedTellsThePeers) {
  const auto errors = Errors([&](ProcessGroup& group, Stream& stream) {
    if (group.rank() == 1) {
      stream.Run([] { return absl::DataLossError("bits fell off"); });
    }
    group.AllReduce(Floats(group, 50000), ReduceOp::kSum, stream);
  });
  EXPECT_THAT(errors, Each(StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bits fell off"))));
  EXPECT_THAT(errors[0].message(),
              AllOf(HasSubstr("rank 0 of"), HasSubstr("all_reduce #1: rank 1"), HasSubstr("gave up")));
}

TEST_P(ConformanceErrorsTest, ARankThatReturnsAnErrorIsNamed) {
  std::mutex mutex;
  std::vector<absl::Status> seen;
  const absl::Status error = GetParam().Run([&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    if (group->rank() == 1) {
      return absl::NotFoundError("no such file");
    }
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
    group->Barrier(*stream);
    const absl::Status status = stream->Synchronize();
    const std::lock_guard<std::mutex> lock(mutex);
    seen.push_back(status);
    return status;
  });
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kNotFound, absl::StrCat("rank 1 of ", size(), ": no such file")));
  EXPECT_EQ(static_cast<int>(seen.size()), size() - 1);
  EXPECT_THAT(seen, Each(StatusIs(absl::StatusCode::kNotFound,
                                  AllOf(HasSubstr("barrier #1: rank 1"), HasSubstr("gave up: no such file")))));
}

TEST_P(ConformanceErrorsTest, AnAbortReachesBlockedPeers) {
  const auto errors = Errors([&](ProcessGroup& group, Stream& stream) {
    if (group.rank() == 1) {
      group.Abort(absl::CancelledError("had enough"));
    }
    group.Barrier(stream);
  });
  EXPECT_THAT(errors, Each(StatusIs(absl::StatusCode::kCancelled, HasSubstr("gave up: had enough"))));
}

TEST_P(ConformanceErrorsTest, ABrokenGroupSaysSo) {
  const auto errors = Errors([&](ProcessGroup& group, Stream& stream) {
    group.AllReduce(Floats(group, 4 + group.rank()), ReduceOp::kSum, stream);
    EXPECT_THAT(group.AllGatherObject("").status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("gather_blobs #2: the group is broken"), HasSubstr("all_reduce #1"))));
    EXPECT_THAT(group.Split(0, 0).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("gather_blobs #3: the group is broken")));
  });
  EXPECT_THAT(errors, Each(StatusIs(absl::StatusCode::kFailedPrecondition)));
}

TEST_P(ConformanceErrorsTest, AMissingRankIsNamedAtTheDeadline) {
  // Rank 1 reaches the collective only after the others have failed.
  std::vector<absl::Status> errors(static_cast<size_t>(size()));
  std::latch failed(1);
  EXPECT_OK(GetParam().Run(
      [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
        if (group->rank() == 1) {
          failed.wait();
          group->Barrier(*stream);
          errors[1] = stream->Synchronize();
        } else {
          group->Barrier(*stream);
          errors[group->rank()] = stream->Synchronize();
          if (group->rank() == 0) {
            failed.count_down();
          }
        }
        return absl::OkStatus();
      },
      absl::Milliseconds(200)));
  EXPECT_THAT(errors, Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    HasSubstr("barrier #1 waited 200ms; missing ranks: 1"))));
  EXPECT_THAT(errors[1].message(), HasSubstr("gave up"));
}

TEST_P(ConformanceErrorsTest, ARankThatLeavesIsNamed) {
  const auto errors = Errors([&](ProcessGroup& group, Stream& stream) {
    group.Barrier(stream);
    if (group.rank() != 1) {
      group.AllReduce(Floats(group, 4), ReduceOp::kSum, stream);
    }
  });
  for (int r = 0; r < size(); ++r) {
    if (r == 1) {
      EXPECT_OK(errors[r]);
    } else {
      EXPECT_THAT(errors[r], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("all_reduce #2: rank 1")));
      EXPECT_THAT(errors[r].message(), HasSubstr("left the group"));
    }
  }
}

TEST_P(ConformanceErrorsTest, AgreeOnGivesTheLowestRanksErrorToAll) {
  std::vector<absl::Status> agreed(static_cast<size_t>(size()));
  EXPECT_OK(GetParam().Run([&](std::shared_ptr<ProcessGroup> group) {
    FSDP_RETURN_IF_ERROR(AllReduceStatus(*group, absl::OkStatus()));
    agreed[group->rank()] =
        AllReduceStatus(*group, group->rank() == 0 ? absl::OkStatus() : absl::DataLossError("bad bytes"));
    return absl::OkStatus();
  }));
  EXPECT_THAT(agreed, Each(StatusIs(absl::StatusCode::kDataLoss, absl::StrCat("rank 1 of ", size(), ": bad bytes"))));
}

}  // namespace
}  // namespace fsdp
