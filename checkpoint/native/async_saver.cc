// SPDX-License-Identifier: Apache-2.0
//
// Two threads: the caller's and one worker. Save waits for the save before, places every tensor of the state in the
// arena (Stage), copies, and hands a Pending to the worker; the worker runs SaveCheckpoint on it and leaves the result
// in last_, for the next Save or Wait. The arena needs no lock: the caller, or on a GPU the copying stream, writes to
// it only until Pending::copied, which the worker awaits.
//
// Throttling. Training on all cores loses what the writers take, and all ranks wait for the slowest, so the writers run
// niced and with a bounded share of a core (base/thread_pool.h). That makes a save slower on purpose, which is wrong as
// soon as a caller waits for it: Wait lifts the bound of the running save, and each Save that had to wait doubles the
// bound of the later ones, so that saving adapts to how often it is requested.
#include "fsdp/checkpoint/native/async_saver.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/base/streaming_copy.h"
#include "fsdp/checkpoint/native/native_checkpoint.h"
#include "fsdp/tensor/packed_copies.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {
namespace {

// Tensors begin at multiples of it in the arena, so that direct I/O takes them from there without another copy.
constexpr int64_t kAlignment = 512;

// The bytes that one copying thread takes at a time.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

int64_t Aligned(int64_t nbytes) { return (nbytes + kAlignment - 1) / kAlignment * kAlignment; }

// The room that the tensors of `state` take in the arena, those for which `counts`.
template <typename F>
int64_t ArenaBytes(const StateDict& state, F counts) {
  int64_t nbytes = 0;
  for (const auto& [key, value] : state.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    for (const ShardedTensor::Shard& shard : tensor->shards) {
      if (counts(shard.data)) nbytes += Aligned(shard.data.nbytes());
    }
  }
  return nbytes;
}

// The share of one core's time for all writing threads on all ranks. Training on the host loses about this plus the
// time of the disk's driver: together below 5 %.
constexpr double kShareBesideHost = 0.03;

// Shorter waits do not count as back-pressure.
constexpr absl::Duration kShortWait = absl::Milliseconds(10);

std::string MiB(int64_t nbytes) { return absl::StrCat((nbytes + (1 << 20) - 1) >> 20, " MiB"); }

std::string Percent(double share) { return absl::StrCat(std::round(1000 * share) / 10, " %"); }

}  // namespace

absl::StatusOr<std::unique_ptr<AsyncSaver>> AsyncSaver::Create(std::string root, ProcessGroup& group,
                                                               const AsyncSaverOptions& options) {
  // A group of its own: the worker's collectives must not mix with those that training issues at the same time.
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> own, group.Split(0, group.rank()));
  std::unique_ptr<AsyncSaver> saver(new AsyncSaver(std::move(root), std::move(own), group.device(), options));
  FSDP_ASSIGN_OR_RETURN(saver->copiers_, ThreadPool::Create(options.copy_threads, "checkpoint-stage"));
  double& share = saver->processor_share_;
  if (share == 0) share = saver->on_gpu() ? 1 : kShareBesideHost;
  if (!(share > 0 && share <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("AsyncSaverOptions::processor_share is ", share, ", expected 0, or more than 0 up to 1"));
  }
  saver->worker_ = std::thread([saver = saver.get()] { saver->Work(); });
  return saver;
}

AsyncSaver::AsyncSaver(std::string root, std::unique_ptr<ProcessGroup> group, std::shared_ptr<Device> device,
                       const AsyncSaverOptions& options)
    : root_(std::move(root)),
      group_(std::move(group)),
      device_(std::move(device)),
      options_(options),
      processor_share_(options.processor_share) {}

