// SPDX-License-Identifier: Apache-2.0
//
// A launch, on every rank; (m) is a meeting of the ranks' threads, [e] an event that the peers' streams wait for:
//
//   record [ready]  (m)  wait for all [ready]  work that reads peers' memory  record [done]  (m)  wait for all [done]
//
// The second meeting permits the reuse of the events: a rank that records one for the next collective knows that all
// peers' streams already wait for the previous recording. An all_reduce has a third meeting: each rank reduces one
// slice in place, then copies the slices of the others.
//
// The host threads meet for each launch, because pointers and events must be exchanged; they do not wait for the GPU.
// More than one rank can therefore not be captured in a graph: a replay has no host thread that could meet others.
#include "fsdp/collectives/cuda/local_cuda_communicator.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/cuda/cuda_ordinal.h"
#include "fsdp/collectives/cuda/cuda_process_group.h"
#include "fsdp/collectives/cuda/reduce_rows_cuda.h"
#include "fsdp/collectives/host/local_groups.h"
#include "fsdp/cuda/cuda_status.h"
#include "fsdp/tensor/host_device.h"

namespace fsdp {
namespace {

// The pointers and events that a rank passes to the others in a meeting.
struct Post {
  CollectiveSpec spec;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  cudaEvent_t event = nullptr;
};

// The meetings of the threads of one group.
class MeetingPlace {
 public:
  explicit MeetingPlace(int size) : size_(size) {
    for (auto& round : posts_) round.resize(static_cast<size_t>(size));
  }

  int size() const { return size_; }

  // Blocks until all ranks have posted; returns their posts, by rank. kCancelled after Leave(rank).
  absl::StatusOr<std::vector<Post>> Meet(int rank, const Post& post) {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t round = round_;
    posts_[round % 2][rank] = post;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    // Two sets of posts: a peer may post for the next round before this rank has read the posts of this round. It
    // cannot post for the round after that, which needs this rank's post for the next one.
    changed_.wait(lock, [&] { return round_ != round || left_.count(rank) > 0; });
    if (round_ == round) return absl::CancelledError("the communicator was aborted");
    return posts_[round % 2];
  }

  void Leave(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_.insert(rank);
    changed_.notify_all();
  }

  absl::Status AwaitLeave(int rank) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return left_.count(rank) > 0; });
    return absl::CancelledError("the communicator was aborted");
  }

  // The place of the subgroup of these ranks; all members get the same one.
  std::shared_ptr<MeetingPlace> Subgroup(const std::vector<int>& members) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& [place, taken] = subgroups_[members];
    if (place == nullptr) place = std::make_shared<MeetingPlace>(static_cast<int>(members.size()));
    std::shared_ptr<MeetingPlace> mine = place;
    if (++taken == members.size()) subgroups_.erase(members);
    return mine;
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  uint64_t round_ = 0;
  int arrived_ = 0;
  std::vector<Post> posts_[2];
  std::set<int> left_;
  std::map<std::vector<int>, std::pair<std::shared_ptr<MeetingPlace>, size_t>> subgroups_;
};

class LocalCudaCommunicator final : public CudaCommunicator {
 public:
  LocalCudaCommunicator(std::shared_ptr<MeetingPlace> place, int rank, std::shared_ptr<Device> device, int ordinal)
      : place_(std::move(place)), rank_(rank), size_(place_->size()), device_(std::move(device)), ordinal_(ordinal) {}

