// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/c_api/callback_group.h"

#include <exception>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/c_api/c_status.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {
namespace {

// A place for the blob of each rank is made before the program's function is called.
constexpr int32_t kMostRanks = 1 << 20;

// The blobs that the program's function has passed so far.
struct Blobs {
  std::vector<std::string> by_rank;
  std::vector<int> times;
  bool is_outside = false;
  bool is_too_large = false;
};

void Take(void* sink, int32_t rank, const void* blob, int64_t bytes) {
  auto& blobs = *static_cast<Blobs*>(sink);
  // Called by the program, in the middle of its own function: an error is kept for AllGatherObject, since nothing can
  // be returned or thrown from here.
  if (rank < 0 || rank >= static_cast<int32_t>(blobs.by_rank.size()) || bytes < 0 || (bytes > 0 && blob == nullptr)) {
    blobs.is_outside = true;
    return;
  }
  try {
    blobs.by_rank[rank].assign(static_cast<const char*>(blob), static_cast<size_t>(bytes));
  } catch (const std::exception&) {  // no memory, or more bytes than a string can have
    blobs.is_too_large = true;
    return;
  }
  ++blobs.times[rank];
}

}  // namespace

CallbackGroup::CallbackGroup(const fsdp_group& group) : group_(group), device_(CreateHostDevice()) {}

absl::StatusOr<std::unique_ptr<CallbackGroup>> CallbackGroup::Create(const fsdp_group* given) {
  fsdp_group group = {};
  group.world_size = 1;
  FSDP_RETURN_IF_ERROR(CopyOptions(given, "group", group));
  if (group.world_size < 1 || group.world_size > kMostRanks || group.rank < 0 || group.rank >= group.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("group: rank ", group.rank, " of ", group.world_size,
                                                   ", wanted at most ", kMostRanks, " ranks, counted from 0"));
  }
  if (group.world_size > 1) FSDP_RETURN_IF_ERROR(CheckPointer(reinterpret_cast<void*>(group.gather), "group->gather"));
  return std::unique_ptr<CallbackGroup>(new CallbackGroup(group));
}

absl::StatusOr<std::vector<std::string>> CallbackGroup::AllGatherObject(std::string_view blob) {
  if (group_.world_size == 1) return std::vector<std::string>{std::string(blob)};
  Blobs blobs;
  blobs.by_rank.resize(group_.world_size);
  blobs.times.resize(group_.world_size);
  const int32_t result =
      group_.gather(group_.context, blob.data(), static_cast<int64_t>(blob.size()), Take, static_cast<void*>(&blobs));
  if (result != 0) {
    return absl::UnavailableError(
        absl::StrCat("rank ", group_.rank, " of ", group_.world_size, ": the program's gather returned ", result));
  }
  if (blobs.is_too_large) {
    return absl::ResourceExhaustedError(absl::StrCat("rank ", group_.rank, " of ", group_.world_size,
                                                     ": no memory for a blob that the program's gather gave"));
  }
  // A missing blob would be taken for an empty one, and a save would agree on it.
  for (int32_t rank = 0; rank < group_.world_size; ++rank) {
    if (blobs.times[rank] == 1 && !blobs.is_outside) continue;
    return absl::InternalError(absl::StrCat(
        "rank ", group_.rank, " of ", group_.world_size, ": the program's gather gave the blob of rank ", rank, " ",
        blobs.times[rank], " times, wanted once", blobs.is_outside ? ", and one of a rank that does not exist" : ""));
  }
  return std::move(blobs.by_rank);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> CallbackGroup::Split(int color, int key) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> colors, AllGatherObject(absl::StrCat("split ", color)));
  for (const std::string& other : colors) {
    if (other == colors[0]) continue;
    return absl::UnimplementedError("a group of callbacks is not split into parts");
  }
  (void)key;  // all ranks stay in their order
  return std::unique_ptr<ProcessGroup>(new CallbackGroup(group_));
}

void CallbackGroup::Refuse(Stream& stream) {
  stream.Run([] { return absl::UnimplementedError("a group of callbacks gathers blobs, and no tensors"); });
}

}  // namespace fsdp
