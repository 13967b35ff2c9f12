// SPDX-License-Identifier: Apache-2.0
//
// How a collective runs, on every rank:
//   1. Meet: send a header of 32 bytes, which describes the next collective, to every other rank, and receive theirs.
//      Every rank compares all of them, so all succeed or all fail with the same text, and each knows which ranks have
//      not come. This is the barrier, and the check that no rank gave up.
//      Up to kEagerBytes the data are sent along with the headers, into receives that are already posted: one wait for
//      the network instead of two. If ranks disagree, the outputs may then have been written.
//   2. Move, without further agreement, since all know all sizes now:
//        all_gather      own shard to every rank, theirs straight into place
//        broadcast       the root's tensor to every rank
//        reduce_scatter  own slices to their owners, piece by piece; the owner adds the ranks' pieces in rank order
//        all_reduce      the same with sub-slices of a piece, then an all_gather of them; if small, everything to all
//        blobs           as all_gather, each with the size in its header
//
// Bytes sent per rank, for n ranks and S bytes of the larger buffer: all_gather and reduce_scatter S (n-1)/n,
// all_reduce twice that, the root of broadcast S (n-1); and n - 1 headers. A ring would send as much.
//
// Pieces bound the memory: a rank receives at most kScratchBytes before it adds. They overlap: while a rank adds the
// pieces that have arrived, the next ones arrive, and the ones after them have their receives posted.
#include "fsdp/collectives/net/net_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/host/reduce_rows.h"
#include "fsdp/collectives/net/meeting.h"

