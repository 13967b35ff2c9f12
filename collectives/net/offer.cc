// SPDX-License-Identifier: Apache-2.0
//
// A blob is the random bytes, the place, a newline, the networks, a newline, the address.
#include "fsdp/collectives/net/offer.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

absl::StatusOr<Offer> ParseOffer(const std::string& blob, size_t rank) {
  Offer offer;
  // The search starts after the random bytes, which may contain a newline.
  const size_t end = blob.find('\n', std::min(blob.size(), offer.nonce.size()));
  const size_t last = end == std::string::npos ? end : blob.find('\n', end + 1);
  if (last == std::string::npos || last + 1 == blob.size()) {
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " has no address for messages, or is another version of this program"));
  }
  std::memcpy(offer.nonce.data(), blob.data(), offer.nonce.size());
  offer.place = blob.substr(offer.nonce.size(), end - offer.nonce.size());
  offer.networks = blob.substr(end + 1, last - end - 1);
  offer.address = blob.substr(last + 1);
  return offer;
}

}  // namespace

absl::StatusOr<Offer> Offer::Make(std::string place, std::string networks, std::string address) {
  Offer offer = {.place = std::move(place), .networks = std::move(networks), .address = std::move(address)};
  if (getrandom(offer.nonce.data(), offer.nonce.size(), 0) != static_cast<ssize_t>(offer.nonce.size())) {
    return absl::InternalError("no random numbers");
  }
  return offer;
}

std::string Offer::ToBlob() const {
  return absl::StrCat(std::string(nonce.data(), nonce.size()), place, "\n", networks, "\n", address);
}

absl::StatusOr<GroupOffers> ParseOffers(const std::vector<std::string>& blobs, const std::vector<int>& members) {
  GroupOffers offers;
  for (size_t r = 0; r < members.size(); ++r) {
    FSDP_ASSIGN_OR_RETURN(Offer offer, ParseOffer(blobs[members[r]], r));
    if (r == 0) offers.nonce = offer.nonce;
    offers.names.push_back(offer.place.empty() ? absl::StrCat("rank ", r)
                                               : absl::StrCat("rank ", r, " (", offer.place, ")"));
    offers.networks.push_back(std::move(offer.networks));
    offers.addresses.push_back(std::move(offer.address));
  }
  return offers;
}

}  // namespace fsdp
