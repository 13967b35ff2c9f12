// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/group_hosts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/collectives/job/host_identity.h"

namespace fsdp {
namespace {

// The most hosts that an error message names, so that it stays one line for a job of 1,000 hosts.
constexpr int kNamedHosts = 16;

// "host-a has ranks 0, 1; host-b has rank 2"
std::string WhoIsWhere(const GroupHosts& hosts) {
  std::vector<std::string> parts;
  for (int host = 0; host < hosts.layout.hosts() && host < kNamedHosts; ++host) {
    const std::vector<int>& ranks = hosts.layout.ranks_on(host);
    parts.push_back(
        absl::StrCat(hosts.names[host], " has ", ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", ")));
  }
  if (hosts.layout.hosts() > kNamedHosts) parts.push_back("...");
  return absl::StrJoin(parts, "; ");
}

}  // namespace

std::string GroupHosts::ToString() const {
  const int ranks = layout.size();
  const std::string text = absl::StrCat(ranks, ranks == 1 ? " rank on " : " ranks on ", layout.ToString());
  return layout.is_regular() ? text : absl::StrCat(text, ": ", WhoIsWhere(*this));
}

absl::StatusOr<GroupHosts> FindHosts(const BlobGather& gather, const HostIdentity& mine) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, gather(mine.ToBlob()));
  std::vector<std::string> identities;
  for (const std::string& blob : blobs) identities.push_back(HostIdentity::FromBlob(blob).kernel);
  GroupHosts hosts{.layout = HostLayout::Of(identities), .names = {}};
  for (int host = 0; host < hosts.layout.hosts(); ++host) {
    hosts.names.push_back(HostIdentity::FromBlob(blobs[hosts.layout.ranks_on(host)[0]]).name);
  }
  return hosts;
}

absl::StatusOr<GroupHosts> FindHosts(ProcessGroup& group, std::string_view host_id) {
  return FindHosts([&group](std::string_view blob) { return group.AllGatherObject(blob); },
                   HostIdentity::OfThisProcess(host_id));
}

absl::StatusOr<int> RanksPerHost(ProcessGroup& group, std::string_view host_id) {
  FSDP_ASSIGN_OR_RETURN(const GroupHosts hosts, FindHosts(group, host_id));
  if (hosts.layout.is_regular()) return hosts.layout.ranks_per_host();
  return absl::FailedPreconditionError(absl::StrCat(
      "the ranks of one host shard together, but there are ", hosts.layout.ToString(), ": ", WhoIsWhere(hosts),
      "; start equally many ranks on every host, numbered host by host, or give the size of the shard "
      "groups"));
}

}  // namespace fsdp