namespace fsdp {
namespace {

// The bytes that reductions receive at a time: at most 2 MiB from each peer, which is long compared with the gaps
// between pieces, and short enough for the sum of the last piece, which nothing overlaps; and at most 64 MiB from all
// peers together.
constexpr int64_t kPieceBytes = 2 << 20;
constexpr int64_t kScratchBytes = 64 << 20;

// Rows of the scratch memory begin on cache lines.
constexpr int64_t kLine = 64;

// Blobs are plans and digests; a larger size from a peer counts as damage, and is refused before memory is allocated.
constexpr int64_t kMaxBlobBytes = 1 << 30;

// How long to wait for the verdict of the watch after a connection broke.
constexpr absl::Duration kVerdict = absl::Milliseconds(250);

void Copy(std::byte* destination, const std::byte* source, int64_t nbytes) {
  if (nbytes > 0 && destination != source) {
    std::memcpy(destination, source, static_cast<size_t>(nbytes));
  }
}

// Transports carry messages of at least one byte; both sides know which messages are empty.
void Add(std::vector<Send>& sends, const Send& send) {
  if (send.nbytes > 0) sends.push_back(send);
}

void Add(std::vector<Receive>& receives, const Receive& receive) {
  if (receive.nbytes > 0) receives.push_back(receive);
}

}  // namespace

NetCollectives::NetCollectives(std::unique_ptr<Transport> transport, std::shared_ptr<Device> device, NetOptions options)
    : transport_(std::move(transport)),
      device_(std::move(device)),
      options_(std::move(options)),
      rank_(transport_->rank()),
      size_(transport_->size()),
      headers_(static_cast<size_t>(size_)),
      specs_(static_cast<size_t>(size_)),
      rows_(static_cast<size_t>(size_)) {}

absl::StatusOr<Buffer> NetCollectives::Allocate(int64_t nbytes) {
  FSDP_ASSIGN_OR_RETURN(Buffer buffer, device_->Allocate(nbytes));
  if (nbytes > 0) {
    std::memset(buffer.data(), 0, static_cast<size_t>(nbytes));
  }
  return buffer;
}

absl::Status NetCollectives::Run(uint64_t sequence, const Collective& collective) {
  if (IsSmall(collective.spec)) {
    FSDP_RETURN_IF_ERROR(RunSmall(sequence, collective));
  } else {
    FSDP_RETURN_IF_ERROR(Meet(sequence, collective.spec));
    FSDP_RETURN_IF_ERROR(Move(collective));
  }
  Complete();
  return absl::OkStatus();
}

absl::Status NetCollectives::Meet(uint64_t sequence, const CollectiveSpec& spec) {
  FSDP_RETURN_IF_ERROR(Exchange(HeaderMessages(sequence, spec)));
  return CheckMeeting(sequence);
}

const MeetingHeader& NetCollectives::BeginMeeting(uint64_t sequence, const CollectiveSpec& spec) {
  id_ = {.op = spec.op, .sequence = sequence};
  return headers_[rank_] = MeetingHeader::Of(sequence, spec);
}

Messages NetCollectives::HeaderMessages(uint64_t sequence, const CollectiveSpec& spec) {
  BeginMeeting(sequence, spec);
  Messages messages;
  for (const int peer : Others()) {
    messages.sends.push_back({peer, reinterpret_cast<const std::byte*>(&headers_[rank_]), sizeof(MeetingHeader)});
    messages.receives.push_back({peer, reinterpret_cast<std::byte*>(&headers_[peer]), sizeof(MeetingHeader)});
  }
  return messages;
}

// Disagreement has precedence: all ranks have the headers, so they all return this error, even if another rank has
// already given up because of it.
absl::Status NetCollectives::CheckMeeting(uint64_t sequence) {
  for (int r = 0; r < size_; ++r) {
    absl::StatusOr<CollectiveSpec> theirs = headers_[r].ToSpec(r, sequence);
    FSDP_RETURN_IF_ERROR(Annotate(theirs.status(), absl::StrCat("rank ", rank_, " of ", size_, ": ", id_.ToString())));
    specs_[r] = *theirs;
  }
  FSDP_RETURN_IF_ERROR(CheckAgreement(specs_, sequence));
  return transport_->CheckNobodyGaveUp(id_);
}

bool NetCollectives::IsSmall(const CollectiveSpec& spec) const {
  const int64_t nbytes = spec.count * SizeOf(spec.dtype);
  switch (spec.op) {
    case CollectiveOp::kAllGather:
    case CollectiveOp::kReduceScatter:
      return nbytes * size_ <= kEagerBytes;
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kBroadcast:
      return nbytes <= kEagerBytes;
    default:
      return false;
  }
}

absl::Status NetCollectives::RunSmall(uint64_t sequence, const Collective& collective) {
  const auto begin = [&](int64_t step) {
    return step == 0 ? HeaderMessages(sequence, collective.spec) : SmallMessages(collective);
  };
  const auto end = [&](int64_t step) {
    if (step == 0) return CheckMeeting(sequence);
    ReduceSmall(collective);
    return absl::OkStatus();
  };
  return ExchangeInSteps({.steps = 2, .begin = begin, .end = end});
}

Messages NetCollectives::SmallMessages(const Collective& collective) {
  const CollectiveSpec& spec = collective.spec;
  if (spec.op == CollectiveOp::kAllGather) return GatherMessages(collective);
  if (spec.op == CollectiveOp::kBroadcast) return BroadcastMessages(collective);
  const int64_t nbytes = spec.count * SizeOf(spec.dtype);
  Messages messages;
  for (const int peer : Others()) {
    const int64_t offset = spec.op == CollectiveOp::kReduceScatter ? peer * nbytes : 0;
    Add(messages.sends, {peer, collective.input + offset, nbytes});
    Add(messages.receives, {peer, Scratch(peer, size_, nbytes), nbytes});
  }
  return messages;
}

void NetCollectives::ReduceSmall(const Collective& collective) {
  const CollectiveSpec& spec = collective.spec;
  if (spec.op == CollectiveOp::kAllGather || spec.op == CollectiveOp::kBroadcast) return;
  const int64_t nbytes = spec.count * SizeOf(spec.dtype);
  const int64_t own = spec.op == CollectiveOp::kReduceScatter ? rank_ * nbytes : 0;
  for (int r = 0; r < size_; ++r) {
    // The own row is read from the input: it is the only one that was not received.
    rows_[r] = r == rank_ ? collective.input + own : Scratch(r, size_, nbytes);
  }
  ReduceRows(spec.dtype, spec.reduce_op, {.rows = rows_, .destination = collective.output, .numel = spec.count});
}

absl::Status NetCollectives::Exchange(absl::Span<const Send> sends, absl::Span<const Receive> receives) {
  return OrVerdict(transport_->Exchange(sends, receives, id_, options_.timeout));
}

absl::Status NetCollectives::ExchangeInSteps(const Pipeline& pipeline) {
  return OrVerdict(transport_->ExchangeInSteps(pipeline, id_, options_.timeout));
}

absl::Status NetCollectives::OrVerdict(const absl::Status& status) const {
  if (absl::IsUnavailable(status) && options_.watch != nullptr) {
    const absl::Status verdict = options_.watch(kVerdict);
    if (!verdict.ok()) {
      return Annotate(verdict, absl::StrCat("rank ", rank_, " of ", size_, ": ", id_.ToString()));
    }
  }
  return status;
}

absl::Status NetCollectives::Move(const Collective& collective) {
  switch (collective.spec.op) {
    case CollectiveOp::kAllGather:
      return Exchange(GatherMessages(collective));
    case CollectiveOp::kReduceScatter:
      return ReduceScatter(collective);
    case CollectiveOp::kAllReduce:
      return AllReduce(collective);
    case CollectiveOp::kBroadcast:
      return Exchange(BroadcastMessages(collective));
    case CollectiveOp::kBarrier:
      return absl::OkStatus();
    // Blobs go through MoveBlobs, and replays exist on GPUs only.
    case CollectiveOp::kAllGatherObject:
    case CollectiveOp::kReplay:
      break;
  }
  return absl::InternalError(absl::StrCat(id_.ToString(), " moves no elements"));
}

Messages NetCollectives::GatherMessages(const Collective& collective) const {
  const int64_t nbytes = collective.spec.count * SizeOf(collective.spec.dtype);
  std::byte* const own = collective.output + rank_ * nbytes;
  Copy(own, collective.input, nbytes);
  Messages messages;
  for (const int peer : Others()) {
    Add(messages.sends, {peer, own, nbytes});
    Add(messages.receives, {peer, collective.output + peer * nbytes, nbytes});
  }
  return messages;
}

Messages NetCollectives::BroadcastMessages(const Collective& collective) const {
  const int64_t nbytes = collective.spec.count * SizeOf(collective.spec.dtype);
  const int root = collective.spec.root;
  Messages messages;
  if (rank_ == root) {
    for (const int peer : Others()) Add(messages.sends, {peer, collective.input, nbytes});
  } else {
    Add(messages.receives, {root, collective.output, nbytes});
  }
  return messages;
}

absl::Status NetCollectives::ReduceScatter(const Collective& collective) {
  const CollectiveSpec& spec = collective.spec;
  const int64_t width = SizeOf(spec.dtype);
  const int64_t piece = std::min(PieceCount(spec.dtype), spec.count);
  const auto count = [&](int64_t step) { return std::min(piece, spec.count - step * piece); };
  const auto slice = [&](int r, int64_t step) { return collective.input + (r * spec.count + step * piece) * width; };
  const auto row = [&](int r, int64_t step) { return ScratchOfStep(step, r, piece * width); };
  const auto begin = [&](int64_t step) {
    Messages messages;
    for (const int peer : Others()) {
      messages.sends.push_back({peer, slice(peer, step), count(step) * width});
      messages.receives.push_back({peer, row(peer, step), count(step) * width});
    }
    return messages;
  };
  const auto end = [&](int64_t step) {
    for (int r = 0; r < size_; ++r) {
      rows_[r] = r == rank_ ? slice(rank_, step) : row(r, step);
    }
    ReduceRows(spec.dtype, spec.reduce_op,
               {.rows = rows_, .destination = collective.output + step * piece * width, .numel = count(step)});
    return absl::OkStatus();
  };
  return ExchangeInSteps({.steps = spec.count == 0 ? 0 : (spec.count + piece - 1) / piece, .begin = begin, .end = end});
}

// A chunk is as many sub-slices as there are ranks; the last ones of a chunk may be shorter or empty. The sums of a
// chunk are sent in the first step that begins after they have been computed.
absl::Status NetCollectives::AllReduce(const Collective& collective) {
  const CollectiveSpec& spec = collective.spec;
  const int64_t width = SizeOf(spec.dtype);
  if (IsSmall(spec)) {
    FSDP_RETURN_IF_ERROR(Exchange(SmallMessages(collective)));
    ReduceSmall(collective);
    return absl::OkStatus();
  }
  const int64_t piece = std::min(PieceCount(spec.dtype), (spec.count + size_ - 1) / size_);
  const int64_t most = piece * size_;
  const int64_t chunks = (spec.count + most - 1) / most;
  // The start of the part that rank `r` reduces; the start of rank r + 1's part is its end.
  const auto part = [&](int64_t chunk, int r) {
    const int64_t count = std::min(most, spec.count - chunk * most);
    const int64_t each = (count + size_ - 1) / size_;
    return collective.output + (chunk * most + std::min(r * each, count)) * width;
  };
  const auto nbytes = [&](int64_t chunk, int r) { return part(chunk, r + 1) - part(chunk, r); };
  const auto row = [&](int r, int64_t step) { return ScratchOfStep(step, r, piece * width); };
  const auto begin = [&](int64_t step) {
    Messages messages;
    const int64_t summed = step - kStepsUnderWay;
    for (const int peer : Others()) {
      if (step < chunks) {
        Add(messages.sends, {peer, part(step, peer), nbytes(step, peer)});
        Add(messages.receives, {peer, row(peer, step), nbytes(step, rank_)});
      }
      if (summed >= 0) {
        Add(messages.sends, {peer, part(summed, rank_), nbytes(summed, rank_)});
        Add(messages.receives, {peer, part(summed, peer), nbytes(summed, peer)});
      }
    }
    return messages;
  };
  const auto end = [&](int64_t step) {
    if (step >= chunks) return absl::OkStatus();
    for (int r = 0; r < size_; ++r) {
      rows_[r] = r == rank_ ? part(step, rank_) : row(r, step);
    }
    ReduceRows(spec.dtype, spec.reduce_op,
               {.rows = rows_, .destination = part(step, rank_), .numel = nbytes(step, rank_) / width});
    return absl::OkStatus();
  };
  return ExchangeInSteps({.steps = chunks + kStepsUnderWay, .begin = begin, .end = end});
}

absl::StatusOr<std::vector<std::string>> NetCollectives::AllGatherObject(uint64_t sequence, std::string_view blob) {
  FSDP_RETURN_IF_ERROR(
      Meet(sequence, {.op = CollectiveOp::kAllGatherObject, .count = static_cast<int64_t>(blob.size())}));
  return MoveBlobs(blob);
}

absl::StatusOr<std::vector<std::string>> NetCollectives::MoveBlobs(std::string_view blob) {
  std::vector<std::string> blobs(static_cast<size_t>(size_));
  for (int r = 0; r < size_; ++r) {
    if (specs_[r].count > kMaxBlobBytes) {
      return absl::ResourceExhaustedError(absl::StrCat("rank ", rank_, " of ", size_, ": ", id_.ToString(),
                                                       ": the blob of rank ", r, " has ", specs_[r].count,
                                                       " bytes, at most ", kMaxBlobBytes, " are taken"));
    }
    blobs[r].resize(static_cast<size_t>(specs_[r].count));
  }
  blobs[rank_] = blob;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const int peer : Others()) {
    Add(sends, {peer, reinterpret_cast<const std::byte*>(blob.data()), static_cast<int64_t>(blob.size())});
    Add(receives, {peer, reinterpret_cast<std::byte*>(blobs[peer].data()), specs_[peer].count});
  }
  FSDP_RETURN_IF_ERROR(Exchange(sends, receives));
  Complete();
  return blobs;
}

