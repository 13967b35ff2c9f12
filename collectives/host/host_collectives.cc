// SPDX-License-Identifier: Apache-2.0
//
// How a collective runs, on every rank:
//   1. Describe the operation and the location of this rank's data. Memory that peers reach is read in place
//      ("direct"); other memory goes through the rank's staging slots in chunks. Small data is always staged: the copy
//      costs less than the barrier it saves.
//   2. Stage the first chunk, if staged; publish the descriptor; meet the others (a round of round_barrier.h).
//   3. Compare all descriptors. Every rank sees the same ones, so all succeed or all fail with the same text.
//   4. For each chunk (a single one, if no rank is staged) move the data straight from the peers' memory or slots to
//      the output. Before each chunk but the first: stage it, and meet.
//        all_gather      copy every peer's chunk
//        broadcast       copy the root's chunk
//        reduce_scatter  reduce every rank's elements of this rank's slice, in rank order, in one pass
//        all_reduce      reduce this rank's sub-slice of the chunk, meet, copy the others'; if small, reduce it all
//   5. Meet once more if any rank was direct, since its memory may change after that. Slots need no such meeting.
//
// Bytes moved per rank, for n ranks and S bytes of the larger buffer: all_gather copies S (n-1)/n; reduce_scatter reads
// S and writes S/n; all_reduce reads S, writes S/n and copies S (n-1)/n.
#include "fsdp/collectives/host/host_collectives.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/host/reduce_rows.h"

