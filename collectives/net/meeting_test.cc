// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/meeting.h"

#include <cstring>

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr CollectiveSpec kSpec = {.op = CollectiveOp::kBroadcast,
                                  .dtype = DType::kBFloat16,
                                  .reduce_op = ReduceOp::kMax,
                                  .root = 5,
                                  .count = 1LL << 40};

TEST(MeetingHeaderTest, CarriesASpec) {
  ASSERT_OK_AND_ASSIGN(const CollectiveSpec spec, MeetingHeader::Of(7, kSpec).ToSpec(2, 7));
  EXPECT_TRUE(spec.AgreesWith(kSpec));
  EXPECT_EQ(spec.ToString(), kSpec.ToString());
}

TEST(MeetingHeaderTest, AnotherCollectiveIsRefused) {
  EXPECT_THAT(MeetingHeader::Of(8, kSpec).ToSpec(2, 7),
              StatusIs(absl::StatusCode::kDataLoss, "rank 2 is in collective #8, this rank in #7"));
}

// No bytes may give a value that is not an enumerator, because printing one aborts.
TEST(MeetingHeaderTest, DamagedBytesAreRefused) {
  const MeetingHeader good = MeetingHeader::Of(7, kSpec);
  for (size_t byte = 0; byte < sizeof(good); ++byte) {
    for (const int value : {0x00, 0x7f, 0x80, 0xff}) {
      MeetingHeader bad = good;
      reinterpret_cast<unsigned char*>(&bad)[byte] = static_cast<unsigned char>(value);
      const absl::StatusOr<CollectiveSpec> spec = bad.ToSpec(2, 7);
      if (spec.ok()) {
        EXPECT_FALSE(spec->ToString().empty());
        EXPECT_GE(spec->count, 0);
      } else {
        EXPECT_THAT(spec, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 2")));
      }
    }
  }
  MeetingHeader bad = good;
  bad.magic = 0;
  EXPECT_THAT(bad.ToSpec(2, 7), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another version of this program?")));
  bad = good;
  bad.count = -1;
  EXPECT_THAT(bad.ToSpec(2, 7), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no header of a collective")));
}

}  // namespace
}  // namespace fsdp