  ~LocalCudaCommunicator() override {
    for (cudaEvent_t event : {ready_, reduced_, done_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }

  absl::Status Open() {
    FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice", ordinal_));
    for (cudaEvent_t* event : {&ready_, &reduced_, &done_}) {
      FSDP_RETURN_IF_ERROR(
          CudaStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate", ordinal_));
    }
    return absl::OkStatus();
  }

  std::string_view backend() const override { return "local"; }
  bool CanAverage(DType) const override { return true; }
  bool CanCapture() const override { return size_ == 1; }
  absl::Status AsyncError() override { return absl::OkStatus(); }
  void Abort() override { place_->Leave(rank_); }
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return device_->Allocate(nbytes); }

  absl::Status Launch(absl::Span<const Collective> collectives, CUstream_st* stream) override {
    for (const Collective& collective : collectives) FSDP_RETURN_IF_ERROR(LaunchOne(collective, stream));
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<CudaCommunicator>> Split(const std::vector<int>& members,
                                                          CommunicatorPolicy /*policy*/) override {
    const auto mine = std::find(members.begin(), members.end(), rank_) - members.begin();
    auto part =
        std::make_shared<LocalCudaCommunicator>(place_->Subgroup(members), static_cast<int>(mine), device_, ordinal_);
    FSDP_RETURN_IF_ERROR(part->Open());
    return part;
  }

 private:
  absl::Status LaunchOne(const Collective& collective, CUstream_st* stream) {
    FSDP_RETURN_IF_ERROR(Meet(collective, ready_, stream));
    for (const Post& post : posts_) {
      // The watch reports the ranks that differ, and aborts the communicator.
      if (!post.spec.AgreesWith(collective.spec)) return place_->AwaitLeave(rank_);
    }
    FSDP_RETURN_IF_ERROR(Move(collective, stream));
    return Meet(collective, done_, stream);
  }

  // Records `event`, meets the others, and makes the stream wait for their events.
  absl::Status Meet(const Collective& collective, cudaEvent_t event, cudaStream_t stream) {
    FSDP_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, stream), "cudaEventRecord", ordinal_));
    FSDP_ASSIGN_OR_RETURN(posts_, place_->Meet(rank_, {collective.spec, collective.input, collective.output, event}));
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      FSDP_RETURN_IF_ERROR(
          CudaStatus(cudaStreamWaitEvent(stream, posts_[r].event, 0), "cudaStreamWaitEvent", ordinal_));
    }
    return absl::OkStatus();
  }

  absl::Status Move(const Collective& c, cudaStream_t stream) {
    const int64_t width = SizeOf(c.spec.dtype);
    const int64_t nbytes = c.spec.count * width;
    switch (c.spec.op) {
      case CollectiveOp::kAllGather:
        // Each rank starts with its own part, so that not all read one rank's memory at the same time.
        for (int i = 0; i < size_; ++i) {
          const int r = (rank_ + i) % size_;
          FSDP_RETURN_IF_ERROR(Copy(c.output + r * nbytes, posts_[r].input, nbytes, stream));
        }
        return absl::OkStatus();
      case CollectiveOp::kBroadcast:
        return Copy(c.output, posts_[c.spec.root].input, nbytes, stream);
      case CollectiveOp::kReduceScatter:
        return Reduce(c.spec, rank_ * nbytes, c.output, c.spec.count, stream);
      case CollectiveOp::kAllReduce:
        return AllReduce(c, stream);
      case CollectiveOp::kBarrier:
      case CollectiveOp::kAllGatherObject:
      case CollectiveOp::kReplay:
        break;
    }
    return absl::OkStatus();
  }

  // Rank r reduces slice r of all inputs into its own output, in place; after a meeting, each rank copies the other
  // slices from the ranks that reduced them. So every slice is summed once, and all ranks get the same bits.
  absl::Status AllReduce(const Collective& c, cudaStream_t stream) {
    const int64_t width = SizeOf(c.spec.dtype);
    const int64_t each = (c.spec.count + size_ - 1) / size_;
    const auto begin = [&](int r) { return std::min(r * each, c.spec.count); };
    const int64_t mine = begin(rank_) * width;
    FSDP_RETURN_IF_ERROR(Reduce(c.spec, mine, c.output + mine, begin(rank_ + 1) - begin(rank_), stream));
    FSDP_RETURN_IF_ERROR(Meet(c, reduced_, stream));
    for (int i = 1; i < size_; ++i) {
      const int r = (rank_ + i) % size_;
      const int64_t theirs = begin(r) * width;
      FSDP_RETURN_IF_ERROR(
          Copy(c.output + theirs, posts_[r].output + theirs, (begin(r + 1) - begin(r)) * width, stream));
    }
    return absl::OkStatus();
  }

  // Reduces the ranks' `numel` elements, starting at byte `offset` of their inputs, into `destination`.
  absl::Status Reduce(const CollectiveSpec& spec, int64_t offset, std::byte* destination, int64_t numel,
                      cudaStream_t stream) {
    std::vector<const std::byte*> rows;
    for (const Post& post : posts_) rows.push_back(post.input + offset);
    ReduceRowsOnGpu(spec.dtype, spec.reduce_op, {.rows = rows, .destination = destination, .numel = numel}, stream);
    return CudaLaunchStatus("reduce_rows", ordinal_);
  }

  absl::Status Copy(std::byte* to, const std::byte* from, int64_t nbytes, cudaStream_t stream) {
    if (to == from || nbytes == 0) return absl::OkStatus();
    return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(nbytes), cudaMemcpyDefault, stream),
                      "cudaMemcpyAsync", ordinal_);
  }

  const std::shared_ptr<MeetingPlace> place_;
  const int rank_;
  const int size_;
  const std::shared_ptr<Device> device_;
  const int ordinal_;
  cudaEvent_t ready_ = nullptr;
  cudaEvent_t reduced_ = nullptr;
  cudaEvent_t done_ = nullptr;
  std::vector<Post> posts_;  // of the last meeting
};

