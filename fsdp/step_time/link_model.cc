// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/step_time/link_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// NCCL counts on this share of a ring's bandwidth for the two trees of an all_reduce.
constexpr double kTreeEfficiency = 0.92;

double Bandwidth(const LinkModel& links, const GroupSpan& group) {
  double slowest = std::numeric_limits<double>::infinity();
  // A group inside one host uses only local links; any other also shares its host's network links with the host's other
  // groups.
  if (group.ranks > group.hosts) slowest = links.local_bandwidth;
  if (group.hosts > 1) slowest = std::min(slowest, links.host_bandwidth / group.groups_on_host);
  return slowest;
}

// One time round the ring: n - 1 steps, of which one for each other host leaves a host.
double RingSeconds(const LinkModel& links, const GroupSpan& group, double nbytes) {
  // steps - host_steps is at least 0: a host has at least one rank of the group.
  const double steps = group.ranks - 1;
  const double host_steps = group.hosts - 1;
  return (steps - host_steps) * links.local_latency + host_steps * links.host_latency +
         nbytes * steps / group.ranks / Bandwidth(links, group);
}

double TreeSeconds(const LinkModel& links, const GroupSpan& group, double nbytes) {
  // A chain inside each host and a tree over the hosts, once up and once down.
  const double local_steps = group.ranks / group.hosts - 1;
  return 2 * (local_steps * links.local_latency + std::log2(group.hosts) * links.host_latency) +
         2 * nbytes / (kTreeEfficiency * Bandwidth(links, group));
}

absl::Status CheckNumber(const char* field, double value, bool zero_allowed) {
  if (std::isfinite(value) && (value > 0 || (zero_allowed && value == 0))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("LinkModel::", field, " is ", value, ", wanted a finite number ",
                                                 zero_allowed ? "of at least 0" : "above 0"));
}

}  // namespace

absl::StatusOr<AllReduceAlgorithm> ParseAllReduceAlgorithm(std::string_view name) {
  if (name == "auto") return AllReduceAlgorithm::kFastest;
  if (name == "ring") return AllReduceAlgorithm::kRing;
  if (name == "tree") return AllReduceAlgorithm::kTree;
  return absl::InvalidArgumentError(
      absl::StrCat("all_reduce algorithm \"", std::string(name), "\": expected auto, ring or tree"));
}

absl::Status Validate(const LinkModel& links) {
  FSDP_RETURN_IF_ERROR(CheckNumber("local_bandwidth", links.local_bandwidth, false));
  FSDP_RETURN_IF_ERROR(CheckNumber("host_bandwidth", links.host_bandwidth, false));
  FSDP_RETURN_IF_ERROR(CheckNumber("local_latency", links.local_latency, true));
  FSDP_RETURN_IF_ERROR(CheckNumber("host_latency", links.host_latency, true));
  return CheckNumber("base_latency", links.base_latency, true);
}

double AllGatherSeconds(const LinkModel& links, const GroupSpan& group, double nbytes) {
  return group.ranks < 2 ? 0 : links.base_latency + RingSeconds(links, group, nbytes);
}

double ReduceScatterSeconds(const LinkModel& links, const GroupSpan& group, double nbytes) {
  return AllGatherSeconds(links, group, nbytes);
}

double AllReduceSeconds(const LinkModel& links, const GroupSpan& group, double nbytes) {
  if (group.ranks < 2) return 0;
  const double ring = links.base_latency + 2 * RingSeconds(links, group, nbytes);
  const double tree = links.base_latency + TreeSeconds(links, group, nbytes);
  switch (links.all_reduce) {
    case AllReduceAlgorithm::kRing:
      return ring;
    case AllReduceAlgorithm::kTree:
      return tree;
    case AllReduceAlgorithm::kFastest:
      break;
  }
  return std::min(ring, tree);
}

}  // namespace fsdp