namespace fsdp {
namespace {

// Up to this size two copies cost less than a barrier.
constexpr int64_t kEagerBytes = 16 << 10;

// Sub-slices and chunks start on cache lines, so that no two ranks write one line.
constexpr int64_t kLine = 64;

// A rank contributes `Rows` rows of spec.count elements.
int64_t Rows(const CollectiveSpec& spec, int size) { return spec.op == CollectiveOp::kReduceScatter ? size : 1; }

bool IsEager(const CollectiveSpec& spec, int size) {
  return Rows(spec, size) * spec.count * SizeOf(spec.dtype) <= kEagerBytes;
}

bool GivesData(const CollectiveSpec& spec, int rank) {
  return spec.op != CollectiveOp::kBarrier && (spec.op != CollectiveOp::kBroadcast || rank == spec.root);
}

void Copy(std::byte* destination, const std::byte* source, int64_t nbytes) {
  if (nbytes > 0 && destination != source) {
    std::memcpy(destination, source, static_cast<size_t>(nbytes));
  }
}

// This rank's contribution, in its own memory. For all_gather it is in the output already.
const std::byte* OwnData(const Collective& c, int rank) {
  return c.spec.op == CollectiveOp::kAllGather ? c.output + rank * c.spec.count * SizeOf(c.spec.dtype) : c.input;
}

}  // namespace

HostCollectives::HostCollectives(std::unique_ptr<Fabric> fabric, absl::Duration timeout, RankNames names,
                                 PeerWatch watch)
    : fabric_(std::move(fabric)),
      control_(fabric_->control()),
      rank_(fabric_->rank()),
      size_(fabric_->size()),
      barrier_(*fabric_, timeout, std::move(names), std::move(watch)),
      specs_(static_cast<size_t>(size_)),
      sources_(static_cast<size_t>(size_)),
      rows_(static_cast<size_t>(size_)) {}

absl::Status HostCollectives::Run(uint64_t sequence, const Collective& collective) {
  const CollectiveSpec& spec = collective.spec;
  id_ = {.op = spec.op, .sequence = sequence};
  if (spec.op == CollectiveOp::kAllGather) {
    Copy(const_cast<std::byte*>(OwnData(collective, rank_)), collective.input, spec.count * SizeOf(spec.dtype));
  }
  return RunRange(collective, 0, spec.count);
}

absl::Status HostCollectives::RunPart(uint64_t sequence, const Collective& collective, int64_t begin, int64_t count) {
  id_ = {.op = collective.spec.op, .sequence = sequence};
  return RunRange(collective, begin, begin + count);
}

absl::Status HostCollectives::RunHostSum(uint64_t sequence, const Collective& collective, const HostSum& sum) {
  id_ = {.op = collective.spec.op, .sequence = sequence};
  host_sum_ = &sum;
  const absl::Status status = RunRange(collective, sum.begin, sum.begin + sum.count);
  host_sum_ = nullptr;
  return status;
}

absl::Status HostCollectives::RunRange(const Collective& collective, int64_t begin, int64_t end) {
  const CollectiveSpec& spec = collective.spec;
  const Descriptor mine = Describe(collective);
  const int64_t capacity = SlotCapacity(spec);
  staged_ = GivesData(spec, rank_) && !mine.direct;
  // Before Exchange, whose barrier then makes the descriptor and the data visible together.
  if (staged_) {
    Stage(collective, {.begin = begin, .count = std::min(end - begin, capacity)});
  }
  FSDP_RETURN_IF_ERROR(Exchange(mine, OwnData(collective, rank_)));
  const int64_t step = any_staged_ ? capacity : end - begin;
  for (int64_t at = begin; at < end; at += step) {
    const Chunk chunk = {.begin = at, .count = std::min(step, end - at)};
    if (at > begin) {
      if (staged_) {
        Stage(collective, chunk);
      }
      FSDP_RETURN_IF_ERROR(Meet());
    }
    FSDP_RETURN_IF_ERROR(Move(collective, chunk));
  }
  return any_direct_ ? barrier_.Await(id_) : absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> HostCollectives::AllGatherObject(uint64_t sequence, std::string_view blob) {
  Collective collective;
  collective.spec = {.op = CollectiveOp::kAllGatherObject, .count = static_cast<int64_t>(blob.size())};
  collective.input = reinterpret_cast<const std::byte*>(blob.data());
  id_ = {.op = CollectiveOp::kAllGatherObject, .sequence = sequence};
  const int64_t capacity = fabric_->slot_bytes();
  // Blobs are always staged: their memory is the caller's and not shared.
  Stage(collective, {.begin = 0, .count = std::min(collective.spec.count, capacity)});
  FSDP_RETURN_IF_ERROR(Exchange({.spec = collective.spec}, collective.input));
  std::vector<int64_t> sizes;
  for (int r = 0; r < size_; ++r) {
    sizes.push_back(control_.rank(r).descriptors[barrier_.read_parity()].spec.count);
  }
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::string> blobs(static_cast<size_t>(size_));
  // The longest blob decides, so that all ranks take part in equally many rounds.
  for (int64_t begin = 0; begin < longest; begin += capacity) {
    if (begin > 0) {
      Stage(collective, {.begin = begin, .count = std::clamp<int64_t>(collective.spec.count - begin, 0, capacity)});
      FSDP_RETURN_IF_ERROR(Meet());
    }
    for (int r = 0; r < size_; ++r) {
      const int64_t count = std::clamp<int64_t>(sizes[r] - begin, 0, capacity);
      blobs[r].append(reinterpret_cast<const char*>(fabric_->Slot(r, barrier_.read_parity())), count);
    }
  }
  return blobs;
}

absl::StatusOr<std::unique_ptr<BlockingCollectives>> HostCollectives::Split(const std::vector<int>& members,
                                                                            const BlobGather& gather) {
  return SplitHost(members, gather, {});
}

absl::StatusOr<std::unique_ptr<HostCollectives>> HostCollectives::SplitHost(const std::vector<int>& members,
                                                                            const BlobGather& gather, RankNames names) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> part, fabric_->Split(members, gather));
  return std::make_unique<HostCollectives>(std::move(part), timeout(), std::move(names), barrier_.watch());
}

int HostCollectives::first_rank_to_give_up() const {
  return static_cast<int>(control_.group().aborted_by.load(std::memory_order_acquire)) - 1;
}

Descriptor HostCollectives::Describe(const Collective& collective) const {
  const CollectiveSpec& spec = collective.spec;
  Descriptor mine = {.spec = spec};
  if (!GivesData(spec, rank_) || IsEager(spec, size_)) {
    return mine;
  }
  const int64_t nbytes = Rows(spec, size_) * spec.count * SizeOf(spec.dtype);
  std::optional<uint64_t> address = fabric_->Publish(OwnData(collective, rank_), nbytes);
  // The output of an all_gather may not be in shared memory although its input, which has the same bytes, is.
  if (!address.has_value()) {
    address = fabric_->Publish(collective.input, nbytes);
  }
  mine.direct = address.has_value();
  mine.address = address.value_or(0);
  return mine;
}

