// SPDX-License-Identifier: Apache-2.0
//
// A collective and a floor of the same traffic are timed in turn, in rounds of batches of about 20 ms, and compared
// within a round: machines change their speed from second to second, and the ratio of neighbouring batches is steadier
// than either time. Medians over the rounds keep single disturbances out.
#include "fsdp/collectives/conformance/collective_timing.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr int kMostRepeats = 2000;
constexpr int64_t kSmallBytes = 16 << 10;                  // up to this size a collective is compared with a ping-pong
constexpr absl::Duration kBatch = absl::Milliseconds(20);  // the target time of a round of one kind

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  // The number of rounds is odd (TimingOptions), so this is one of the values.
  return values[values.size() / 2];
}

// Half the distance of the quartiles: a spread that a few disturbed rounds do not move.
double HalfQuartileDistance(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[values.size() * 3 / 4] - values[values.size() / 4]) / 2;
}

// The largest of the ranks' values. All ranks get the same number, because each takes the largest of the same blobs.
absl::StatusOr<double> Slowest(ProcessGroup& group, double mine) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        group.AllGatherObject({reinterpret_cast<const char*>(&mine), sizeof(mine)}));
  double slowest = 0;
  for (const std::string& blob : blobs) {
    double theirs = 0;
    std::memcpy(&theirs, blob.data(), sizeof(theirs));
    slowest = std::max(slowest, theirs);
  }
  return slowest;
}

// The ratio of bus bandwidth to algorithm bandwidth, as in nccl-tests.
double BusFactor(CollectiveOp op, int size) {
  const double others = static_cast<double>(size - 1) / size;
  switch (op) {
    case CollectiveOp::kAllReduce:
      return 2 * others;
    case CollectiveOp::kBroadcast:
      return 1;
    default:
      return others;
  }
}

}  // namespace

double MemcpyBytes(CollectiveOp op, double bytes, int size, int rank) {
  const double gather = bytes * (size - 1) / size;
  const double reduce = (bytes + bytes / size) / 2;
  switch (op) {
    case CollectiveOp::kAllGather:
      return gather;
    case CollectiveOp::kReduceScatter:
      return reduce;
    case CollectiveOp::kAllReduce:
      return reduce + gather;
    case CollectiveOp::kBroadcast:
      return rank == 0 ? 0 : bytes;
    default:
      return 0;
  }
}

absl::StatusOr<std::unique_ptr<CollectiveTimer>> CollectiveTimer::Create(ProcessGroup& group, DType dtype,
                                                                         int64_t max_bytes,
                                                                         const TimingOptions& options) {
  std::unique_ptr<CollectiveTimer> timer(new CollectiveTimer(group, dtype, options));
  Device& device = *group.device();
  FSDP_ASSIGN_OR_RETURN(timer->stream_, device.CreateStream("benchmark"));
  FSDP_ASSIGN_OR_RETURN(timer->whole_, group.Allocate(max_bytes));
  FSDP_ASSIGN_OR_RETURN(timer->part_, group.Allocate(max_bytes / group.size()));
  // A floor may move more bytes than the buffers have; it uses the same memory again.
  FSDP_ASSIGN_OR_RETURN(timer->source_, device.Allocate(max_bytes));
  FSDP_ASSIGN_OR_RETURN(timer->destination_, device.Allocate(max_bytes));
  // Touched here, so that no measurement includes page faults.
  for (const Buffer& buffer : {timer->whole_, timer->part_, timer->source_, timer->destination_}) {
    std::memset(buffer.data(), 0, static_cast<size_t>(buffer.nbytes()));
  }
  return timer;
}

void CollectiveTimer::IssueCollective(CollectiveOp op, int64_t bytes) {
  const int64_t numel = bytes / SizeOf(dtype_);
  const int64_t n = numel / group_.size();
  const Tensor whole(whole_, dtype_, Shape({numel}));
  const Tensor part(part_, dtype_, Shape({n}));
  switch (op) {
    case CollectiveOp::kAllGather:
      return group_.AllGather(whole.Slice({group_.rank() * n, (group_.rank() + 1) * n}), whole, *stream_);
    case CollectiveOp::kReduceScatter:
      return group_.ReduceScatter(whole, part, ReduceOp::kSum, *stream_);
    case CollectiveOp::kAllReduce:
      return group_.AllReduce(whole, ReduceOp::kSum, *stream_);
    case CollectiveOp::kBroadcast:
      return group_.Broadcast(whole, 0, *stream_);
    default:
      return group_.Barrier(*stream_);
  }
}