AsyncSaver::~AsyncSaver() {
  if (!worker_.joinable()) return;
  (void)Wait();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

absl::StatusOr<AsyncSaveReport> AsyncSaver::Save(const StateDict& state, int64_t step, Stream* computed) {
  AsyncSaveReport report;
  const absl::Time start = SteadyNow();
  FSDP_RETURN_IF_ERROR(Wait().status());
  report.waited = SteadyNow() - start;
  auto pending = std::make_unique<Pending>();
  FSDP_ASSIGN_OR_RETURN(pending->state, Stage(state, report));
  FSDP_RETURN_IF_ERROR(on_gpu() ? CopyFromGpu(computed, report) : CopyOnHost());
  // The copying stream still reads the caller's tensors, which the caller may drop as soon as Save returns.
  if (on_gpu()) pending->source = state;
  pending->copied = report.copied;
  pending->step = step;
  if (report.waited > kShortWait) {
    const double share = std::exchange(processor_share_, std::min(1.0, 2 * processor_share_));
    report.note = absl::StrCat("the save of step ", step, " waited ", absl::FormatDuration(report.waited),
                               " for the one before; ",
                               share < 1 ? absl::StrCat("it is written with up to ", Percent(processor_share_),
                                                        " of a core, the one before was with ", Percent(share))
                                         : "save less often, or to a faster disk");
  }
  pending->processor_share = processor_share_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    pending_ = std::move(pending);
  }
  changed_.notify_all();
  if (report.unstaged_bytes > 0) {
    // The caller's tensors must stay as they are until they are on disk.
    FSDP_RETURN_IF_ERROR(Wait().status());
    absl::StrAppend(&report.note, report.note.empty() ? "" : "; ", MiB(report.unstaged_bytes), " of ",
                    MiB(report.unstaged_bytes + report.staged_bytes), " did not fit into the staging arena of ",
                    MiB(arena_.nbytes()), ", so the save of step ", step, " was waited for");
  }
  report.blocked = SteadyNow() - start;
  return report;
}

absl::StatusOr<std::string> AsyncSaver::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (pending_ != nullptr) {
    if (writers_ != nullptr) std::exchange(writers_, nullptr)->Boost();
    changed_.wait(lock);
  }
  absl::StatusOr<std::string> last = last_;
  // An error is returned once: the next Save may start anew.
  if (!last.ok()) last_ = std::string();
  return last;
}

absl::StatusOr<StateDict> AsyncSaver::Stage(const StateDict& state, AsyncSaveReport& report) {
  if (!arena_) {
    if (on_gpu()) {
      FSDP_ASSIGN_OR_RETURN(copying_, device_->CreateStream("checkpoint-stage"));
      packed_ = std::make_unique<PackedCopies>(*copying_);
    }
    const int64_t nbytes =
        options_.staging_bytes > 0 ? options_.staging_bytes : ArenaBytes(state, [](const Tensor&) { return true; });
    FSDP_ASSIGN_OR_RETURN(arena_, device_->AllocatePinned(nbytes));
    // Touching pages for the first time costs more than the copy itself; done here, only the first save pays for it.
    std::memset(arena_.data(), 0, arena_.nbytes());
  }
  StateDict staged;
  staged.type = state.type;
  staged.aliases = state.aliases;
  staged.units = state.units;
  staged.attributes = state.attributes;
  // A Stage that ran out of pinned memory has left copies of tensors that the caller may have freed since.
  copies_.clear();
  small_.clear();
  // A GPU's small tensors are next to each other at the beginning of the arena, so that few copies move them.
  const auto is_small = [&](const Tensor& t) {
    return on_gpu() && t.device() == device_->id() && PackedCopies::IsSmall(t.nbytes());
  };
  int64_t used_by_small = 0, used = ArenaBytes(state, is_small);
  for (const auto& [key, value] : state.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) {
      staged.Set(key, value);
      continue;
    }
    ShardedTensor copied = *tensor;
    for (ShardedTensor::Shard& shard : copied.shards) {
      const int64_t nbytes = shard.data.nbytes();
      const bool packed = is_small(shard.data);
      FSDP_ASSIGN_OR_RETURN(const Buffer place, Place(nbytes, packed ? used_by_small : used));
      if (!place) {
        report.unstaged_bytes += nbytes;
        continue;
      }
      if (packed && IsInArena(place)) {
        small_.push_back({shard.data, place.data() - arena_.data()});
      } else {
        AddCopies(shard.data, place);
      }
      shard.data = Tensor(place, shard.data.dtype(), shard.data.shape());
      report.staged_bytes += nbytes;
    }
    staged.Set(key, std::move(copied));
  }
  return staged;
}

// The next `nbytes` of the arena, after the first `used`. When it is full: on the host null, and the tensor is written
// from the caller's memory; on a GPU, whose memory cannot be written from, pinned memory for this save.
absl::StatusOr<Buffer> AsyncSaver::Place(int64_t nbytes, int64_t& used) {
  if (used + nbytes <= arena_.nbytes()) {
    Buffer place = arena_.Slice(used, nbytes);
    used += Aligned(nbytes);
    return place;
  }
  return on_gpu() ? device_->AllocatePinned(nbytes) : Buffer();
}

