// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/trace.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/host_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

absl::Status Sleep() {
  absl::SleepFor(absl::Milliseconds(2));
  return absl::OkStatus();
}

class TraceTest : public testing::Test {
 protected:
  const std::shared_ptr<Device> device_ = CreateHostDevice();
  const std::unique_ptr<Stream> compute_ = *device_->CreateStream("compute");
  const std::unique_ptr<Stream> unshard_ = *device_->CreateStream("unshard");
};

TEST_F(TraceTest, SpansOfAStreamNestAndLastAsLongAsTheirWork) {
  const std::shared_ptr<Trace> trace = Trace::Create();
  const int64_t before = absl::GetCurrentTimeNanos();
  {
    const TraceScope outer(trace.get(), *compute_, [] { return std::string("outer"); });
    const TraceScope inner(trace.get(), *compute_, [] { return std::string("inner"); });
    compute_->Run(Sleep);
  }
  ASSERT_OK(compute_->Synchronize());
  const std::vector<TraceSpan> spans = trace->Spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "inner");
  EXPECT_EQ(spans[1].name, "outer");
  EXPECT_EQ(spans[0].stream, "compute");
  EXPECT_GE(spans[0].end_ns - spans[0].begin_ns, 2'000'000);
  EXPECT_LE(spans[1].begin_ns, spans[0].begin_ns);
  EXPECT_GE(spans[1].end_ns, spans[0].end_ns);
  EXPECT_GE(spans[1].begin_ns, before - 1'000'000'000);
}

TEST_F(TraceTest, ASpanBeginsWhenWhatCameBeforeItHasRun) {
  const std::shared_ptr<Trace> trace = Trace::Create();
  {
    const TraceScope gather(trace.get(), *unshard_, [] { return std::string("gather"); });
    unshard_->Run(Sleep);
  }
  compute_->Wait(unshard_->Record());
  {
    const TraceScope compute(trace.get(), *compute_, [] { return std::string("compute"); });
  }
  ASSERT_OK(compute_->Synchronize());
  const std::vector<TraceSpan> spans = trace->Spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "gather");
  EXPECT_GE(spans[1].begin_ns, spans[0].end_ns);
}

TEST_F(TraceTest, WithoutATraceNothingIsPutOnTheStream) {
  const auto never = []() -> std::string {
    ADD_FAILURE() << "the name was asked for";
    return "";
  };
  const TraceScope span(nullptr, *compute_, never);
  EXPECT_OK(compute_->Synchronize());
}

TEST_F(TraceTest, SpansBeyondTheLimitAreLeftOut) {
  const std::shared_ptr<Trace> trace = Trace::Create(/*max_spans=*/2);
  EXPECT_FALSE(trace->full());
  for (const std::string name : {"a", "b", "c"}) {
    const TraceScope span(trace.get(), *compute_, [&] { return name; });
  }
  ASSERT_OK(compute_->Synchronize());
  EXPECT_EQ(trace->Spans().size(), 2u);
  EXPECT_TRUE(trace->full());
}

TEST_F(TraceTest, SpansThatWereTakenMakeRoomForOthers) {
  const std::shared_ptr<Trace> trace = Trace::Create(/*max_spans=*/1);
  for (const std::string name : {"a", "b"}) {
    {
      const TraceScope span(trace.get(), *compute_, [&] { return name; });
    }
    ASSERT_OK(compute_->Synchronize());
    const std::vector<TraceSpan> taken = trace->TakeSpans();
    ASSERT_EQ(taken.size(), 1u);
    EXPECT_EQ(taken[0].name, name);
  }
  EXPECT_TRUE(trace->TakeSpans().empty());
  EXPECT_FALSE(trace->full());
}

TEST_F(TraceTest, AnErrorOfTheStreamStaysWhatItWas) {
  const std::shared_ptr<Trace> trace = Trace::Create();
  {
    const TraceScope span(trace.get(), *compute_, [] { return std::string("fails"); });
    compute_->Run([] { return absl::DataLossError("broken"); });
  }
  EXPECT_THAT(compute_->Synchronize(), StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("broken")));
  EXPECT_EQ(trace->Spans().size(), 1u);
}

}  // namespace
}  // namespace fsdp