// The traffic may exceed the buffers (all_reduce), so the copy uses the same bytes again.
void CollectiveTimer::IssueCopy(CollectiveOp op, int64_t bytes) {
  auto left = static_cast<int64_t>(MemcpyBytes(op, static_cast<double>(bytes), group_.size(), group_.rank()));
  for (; left > 0; left -= bytes) {
    stream_->CopyAsync(destination_.data(), source_.data(), std::min(left, bytes));
  }
}

absl::Status CollectiveTimer::RunWire(CollectiveOp op, int64_t bytes) {
  const auto linked = static_cast<int64_t>(LinkBytes(op, dtype_, static_cast<double>(bytes), options_.wire->layout()));
  const auto memory = [](const Buffer& buffer) {
    return absl::MakeSpan(reinterpret_cast<char*>(buffer.data()), static_cast<size_t>(buffer.nbytes()));
  };
  if (bytes > kSmallBytes) return options_.wire->Exchange(memory(source_), memory(destination_), linked);
  return options_.wire->PingPong(memory(destination_).first(std::min<size_t>(linked, destination_.nbytes())));
}

// All ranks start together and issue everything before they wait, so that issuing overlaps running.
template <typename Issue>
absl::StatusOr<double> CollectiveTimer::TimeBatch(int repeat, const Issue& issue) {
  group_.Barrier(*stream_);
  FSDP_RETURN_IF_ERROR(stream_->Synchronize());
  const absl::Time start = absl::Now();
  for (int i = 0; i < repeat; ++i) {
    issue();
  }
  FSDP_RETURN_IF_ERROR(stream_->Synchronize());
  return Slowest(group_, absl::ToDoubleSeconds(absl::Now() - start) / repeat);
}

absl::StatusOr<CollectiveTimer::Round> CollectiveTimer::RunRound(CollectiveOp op, int64_t bytes, int repeat) {
  Round round;
  FSDP_ASSIGN_OR_RETURN(round.collective, TimeBatch(repeat, [&] { IssueCollective(op, bytes); }));
  // After an error the remaining repeats are skipped: the other end is gone, and each would wait for it.
  absl::Status wire;
  FSDP_ASSIGN_OR_RETURN(round.floor, TimeBatch(repeat, [&] {
                          if (options_.wire == nullptr) {
                            IssueCopy(op, bytes);
                          } else if (wire.ok()) {
                            wire = RunWire(op, bytes);
                          }
                        }));
  FSDP_RETURN_IF_ERROR(wire);
  return round;
}

// The number of repeats comes from a warm round of the slowest rank, so that all ranks choose the same number and make
// the same calls.
absl::StatusOr<Timing> CollectiveTimer::Measure(CollectiveOp op, int64_t bytes) {
  const int64_t unit = SizeOf(dtype_) * group_.size();
  bytes = bytes / unit * unit;
  FSDP_RETURN_IF_ERROR(RunRound(op, bytes, 1).status());  // faults pages in
  FSDP_ASSIGN_OR_RETURN(const Round warm, RunRound(op, bytes, 3));
  const double longest = std::max(warm.collective, 1e-9);
  const int repeat = std::clamp(static_cast<int>(absl::ToDoubleSeconds(kBatch) / longest), 1, kMostRepeats);
  std::vector<double> times;
  std::vector<double> floors;
  std::vector<double> shares;
  for (int i = 0; i < options_.rounds; ++i) {
    FSDP_ASSIGN_OR_RETURN(const Round round, RunRound(op, bytes, repeat));
    times.push_back(round.collective);
    floors.push_back(round.floor);
    // Divided within a round: the two batches were measured one right after the other.
    shares.push_back(round.floor / round.collective);
  }
  Timing timing = {.op = op, .dtype = dtype_, .bytes = bytes};
  timing.time = Median(times);
  timing.best = *std::min_element(times.begin(), times.end());
  timing.spread = HalfQuartileDistance(times) / timing.time;
  timing.algbw = static_cast<double>(bytes) / timing.time;
  timing.busbw = timing.algbw * BusFactor(op, group_.size());
  timing.floor = Median(floors);
  timing.share = Median(shares);
  timing.limit = timing.algbw / timing.share;
  return timing;
}

}  // namespace fsdp