bool AsyncSaver::IsInArena(const Buffer& place) const {
  return place.data() >= arena_.data() && place.data() < arena_.data() + arena_.nbytes();
}

// On the host in pieces, which the threads share.
void AsyncSaver::AddCopies(const Tensor& source, const Buffer& place) {
  const int64_t nbytes = source.nbytes(), piece = on_gpu() ? nbytes : kPieceBytes;
  for (int64_t at = 0; at < nbytes; at += piece) {
    copies_.push_back({place.data() + at, source.data_as<const std::byte>() + at, std::min(piece, nbytes - at)});
  }
}

absl::Status AsyncSaver::CopyOnHost() {
  const std::vector<Copy> copies = std::exchange(copies_, {});
  return copiers_->ParallelFor(static_cast<int64_t>(copies.size()), [&](int64_t i) {
    StreamingCopy(copies[i].to, copies[i].from, copies[i].nbytes);
    return absl::OkStatus();
  });
}

absl::Status AsyncSaver::CopyFromGpu(Stream* computed, AsyncSaveReport& report) {
  if (computed != nullptr) copying_->Wait(computed->Record());
  std::vector<PackedCopies::Slot> slots;
  for (const SmallCopy& copy : std::exchange(small_, {})) slots.push_back({copy.from, copy.to});
  FSDP_RETURN_IF_ERROR(packed_->ToHost(slots, arena_));
  for (const Copy& copy : std::exchange(copies_, {})) copying_->CopyAsync(copy.to, copy.from, copy.nbytes);
  report.copied = copying_->Record();
  return computed != nullptr ? absl::OkStatus() : report.copied.Synchronize();
}

void AsyncSaver::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return pending_ != nullptr || closing_; });
    if (pending_ == nullptr) return;
    Pending& pending = *pending_;
    lock.unlock();
    absl::StatusOr<std::string> saved = SavePending(pending);
    if (!saved.ok()) {
      saved = Annotate(saved.status(), absl::StrCat("the background save of step ", pending.step, " failed"));
    }
    lock.lock();
    last_ = std::move(saved);
    pending_.reset();
    changed_.notify_all();
  }
}

absl::StatusOr<std::string> AsyncSaver::SavePending(Pending& pending) {
  SaveOptions save = options_.save;
  if (options_.incremental && !base_.empty()) save.base = base_;
  const absl::Status copied = on_gpu() ? AllReduceStatus(*group_, pending.copied.Synchronize()) : absl::OkStatus();
  pending.source = StateDict();
  FSDP_RETURN_IF_ERROR(copied);
  // New writers for each save, since throttling that was lifted stays lifted. If the system has no threads left,
  // SaveCheckpoint tries again to create some and reports the error on all ranks. This thread itself hardly computes
  // and keeps the niceness of its creator.
  const ThreadPool::BackgroundOptions at = BackgroundOptionsOf(pending);
  absl::StatusOr<std::unique_ptr<ThreadPool>> writers =
      ThreadPool::CreateBackground(save.io_threads, "checkpoint-io", at);
  save.pool = writers.ok() ? writers->get() : nullptr;
  if (at.nice > 0 || at.processor_share < 1) SetWriters(save.pool);
  absl::StatusOr<std::string> saved = SaveCheckpoint(pending.state, root_, pending.step, *group_, save);
  SetWriters(nullptr);
  FSDP_RETURN_IF_ERROR(saved.status());
  base_ = *saved;
  if (options_.committed) {
    const absl::Status status = group_->rank() == 0 ? options_.committed(*saved) : absl::OkStatus();
    FSDP_RETURN_IF_ERROR(AllReduceStatus(*group_, status));
  }
  return saved;
}

ThreadPool::BackgroundOptions AsyncSaver::BackgroundOptionsOf(const Pending& pending) const {
  ThreadPool::BackgroundOptions background = {.nice = options_.nice, .processor_share = pending.processor_share};
  if (options_.processor_share == 0 && !on_gpu()) {
    const int writers = pending.state.type == StateDictType::kFull ? 1 : group_->size();
    background.processor_share /= writers * std::max(1, options_.save.io_threads);
  }
  // Ranks that have written wait for the others in a collective, which must not run into its timeout.
  const absl::Duration timeout = group_->timeout();
  if (timeout < absl::InfiniteDuration()) background.throttle_for = absl::ToChronoNanoseconds(timeout / 4);
  return background;
}

void AsyncSaver::SetWriters(ThreadPool* writers) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    writers_ = writers;
  }
  changed_.notify_all();
}

}  // namespace fsdp
