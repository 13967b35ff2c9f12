// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/meeting.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr auto kLastOp = static_cast<uint8_t>(CollectiveOp::kReplay);
constexpr auto kLastReduceOp = static_cast<uint8_t>(ReduceOp::kMax);

}  // namespace

MeetingHeader MeetingHeader::Of(uint64_t sequence, const CollectiveSpec& spec) {
  return {.op = static_cast<uint8_t>(spec.op),
          .dtype = static_cast<uint8_t>(spec.dtype),
          .reduce_op = static_cast<uint8_t>(spec.reduce_op),
          .root = spec.root,
          .sequence = sequence,
          .count = spec.count};
}

absl::StatusOr<CollectiveSpec> MeetingHeader::ToSpec(int peer, uint64_t wanted_sequence) const {
  if (magic != kMagic || op > kLastOp || dtype >= AllDTypes().size() || reduce_op > kLastReduceOp || count < 0) {
    return absl::DataLossError(absl::StrCat("rank ", peer, " sent no header of a collective (it begins with ",
                                            absl::Hex(magic), ", wanted ", absl::Hex(kMagic),
                                            "): is it another version of this program?"));
  }
  if (sequence != wanted_sequence) {
    return absl::DataLossError(
        absl::StrCat("rank ", peer, " is in collective #", sequence, ", this rank in #", wanted_sequence));
  }
  return CollectiveSpec{.op = static_cast<CollectiveOp>(op),
                        .dtype = static_cast<DType>(dtype),
                        .reduce_op = static_cast<ReduceOp>(reduce_op),
                        .root = root,
                        .count = count};
}

}  // namespace fsdp