// Publishes `mine`, meets the others, and reads their descriptors.
absl::Status HostCollectives::Exchange(const Descriptor& mine, const std::byte* own) {
  control_.rank(rank_).descriptors[barrier_.write_parity()] = mine;
  FSDP_RETURN_IF_ERROR(barrier_.Await(id_));
  FSDP_RETURN_IF_ERROR(CheckRanksAgree());
  any_direct_ = false;
  any_staged_ = false;
  for (int r = 0; r < size_; ++r) {
    const Descriptor& theirs = control_.rank(r).descriptors[barrier_.read_parity()];
    any_direct_ |= theirs.direct;
    any_staged_ |= !theirs.direct && GivesData(theirs.spec, r);
    sources_[r] = theirs.direct ? fabric_->PeerMemory(r, theirs.address) : nullptr;
  }
  sources_[rank_] = own;
  return any_direct_ ? barrier_.BeginReading(id_) : absl::OkStatus();
}

absl::Status HostCollectives::CheckRanksAgree() {
  for (int r = 0; r < size_; ++r) specs_[r] = control_.rank(r).descriptors[barrier_.read_parity()].spec;
  return CheckAgreement(specs_, id_.sequence);
}

// A further round of the running collective.
absl::Status HostCollectives::Meet() {
  FSDP_RETURN_IF_ERROR(barrier_.Await(id_));
  return any_direct_ ? barrier_.BeginReading(id_) : absl::OkStatus();
}

// Elements per row that fit into a slot.
int64_t HostCollectives::SlotCapacity(const CollectiveSpec& spec) const {
  const int64_t row_bytes = fabric_->slot_bytes() / Rows(spec, size_) / kLine * kLine;
  return row_bytes / SizeOf(spec.dtype);
}

// Copies the chunk of each row into this rank's slot, one row after the other.
void HostCollectives::Stage(const Collective& collective, const Chunk& chunk) const {
  const int64_t width = SizeOf(collective.spec.dtype);
  std::byte* const slot = fabric_->Slot(rank_, barrier_.write_parity());
  for (int64_t row = 0; row < Rows(collective.spec, size_); ++row) {
    Copy(slot + row * chunk.count * width, collective.input + (row * collective.spec.count + chunk.begin) * width,
         chunk.count * width);
  }
}

const std::byte* HostCollectives::Source(int r, int64_t direct_offset, int64_t slot_offset) const {
  return sources_[r] != nullptr ? sources_[r] + direct_offset : fabric_->Slot(r, barrier_.read_parity()) + slot_offset;
}

absl::Status HostCollectives::Move(const Collective& collective, const Chunk& chunk) {
  switch (collective.spec.op) {
    case CollectiveOp::kAllGather:
      AllGatherChunk(collective, chunk);
      return absl::OkStatus();
    case CollectiveOp::kReduceScatter:
      ReduceScatterChunk(collective, chunk);
      return absl::OkStatus();
    case CollectiveOp::kAllReduce:
      if (IsEager(collective.spec, size_)) {
        ReduceAlike(collective, chunk);
        return absl::OkStatus();
      }
      return AllReduceChunk(collective, chunk);
    case CollectiveOp::kBroadcast:
      BroadcastChunk(collective, chunk);
      return absl::OkStatus();
    case CollectiveOp::kBarrier:
    case CollectiveOp::kAllGatherObject:
    case CollectiveOp::kReplay:
      break;
  }
  return absl::InternalError(absl::StrCat(id_.ToString(), " moves no chunks"));
}

// Each rank starts with its successor, so that not all read one rank's memory at the same time.
void HostCollectives::AllGatherChunk(const Collective& collective, const Chunk& chunk) const {
  const int64_t width = SizeOf(collective.spec.dtype);
  for (int i = 1; i < size_; ++i) {
    const int peer = (rank_ + i) % size_;
    Copy(collective.output + (peer * collective.spec.count + chunk.begin) * width, Source(peer, chunk.begin * width, 0),
         chunk.count * width);
  }
}

