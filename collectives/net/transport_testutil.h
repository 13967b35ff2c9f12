// SPDX-License-Identifier: Apache-2.0
//
// For tests of transports: an exchange in which every rank sends to every other.
#ifndef FSDP_COLLECTIVES_NET_TRANSPORT_TESTUTIL_H_
#define FSDP_COLLECTIVES_NET_TRANSPORT_TESTUTIL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/net/transport.h"

namespace fsdp {

inline constexpr absl::Duration kTimeout = absl::Minutes(1);
inline constexpr CollectiveId kWhat = {.op = CollectiveOp::kAllGather, .sequence = 7};

inline std::byte* Bytes(std::string& s) { return reinterpret_cast<std::byte*>(s.data()); }

// Every rank sends every other one its own text of `nbytes` bytes.
inline absl::Status ExchangeTexts(Transport& transport, size_t nbytes) {
  const auto text = [&](int from, int to) {
    std::string all(nbytes, static_cast<char>('a' + from));
    for (size_t i = 0; i < nbytes; i += 1000) all[i] = static_cast<char>('A' + to + i / 1000 % 7);
    return all;
  };
  std::vector<std::string> out(static_cast<size_t>(transport.size()));
  std::vector<std::string> in(static_cast<size_t>(transport.size()), std::string(nbytes, '-'));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    out[peer] = text(transport.rank(), peer);
    sends.push_back({peer, Bytes(out[peer]), static_cast<int64_t>(nbytes)});
    receives.push_back({peer, Bytes(in[peer]), static_cast<int64_t>(nbytes)});
  }
  FSDP_RETURN_IF_ERROR(transport.Exchange(sends, receives, kWhat, kTimeout));
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer != transport.rank() && in[peer] != text(peer, transport.rank())) {
      return absl::DataLossError(absl::StrCat("other bytes from rank ", peer));
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_TRANSPORT_TESTUTIL_H_