// Kernels and copies of GPU `from` may then use the memory of GPU `to`, which is its pool's (cuda_memory.h): access to
// a pool does not follow cudaDeviceEnablePeerAccess.
absl::Status AllowPool(int from, int to) {
  cudaMemPool_t pool;
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetDefaultMemPool(&pool, to), "cudaDeviceGetDefaultMemPool", to));
  cudaMemAccessDesc access = {};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = from;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  return CudaStatus(cudaMemPoolSetAccess(pool, &access, 1), "cudaMemPoolSetAccess", to);
}

// Peer access is set per process and per direction, and another group may have enabled it before. That is not an error
// here, but CUDA records it as one, which the last call clears.
absl::Status EnablePeerAccess(int from, int to) {
  if (from == to) return absl::OkStatus();
  int can = 0;
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaDeviceCanAccessPeer(&can, from, to), "cudaDeviceCanAccessPeer", from));
  if (can == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuda:", from, " does not reach the memory of cuda:", to, "; use one GPU, or backend nccl"));
  }
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(from), "cudaSetDevice", from));
  const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) {
    FSDP_RETURN_IF_ERROR(CudaStatus(error, "cudaDeviceEnablePeerAccess", from));
  }
  cudaGetLastError();
  return AllowPool(from, to);
}

}  // namespace

absl::StatusOr<std::vector<std::shared_ptr<CudaCommunicator>>> CreateLocalCudaCommunicators(
    const std::vector<std::shared_ptr<Device>>& devices) {
  const auto size = static_cast<int>(devices.size());
  if (size > kMaxRowsOnGpu) {
    return absl::InvalidArgumentError(
        absl::StrCat(size, " ranks, expected at most ", kMaxRowsOnGpu, " of backend local on GPUs"));
  }
  const auto place = std::make_shared<MeetingPlace>(size);
  std::vector<std::shared_ptr<CudaCommunicator>> made;
  std::set<int> ordinals;
  for (int r = 0; r < size; ++r) {
    FSDP_ASSIGN_OR_RETURN(const int ordinal, CudaOrdinal(*devices[r]));
    ordinals.insert(ordinal);
    auto communicator = std::make_shared<LocalCudaCommunicator>(place, r, devices[r], ordinal);
    FSDP_RETURN_IF_ERROR(communicator->Open());
    made.push_back(std::move(communicator));
  }
  for (const int from : ordinals) {
    for (const int to : ordinals) FSDP_RETURN_IF_ERROR(EnablePeerAccess(from, to));
  }
  return made;
}

absl::StatusOr<std::vector<std::unique_ptr<ProcessGroup>>> CreateLocalCudaGroups(
    const std::vector<std::shared_ptr<Device>>& devices, absl::Duration timeout) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<CudaCommunicator>> communicators,
                        CreateLocalCudaCommunicators(devices));
  std::vector<std::shared_ptr<Device>> hosts(devices.size());
  std::generate(hosts.begin(), hosts.end(), [] { return CreateHostDevice(); });
  std::vector<std::unique_ptr<ProcessGroup>> controls = CreateLocalGroups(hosts, timeout);
  std::vector<std::unique_ptr<ProcessGroup>> groups(devices.size());
  std::vector<absl::Status> made(devices.size());
  std::vector<std::thread> threads;
  // On a thread per rank: Create splits the control group, which blocks until all ranks do.
  for (size_t r = 0; r < devices.size(); ++r) {
    threads.emplace_back([&, r] {
      absl::StatusOr<std::unique_ptr<ProcessGroup>> group =
          CudaProcessGroup::Create(std::move(controls[r]), communicators[r], devices[r], {timeout});
      made[r] = group.status();
      if (group.ok()) groups[r] = *std::move(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : made) FSDP_RETURN_IF_ERROR(status);
  return groups;
}

}  // namespace fsdp
