// SPDX-License-Identifier: Apache-2.0
//
// The published value is "host:port" with a numeric host. An empty host means the agent's host, which each rank knows
// as MASTER_ADDR. Rank 0 publishes it if its MASTER_ADDR is a loopback address, as the own host name often is
// (127.0.1.1 in Debian's /etc/hosts): it does not know then by which address other hosts reach it.
#include "fsdp/collectives/job/agent_store.h"

#include <limits>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/job/torch_store.h"

namespace fsdp {
namespace {

std::string KeyOf(const Rendezvous& r) { return absl::StrCat("fsdp/", r.job, "/store"); }

absl::StatusOr<TorchStore> ConnectToAgent(const Rendezvous& r, absl::Time deadline) {
  return TorchStore::Connect(r.master_addr, r.master_port, deadline);
}

// "torchrun's agent at host-a:29500: <message>"
absl::Status AtAgent(const Rendezvous& r, const absl::Status& status) {
  return Annotate(status, absl::StrCat("torchrun's agent at ", r.master_addr, ":", r.master_port));
}

struct HostAndPort {
  std::string host;
  int port = 0;
};

absl::StatusOr<HostAndPort> ParseAddress(std::string_view text) {
  // The last colon: a numeric IPv6 host has colons of its own.
  const size_t colon = text.rfind(':');
  HostAndPort address;
  if (colon == std::string_view::npos || !absl::SimpleAtoi(std::string(text.substr(colon + 1)), &address.port) ||
      address.port < 1 || address.port > std::numeric_limits<uint16_t>::max()) {
    return absl::DataLossError(
        absl::StrCat("published address ", Quote(text), ", wanted one such as \"10.0.0.1:4711\""));
  }
  address.host = std::string(text.substr(0, colon));
  return address;
}

}  // namespace

absl::StatusOr<FileDescriptor> ListenTowardsAgent(const Rendezvous& r, absl::Time deadline) {
  const absl::StatusOr<TorchStore> agent = ConnectToAgent(r, deadline);
  if (!agent.ok()) return AtAgent(r, agent.status());
  // The connection to the agent shows which interface the other hosts can reach.
  FSDP_ASSIGN_OR_RETURN(const std::string host, LocalAddressOf(agent->fd()));
  return ListenTcpForHosts(host, 0);
}

absl::Status PublishListener(const Rendezvous& r, int listener, absl::Time deadline) {
  FSDP_ASSIGN_OR_RETURN(const int port, ListeningPort(listener));
  FSDP_ASSIGN_OR_RETURN(const std::string host, LocalAddressOf(listener));
  const std::string address = absl::StrCat(IsAnyAddress(host) ? "" : host, ":", port);
  absl::StatusOr<TorchStore> agent = ConnectToAgent(r, deadline);
  if (!agent.ok()) return AtAgent(r, agent.status());
  if (const absl::Status set = agent->Set(KeyOf(r), address, deadline); !set.ok()) return AtAgent(r, set);
  // TCPStore does not confirm a set, and two processes may be rank 0 by mistake: reading back finds both.
  const absl::StatusOr<std::string> back = agent->Get(KeyOf(r), deadline);
  if (!back.ok()) return AtAgent(r, back.status());
  return *back == address
             ? absl::OkStatus()
             : AtAgent(r, absl::DataLossError(absl::StrCat(
                              "published address ", Quote(*back), ", expected ", Quote(address),
                              ": another process is rank 0 of this job, or this is not torch's TCPStore")));
}

absl::StatusOr<FileDescriptor> ConnectToPublished(const Rendezvous& r, absl::Time deadline) {
  absl::StatusOr<TorchStore> agent = ConnectToAgent(r, deadline);
  if (!agent.ok()) return AtAgent(r, agent.status());
  const absl::StatusOr<std::string> text = agent->Get(KeyOf(r), deadline);
  if (!text.ok()) return AtAgent(r, text.status());
  FSDP_ASSIGN_OR_RETURN(const HostAndPort address, ParseAddress(*text));
  return ConnectTcp(address.host.empty() ? r.master_addr : address.host, address.port, deadline);
}

}  // namespace fsdp
