// SPDX-License-Identifier: Apache-2.0
//
// Offer: what a rank tells all others of a group before they can send it messages: how errors call it, where it is, and
// random bytes, of which those of the group's first rank become the group's nonce. With it a transport tells the
// group's messages from those of strangers and of earlier groups.
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
  std::string networks = {};  // where the transport listens, for messages: "eth0 (10.0.0.1)"; without a newline
  std::string address = {};   // the transport's; any bytes, at least one

  // With new random bytes. kInternal if the kernel has none.
  static absl::StatusOr<Offer> Make(std::string place, std::string networks, std::string address);

  std::string ToBlob() const;
};

// What a group knows of its members; by rank.
struct GroupOffers {
  Nonce nonce = {};
  std::vector<std::string> names = {};  // "rank 5 (pid 12 on host-b)"
  std::vector<std::string> networks = {};
  std::vector<std::string> addresses = {};
};

// The offers of `members` among the blobs of all ranks, in their order. kUnavailable names the first that made none,
// or a blob of another kind.
absl::StatusOr<GroupOffers> ParseOffers(const std::vector<std::string>& blobs, const std::vector<int>& members);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_OFFER_H_
