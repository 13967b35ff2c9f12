// SPDX-License-Identifier: Apache-2.0
//
// For tests of the transport over UCX: ranks that are threads of this process and meet through a local group.
#ifndef FSDP_COLLECTIVES_NET_UCX_TRANSPORT_TESTUTIL_H_
#define FSDP_COLLECTIVES_NET_UCX_TRANSPORT_TESTUTIL_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/net/transport_testutil.h"
#include "fsdp/collectives/net/ucx_library.h"
#include "fsdp/collectives/net/ucx_transport.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {

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

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_UCX_TRANSPORT_TESTUTIL_H_
