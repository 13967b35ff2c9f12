// SPDX-License-Identifier: Apache-2.0
//
// Offer: the data that a rank sends to all others of a group before they can send it messages: its name in errors, its
// address, and random bytes. The random bytes of the group's first rank become the group's nonce, by which a transport
// distinguishes the group's messages from messages of strangers and of earlier groups.
#ifndef FSDP_COLLECTIVES_NET_OFFER_H_
#define FSDP_COLLECTIVES_NET_OFFER_H_

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

using Nonce = std::array<char, 16>;

struct Offer {
  Nonce nonce = {};
  std::string place = {};     // "pid 12 on host-b"; without a newline
  std::string networks = {};  // the transport's networks, for messages: "eth0 (10.0.0.1)"; without a newline
  std::string address = {};   // the transport's; any bytes, at least one

  // Adds new random bytes. kInternal if the kernel cannot provide them.
  static absl::StatusOr<Offer> Make(std::string place, std::string networks, std::string address);

  std::string ToBlob() const;
};

// The offers of all members of a group; by rank.
struct GroupOffers {
  Nonce nonce = {};
  std::vector<std::string> names = {};  // "rank 5 (pid 12 on host-b)"
  std::vector<std::string> networks = {};
  std::vector<std::string> addresses = {};
};

// The offers of `members` among the blobs of all ranks, in their order. kUnavailable names the first rank without an
// offer, or with a blob of another kind.
absl::StatusOr<GroupOffers> ParseOffers(const std::vector<std::string>& blobs, const std::vector<int>& members);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_OFFER_H_