void HostCollectives::BroadcastChunk(const Collective& collective, const Chunk& chunk) const {
  const int64_t width = SizeOf(collective.spec.dtype);
  if (rank_ != collective.spec.root) {
    // sources_[rank_] is this rank's own t; the root's is another entry.
    Copy(collective.output + chunk.begin * width, Source(collective.spec.root, chunk.begin * width, 0),
         chunk.count * width);
  }
}

void HostCollectives::ReduceScatterChunk(const Collective& collective, const Chunk& chunk) {
  const CollectiveSpec& spec = collective.spec;
  const int64_t width = SizeOf(spec.dtype);
  rows_.resize(static_cast<size_t>(size_));
  for (int r = 0; r < size_; ++r) {
    rows_[r] = Source(r, (rank_ * spec.count + chunk.begin) * width, rank_ * chunk.count * width);
  }
  if (host_sum_ != nullptr) {
    for (const std::byte* row : host_sum_->rows_after) rows_.push_back(row + (chunk.begin - host_sum_->begin) * width);
  }
  Reduction reduction = {.rows = rows_, .destination = collective.output + chunk.begin * width, .numel = chunk.count};
  if (host_sum_ != nullptr) {
    const int64_t offset = chunk.begin - host_sum_->begin;
    const int64_t sum_width = SumSizeOf(spec.dtype);
    reduction.destination = host_sum_->destination + offset * (host_sum_->is_continued ? sum_width : width);
    reduction.sum_before = host_sum_->sum_before == nullptr ? nullptr : host_sum_->sum_before + offset * sum_width;
    reduction.is_continued = host_sum_->is_continued;
    reduction.rows_in_all = host_sum_->ranks_in_all;
  }
  ReduceRows(spec.dtype, spec.reduce_op, reduction);
}

// The part of the chunk that rank `r` reduces.
HostCollectives::Chunk HostCollectives::SubSlice(const CollectiveSpec& spec, const Chunk& chunk, int r) const {
  const int64_t unit = kLine / SizeOf(spec.dtype);
  const int64_t each = ((chunk.count + size_ - 1) / size_ + unit - 1) / unit * unit;
  const int64_t begin = std::min(r * each, chunk.count);
  return {.begin = begin, .count = std::min(each, chunk.count - begin)};
}

absl::Status HostCollectives::AllReduceChunk(const Collective& collective, const Chunk& chunk) {
  const CollectiveSpec& spec = collective.spec;
  const int64_t width = SizeOf(spec.dtype);
  std::byte* const t = collective.output + chunk.begin * width;
  const Chunk mine = SubSlice(spec, chunk, rank_);
  for (int r = 0; r < size_; ++r) {
    rows_[r] = Source(r, (chunk.begin + mine.begin) * width, mine.begin * width);
  }
  // A staged sum goes into the slot for the next round, which peers do not read before Meet.
  std::byte* const sum = (staged_ ? fabric_->Slot(rank_, barrier_.write_parity()) : t) + mine.begin * width;
  ReduceRows(spec.dtype, spec.reduce_op, {.rows = rows_, .destination = sum, .numel = mine.count});
  FSDP_RETURN_IF_ERROR(Meet());
  for (int i = 0; i < size_; ++i) {
    const int r = (rank_ + i) % size_;
    const Chunk theirs = SubSlice(spec, chunk, r);
    const std::byte* const source =
        r == rank_ ? sum : Source(r, (chunk.begin + theirs.begin) * width, theirs.begin * width);
    Copy(t + theirs.begin * width, source, theirs.count * width);
  }
  return absl::OkStatus();
}

// Every rank reduces the whole chunk, from slots, in the same order: one round, and the same bits everywhere.
void HostCollectives::ReduceAlike(const Collective& collective, const Chunk& chunk) {
  for (int r = 0; r < size_; ++r) {
    rows_[r] = Source(r, 0, 0);
  }
  ReduceRows(collective.spec.dtype, collective.spec.reduce_op,
             {.rows = rows_, .destination = collective.output, .numel = chunk.count});
}

}  // namespace fsdp
