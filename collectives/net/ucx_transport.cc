// SPDX-License-Identifier: Apache-2.0
//
// How ranks meet, for each group:
//   1. Make a worker and 16 random bytes; gather all ranks' offers: bytes, place, networks, address of the worker.
//   2. Make an endpoint to every other rank. The random bytes of the group's first rank are its nonce.
//   3. Send the nonce to every rank as the endpoint's first message, and wait for theirs. Then all are connected.
//   4. Gather whether that succeeded, then close the ports: later connections are of strangers (worker_ports.h).
//
// UcxExchange has steps 2 and 3, and every message after them.
#include "fsdp/collectives/net/ucx_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/net/offer.h"
#include "fsdp/collectives/net/ucx_exchange.h"
#include "fsdp/collectives/net/ucx_worker.h"

namespace fsdp {
namespace {

constexpr int kMaxRanks = 1 << 16;

absl::StatusOr<Offer> MakeOffer(const absl::StatusOr<std::unique_ptr<UcxWorker>>& worker, const std::string& place) {
  FSDP_RETURN_IF_ERROR(worker.status());
  return Offer::Make(place, (*worker)->context()->networks(), (*worker)->address());
}

// `status`, an error of the first messages between all ranks, with this rank's networks and the networks of the first
// rank that has different ones.
absl::Status WithNetworks(const absl::Status& status, const std::vector<std::string>& networks, int rank) {
  if (status.ok()) return status;
  const auto other = std::find_if(networks.begin(), networks.end(),
                                  [&](const std::string& theirs) { return theirs != networks[rank]; });
  std::string text = absl::StrCat(status.message(), "; rank ", rank, " uses ", networks[rank]);
  if (other != networks.end()) absl::StrAppend(&text, ", rank ", other - networks.begin(), " uses ", *other);
  return WithMessage(status, absl::StrCat(text, ": UCX_NET_DEVICES=NAME chooses the interface on each host"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> JoinUcxGroup(std::shared_ptr<UcxContext> context,
                                                        const std::vector<int>& members, int rank_of_gather,
                                                        const UcxTransportOptions& options, const BlobGather& gather) {
  absl::StatusOr<std::unique_ptr<UcxWorker>> worker = UcxWorker::Create(std::move(context));
  const absl::StatusOr<Offer> mine = MakeOffer(worker, options.place);
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, gather(mine.ok() ? mine->ToBlob() : ""));
  const auto connect = [&]() -> absl::StatusOr<std::unique_ptr<UcxExchange>> {
    FSDP_RETURN_IF_ERROR(mine.status());
    FSDP_ASSIGN_OR_RETURN(GroupOffers offers, ParseOffers(blobs, members));
    const auto rank = static_cast<int>(std::find(members.begin(), members.end(), rank_of_gather) - members.begin());
    offers.addresses[rank].clear();
    auto transport = std::make_unique<UcxExchange>(rank, offers.nonce, options, std::move(offers.names));
    FSDP_RETURN_IF_ERROR(WithNetworks(transport->Connect(*std::move(worker), offers.addresses), offers.networks, rank));
    return transport;
  };
  absl::StatusOr<std::unique_ptr<UcxExchange>> transport = connect();
  FSDP_RETURN_IF_ERROR(AllReduceStatus(gather, transport.status()));
  (*transport)->ClosePorts();
  return std::unique_ptr<Transport>(*std::move(transport));
}

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(int rank, int size, const UcxTransportOptions& options,
                                                              const BlobGather& gather) {
  if (size > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat(size, " ranks, at most ", kMaxRanks, " can send each other messages"));
  }
  absl::StatusOr<std::shared_ptr<UcxContext>> context = UcxContext::Create(options.interface);
  FSDP_RETURN_IF_ERROR(AllReduceStatus(gather, context.status()));
  std::vector<int> members(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) members[r] = r;
  return JoinUcxGroup(*std::move(context), members, rank, options, gather);
}

}  // namespace fsdp
