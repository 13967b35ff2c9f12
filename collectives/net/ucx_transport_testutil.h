// SPDX-License-Identifier: Apache-2.0
//
// For tests of the transport over UCX: ranks that are threads of this process and meet through a local group.
#ifndef FSDP_COLLECTIVES_NET_UCX_TRANSPORT_TESTUTIL_H_
#define FSDP_COLLECTIVES_NET_UCX_TRANSPORT_TESTUTIL_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/net/ucx_library.h"
#include "fsdp/collectives/net/ucx_transport.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {

inline constexpr absl::Duration kTimeout = absl::Minutes(1);
inline constexpr CollectiveId kWhat = {.op = CollectiveOp::kAllGather, .sequence = 7};

class UcxTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const absl::Status ucx = LoadUcp().status(); !ucx.ok()) GTEST_SKIP() << ucx;
  }

  static absl::Status OnRanks(
      int size, const std::function<absl::Status(Transport& transport, ProcessGroup& meeting)>& rank_main) {
    return RunRanks(size, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                            CreateUcxTransport(meeting->rank(), size, {.place = "here", .timeout = kTimeout},
                                               [&](std::string_view blob) { return meeting->AllGatherObject(blob); }));
      return rank_main(*transport, *meeting);
    });
  }
};

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

#endif  // FSDP_COLLECTIVES_NET_UCX_TRANSPORT_TESTUTIL_H_
