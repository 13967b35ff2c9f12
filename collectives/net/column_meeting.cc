// SPDX-License-Identifier: Apache-2.0
//
// How a meeting runs, on rank (h, l), the l-th of host h:
//   1. Send the own header to the ranks (0, l), (1, l), ... of the column, and receive theirs, into a staging slot of
//      shared memory. If it is small, send the data along: to each host the data that its ranks need from this one,
//      which is for a reduce_scatter the slices of that host's ranks, else everything.
//   2. Meet the ranks of this host, in a round of round_barrier.h. Their slots have the headers of all columns.
//   3. Compare all headers, as in a flat meeting: every rank sees the same ones, so all succeed or all fail with the
//      same text.
//   4. Take the data from the slots.
//
//   a rank's slot   | header of (0,l) | of (1,l) | ... | part of (0,l) | of (1,l) | ... |
//
// A rank that finds another spec in its column does not wait for data, whose size it cannot know. It still shares the
// headers, because the other ranks of its host need them.
//
// Missing ranks: each rank waits first for its column, then for its host. If a rank does not come, ranks of other
// columns wait for a neighbour that waits for it. That neighbour's error reaches them when it gives up, so the deadline
// of the second wait is a little later than the deadline of the first.
#include "fsdp/collectives/net/column_meeting.h"

#include <algorithm>
#include <cstring>

#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/host/reduce_rows.h"
#include "fsdp/collectives/net/meeting.h"

