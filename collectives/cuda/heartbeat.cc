// SPDX-License-Identifier: Apache-2.0
//
// On the wire: a Header, `calls` Calls, then the text of the fault up to the end of the blob. Structs are sent as their
// bytes, including padding: all ranks run the same program on one kind of machine, and the bytes never leave the job.
// Decode still checks the sizes, because a rank may run another version of the program.
#include "fsdp/collectives/cuda/heartbeat.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

struct Header {
  uint64_t issued = 0;
  uint64_t begun = 0;
  uint64_t stalled = 0;
  uint64_t calls = 0;
  int32_t fault_code = 0;
  CollectiveOp stalled_op = CollectiveOp::kBarrier;
  bool leaves = false;
};

struct Call {
  uint64_t sequence = 0;
  CollectiveSpec spec;
};

static_assert(std::is_trivially_copyable_v<Header> && std::is_trivially_copyable_v<Call>);

template <typename T>
void Append(const T& value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T Take(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return value;
}

}  // namespace

std::string Heartbeat::Encode() const {
  std::string bytes;
  Append(Header{.issued = issued,
                .begun = begun,
                .stalled = stalled.sequence,
                .calls = calls.size(),
                .fault_code = static_cast<int32_t>(fault.code()),
                .stalled_op = stalled.op,
                .leaves = leaves},
         bytes);
  for (const auto& [sequence, spec] : calls) Append(Call{sequence, spec}, bytes);
  bytes.append(fault.message().data(), fault.message().size());
  return bytes;
}

absl::StatusOr<Heartbeat> Heartbeat::Decode(std::string_view bytes) {
  const size_t given = bytes.size();
  if (given < sizeof(Header)) return absl::InternalError(absl::StrCat("a heartbeat of ", given, " bytes"));
  const auto header = Take<Header>(bytes);
  // Divided and not multiplied: a damaged count times the size could overflow.
  if (header.calls > bytes.size() / sizeof(Call)) {
    return absl::InternalError(absl::StrCat("a heartbeat of ", given, " bytes announces ", header.calls, " calls"));
  }
  Heartbeat beat;
  beat.leaves = header.leaves;
  beat.issued = header.issued;
  beat.begun = header.begun;
  beat.stalled = {.op = header.stalled_op, .sequence = header.stalled};
  for (uint64_t i = 0; i < header.calls; ++i) {
    const auto call = Take<Call>(bytes);
    beat.calls.emplace_back(call.sequence, call.spec);
  }
  beat.fault = absl::Status(static_cast<absl::StatusCode>(header.fault_code), std::string(bytes));
  return beat;
}

absl::Duration HeartbeatInterval(int hosts) { return std::max(absl::Milliseconds(20), hosts * absl::Milliseconds(5)); }

}  // namespace fsdp
