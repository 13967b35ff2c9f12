// SPDX-License-Identifier: Apache-2.0
//
// Sums have the same bits on any placement of the ranks as between threads of one process.
#include "fsdp/collectives/conformance/local_reference.h"

#include <memory>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

class LocalReferenceTest : public testing::TestWithParam<GroupUnderTest> {};

// These include 3 x 2.
INSTANTIATE_TEST_SUITE_P(Backends, LocalReferenceTest, testing::ValuesIn(GroupsUnderTest({2, 3, 4, 6})),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(LocalReferenceTest, ReductionsAreBitForBitThoseOfThreads) {
  EXPECT_OK(GetParam().Run([](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_RETURN_IF_ERROR(CompareReductionsWithLocal(*group, 7));
    return CompareReductionsWithLocal(*group, 9001);
  }));
}

}  // namespace
}  // namespace fsdp