namespace fsdp {
namespace {

// By how much the deadline of the second wait is later: ranks that reach a collective within this time of each other
// report the same error when one is missing.
constexpr absl::Duration kHearsay = absl::Milliseconds(500);

// Parts begin on a cache line.
constexpr int64_t kLine = 64;

}  // namespace

ColumnMeeting::ColumnMeeting(NetCollectives& net, HostCollectives& host, const HostLayout& layout)
    : net_(net),
      host_(host),
      layout_(layout),
      here_(layout.host_of(net.rank())),
      column_(layout.Column(net.rank())),
      rows_(static_cast<size_t>(net.size())) {}

absl::Status ColumnMeeting::Meet(uint64_t sequence, const CollectiveSpec& spec) {
  FSDP_RETURN_IF_ERROR(ExchangeInColumn(sequence, {.spec = spec}, /*with_data=*/false));
  return ShareWithHost(sequence, spec);
}

bool ColumnMeeting::IsSmall(const CollectiveSpec& spec) const {
  const int64_t nbytes = spec.count * SizeOf(spec.dtype);
  const int64_t slot = HeaderBytes() + layout_.hosts() * PartBytes(spec);
  switch (spec.op) {
    case CollectiveOp::kAllGather:
    case CollectiveOp::kReduceScatter:
      return nbytes * net_.size() <= kEagerBytes && slot <= host_.slot_bytes();
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kBroadcast:
      return nbytes <= kEagerBytes && slot <= host_.slot_bytes();
    default:
      return false;
  }
}

absl::Status ColumnMeeting::RunSmall(uint64_t sequence, const Collective& collective) {
  FSDP_RETURN_IF_ERROR(ExchangeInColumn(sequence, collective, /*with_data=*/true));
  FSDP_RETURN_IF_ERROR(ShareWithHost(sequence, collective.spec));
  MoveSmall(collective);
  return absl::OkStatus();
}

absl::Status ColumnMeeting::ExchangeInColumn(uint64_t sequence, const Collective& collective, bool with_data) {
  std::byte* const slot = host_.OwnSlot();
  const MeetingHeader& own = net_.BeginMeeting(sequence, collective.spec);
  std::memcpy(slot + here_ * sizeof(MeetingHeader), &own, sizeof(MeetingHeader));
  bool is_alike = true;
  const auto begin = [&](int64_t step) { return step == 0 ? HeaderMessages(slot) : DataMessages(collective, slot); };
  const auto end = [&](int64_t step) -> absl::Status {
    if (step > 0 || !with_data) return absl::OkStatus();
    for (const int host : OtherHosts()) {
      is_alike &= std::memcmp(slot + host * sizeof(MeetingHeader), &own, sizeof(MeetingHeader)) == 0;
    }
    return is_alike ? absl::OkStatus() : absl::AbortedError("the column disagrees");
  };
  const absl::Status status = net_.ExchangeInSteps({.steps = with_data ? 2 : 1, .begin = begin, .end = end});
  return is_alike ? status : absl::OkStatus();  // CheckMeeting reports the disagreement
}

Messages ColumnMeeting::HeaderMessages(std::byte* slot) {
  constexpr int64_t kBytes = sizeof(MeetingHeader);
  Messages messages;
  for (const int host : OtherHosts()) {
    messages.sends.push_back({column_[host], slot + here_ * kBytes, kBytes});
    // Received straight into the slot, so that ShareWithHost copies nothing.
    messages.receives.push_back({column_[host], slot + host * kBytes, kBytes});
  }
  return messages;
}

Messages ColumnMeeting::DataMessages(const Collective& collective, std::byte* slot) {
  const CollectiveSpec& spec = collective.spec;
  const int64_t nbytes = PartBytes(spec);
  Messages messages;
  if (nbytes == 0) return messages;
  std::byte* const parts = slot + HeaderBytes();
  if (GivesPart(spec, net_.rank())) std::memcpy(parts + here_ * nbytes, PartFor(collective, here_), nbytes);
  for (const int host : OtherHosts()) {
    if (GivesPart(spec, net_.rank())) messages.sends.push_back({column_[host], PartFor(collective, host), nbytes});
    if (GivesPart(spec, column_[host])) messages.receives.push_back({column_[host], parts + host * nbytes, nbytes});
  }
  return messages;
}

absl::Status ColumnMeeting::ShareWithHost(uint64_t sequence, const CollectiveSpec& spec) {
  FSDP_RETURN_IF_ERROR(host_.ShareSlots({.op = spec.op, .sequence = sequence}, kHearsay));
  for (int r = 0; r < net_.size(); ++r) {
    const std::byte* const slot = host_.SlotOf(r % layout_.ranks_per_host());
    MeetingHeader header;
    std::memcpy(&header, slot + layout_.host_of(r) * sizeof(MeetingHeader), sizeof(header));
    net_.SetHeader(r, header);
  }
  return net_.CheckMeeting(sequence);
}

int64_t ColumnMeeting::PartBytes(const CollectiveSpec& spec) const {
  const int64_t nbytes = spec.count * SizeOf(spec.dtype);
  return spec.op == CollectiveOp::kReduceScatter ? nbytes * layout_.ranks_per_host() : nbytes;
}

const std::byte* ColumnMeeting::PartFor(const Collective& collective, int host) const {
  const bool has_slices = collective.spec.op == CollectiveOp::kReduceScatter;
  return collective.input + (has_slices ? host * PartBytes(collective.spec) : 0);
}

bool ColumnMeeting::GivesPart(const CollectiveSpec& spec, int rank) const {
  return spec.op != CollectiveOp::kBroadcast || rank == spec.root;
}

const std::byte* ColumnMeeting::PartOf(const CollectiveSpec& spec, int r) const {
  return host_.SlotOf(r % layout_.ranks_per_host()) + HeaderBytes() + layout_.host_of(r) * PartBytes(spec);
}

void ColumnMeeting::MoveSmall(const Collective& collective) {
  const CollectiveSpec& spec = collective.spec;
  const int64_t nbytes = spec.count * SizeOf(spec.dtype);
  if (nbytes == 0) return;
  if (spec.op == CollectiveOp::kBroadcast) {
    if (net_.rank() != spec.root) std::memcpy(collective.output, PartOf(spec, spec.root), nbytes);
    return;
  }
  if (spec.op == CollectiveOp::kAllGather) {
    for (int r = 0; r < net_.size(); ++r) std::memcpy(collective.output + r * nbytes, PartOf(spec, r), nbytes);
    return;
  }
  const int64_t own = spec.op == CollectiveOp::kReduceScatter ? net_.rank() % layout_.ranks_per_host() * nbytes : 0;
  for (int r = 0; r < net_.size(); ++r) rows_[r] = PartOf(spec, r) + own;
  ReduceRows(spec.dtype, spec.reduce_op, {.rows = rows_, .destination = collective.output, .numel = spec.count});
}

int64_t ColumnMeeting::HeaderBytes() const {
  const int64_t nbytes = layout_.hosts() * static_cast<int64_t>(sizeof(MeetingHeader));
  return (nbytes + kLine - 1) / kLine * kLine;
}

// Starts with the next host, so that not all send to one host at the same time.
std::vector<int> ColumnMeeting::OtherHosts() const {
  std::vector<int> others;
  for (int i = 1; i < layout_.hosts(); ++i) others.push_back((here_ + i) % layout_.hosts());
  return others;
}

}  // namespace fsdp
