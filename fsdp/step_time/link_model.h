// SPDX-License-Identifier: Apache-2.0
//
// LinkModel: how long a collective of a group takes on links of a given latency and bandwidth: the estimates by which
// NCCL chooses its algorithm (src/graph/tuning.cc), for rings and trees. For clusters that are not available, so
// nothing is measured and nothing is sent.
//
//   ring, all_gather or reduce_scatter of S bytes by n ranks on h hosts:
//     base + (n - h) * local_latency + (h - 1) * host_latency + S * (n - 1) / n / bandwidth
//   ring, all_reduce: the same with every step and byte twice
//   tree, all_reduce: base + 2 * ((n / h - 1) * local_latency + log2(h) * host_latency) + 2 * S / (0.92 * bandwidth)
//
// The bandwidth is the slowest link's on the way: between the ranks of a host, or all links of a host together. Not
// modelled: congestion in the network, ranks that are late, and small messages, for which NCCL has other protocols.
#ifndef FSDP_FSDP_STEP_TIME_LINK_MODEL_H_
#define FSDP_FSDP_STEP_TIME_LINK_MODEL_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

// The algorithm of an all_reduce. An all_gather or a reduce_scatter is always a ring, as with NCCL on several ranks a
// host.
enum class AllReduceAlgorithm : uint8_t { kFastest, kRing, kTree };

// "auto", "ring", "tree".
absl::StatusOr<AllReduceAlgorithm> ParseAllReduceAlgorithm(std::string_view name);

// Bandwidths are in bytes a second and in each direction; latencies in seconds, for NCCL's protocol "Simple" on NVLink
// and a network.
struct LinkModel {
  double local_bandwidth = 0;  // from a rank to the next on its host
  double host_bandwidth = 0;   // all links of a host to the others together
  double local_latency = 3.4e-6;
  double host_latency = 14e-6;
  double base_latency = 8.4e-6;
  AllReduceAlgorithm all_reduce = AllReduceAlgorithm::kFastest;
};

// kInvalidArgument, naming the field and its value, for one that no link has: a bandwidth that is not above 0, a
// latency below 0, a number that is not finite.
absl::Status Validate(const LinkModel& links);

// How the ranks of a group are spread over hosts: equally many on each host.
struct GroupSpan {
  int ranks = 1;
  int hosts = 1;
  int groups_on_host = 1;  // that do the same at the same time and share the host's links, this one included
};

// Seconds of a collective; 0 for a group of one rank. `nbytes` is the size of the whole group's data for an all_gather
// and a reduce_scatter, and of each rank's data for an all_reduce. Pure.
double AllGatherSeconds(const LinkModel& links, const GroupSpan& group, double nbytes);
double ReduceScatterSeconds(const LinkModel& links, const GroupSpan& group, double nbytes);
double AllReduceSeconds(const LinkModel& links, const GroupSpan& group, double nbytes);

}  // namespace fsdp

#endif  // FSDP_FSDP_STEP_TIME_LINK_MODEL_H_
