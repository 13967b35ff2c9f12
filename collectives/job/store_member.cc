// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/job/store_member.h"

#include <limits.h>
#include <sys/random.h>
#include <unistd.h>

#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/digest.h"

namespace fsdp {
namespace {

// Constant for the life of the process; a forked child shares it but has another pid. 0 if the kernel has no random
// numbers.
uint64_t NumberOfThisProcess() {
  static const uint64_t number = [] {
    uint64_t random = 0;
    return getrandom(&random, sizeof(random), 0) == sizeof(random) ? random : 0;
  }();
  return number;
}

}  // namespace

StoreMember StoreMember::OfThisProcess(std::string job, int rank, int world_size) {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, HOST_NAME_MAX);
  return {.job = std::move(job),
          .rank = rank,
          .world_size = world_size,
          .host = host,
          .pid = getpid(),
          .process = NumberOfThisProcess()};
}

std::string StoreMember::ToString() const {
  return absl::StrCat("rank ", rank, " of ", world_size, ", pid ", pid, " on ", host);
}

StoreFrame StoreMember::ToFrame(uint32_t kind) const {
  return {.kind = kind,
          .number = rank,
          .key = job,
          .value = absl::StrCat(world_size, "\n", pid, "\n", host, "\n", process, token_digest.empty() ? "" : "\n",
                                token_digest)};
}

std::string StoreMember::DigestOfToken(const std::string& token) {
  return token.empty() ? "" : DigestOf(absl::StrCat("token of a job: ", token)).ToHex();
}

absl::StatusOr<StoreMember> StoreMember::FromFrame(const StoreFrame& frame) {
  const std::vector<std::string> fields = absl::StrSplit(frame.value, absl::MaxSplits('\n', 4));
  StoreMember member = {.job = frame.key, .rank = static_cast<int>(frame.number)};
  if (fields.size() < 4 || !absl::SimpleAtoi(fields[0], &member.world_size) ||
      !absl::SimpleAtoi(fields[1], &member.pid) || !absl::SimpleAtoi(fields[3], &member.process) || frame.number < 0 ||
      frame.number > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(
        "a hello without rank, world size, pid, host and process: is it another version?");
  }
  member.host = fields[2];
  member.token_digest = fields.size() > 4 ? fields[4] : "";
  return member;
}

}  // namespace fsdp