absl::StatusOr<std::unique_ptr<BlockingCollectives>> NetCollectives::Split(const std::vector<int>& members,
                                                                           const BlobGather& gather) {
  return SplitNet(members, gather);
}

absl::StatusOr<std::unique_ptr<NetCollectives>> NetCollectives::SplitNet(const std::vector<int>& members,
                                                                         const BlobGather& gather) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Transport> part, transport_->Split(members, gather));
  return std::make_unique<NetCollectives>(std::move(part), device_, options_);
}

void NetCollectives::GiveUp(const absl::Status& reason) {
  transport_->Tell(
      {.kind = Notice::Kind::kGaveUp, .sequence = completed_.load(std::memory_order_relaxed) + 1, .reason = reason});
}

void NetCollectives::Depart() { transport_->Tell({.kind = Notice::Kind::kLeft}); }

std::vector<int> NetCollectives::Others() const {
  std::vector<int> others;
  for (int i = 1; i < size_; ++i) others.push_back((rank_ + i) % size_);
  return others;
}

// The first call makes room for all rows, so that growing never moves memory of messages under way.
std::byte* NetCollectives::Scratch(int64_t row, int64_t rows, int64_t stride) {
  const int64_t distance = (stride + kLine - 1) / kLine * kLine;
  if (scratch_.size() < static_cast<size_t>(distance * rows)) scratch_.resize(static_cast<size_t>(distance * rows));
  return scratch_.data() + row * distance;
}

std::byte* NetCollectives::ScratchOfStep(int64_t step, int r, int64_t stride) {
  return Scratch(step % kStepsUnderWay * size_ + r, kStepsUnderWay * size_, stride);
}

int64_t NetCollectives::PieceCount(DType dtype) const {
  return std::max(kLine, std::min(kPieceBytes, kScratchBytes / size_ / kStepsUnderWay)) / SizeOf(dtype);
}

}  // namespace fsdp
