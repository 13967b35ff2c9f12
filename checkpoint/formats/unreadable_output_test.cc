// SPDX-License-Identifier: Apache-2.0
//
// Outputs that CheckOutput must refuse, while the disk or the network fails at each of its system calls: what cannot be
// read is taken for a checkpoint, and not for a free place.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/checkpoint/formats/zero_checkpoint_testutil.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/system_call_faults.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using Kind = SystemCallFaults::Kind;

class UnreadableOutputTest : public testing::TestWithParam<int> {
 protected:
  void Write(const std::string& name, const FormatTarget& target) const {
    WriteZeros(root_ + "/" + name, target, {"w"}, 4);
  }

  // Expects that the output is refused with each fault, by name.
  void ExpectRefused(const std::string& name, const OutputOptions& options) const {
    const std::string output = root_ + "/" + name;
    const auto check = [&](Kind kind, int64_t at) {
      SCOPED_TRACE(absl::StrCat(output, ": ", std::strerror(GetParam()), " at call ", at));
      SystemCallFaults::Begin(kind, at, GetParam());
      const absl::Status checked = CheckOutput(output, {}, options);
      const int64_t calls = SystemCallFaults::End();
      EXPECT_THAT(checked, StatusIs(absl::StatusCode::kFailedPrecondition,
                                    AllOf(HasSubstr(output), HasSubstr("choose another place for the output"))));
      return calls;
    };
    const int64_t calls = check(Kind::kFail, 0);
    ASSERT_GT(calls, 3);
    for (const Kind kind : {Kind::kFail, Kind::kFailFrom}) {
      for (int64_t k = 1; k <= calls; ++k) check(kind, k);
    }
  }

  const std::string root_ = fs::canonical(NewTestDirectory());
};

TEST_P(UnreadableOutputTest, AStepOrAModelInARootIsRefused) {
  for (const char* step : {"run/step-00000001", "run/step-00000002"}) Write(step, Hdf5Target());
  for (const char* name : {"run/step-00000003", "run/model.safetensors", "run/pytorch_model.bin", "run/.metadata"}) {
    ExpectRefused(name, {});
  }
  ExpectRefused("run", {.kind = OutputKind::kDirectory});
}

TEST_P(UnreadableOutputTest, AnOutputInACheckpointIsRefused) {
  Write("full", Hdf5Target());
  Write("sharded", Hdf5Target{.type = StateDictType::kSharded, .world_size = 2});
  fs::remove(root_ + "/sharded/manifest.json");  // known by its records
  Write("dcp", DcpTarget());
  for (const char* name : {"full/x.pt", "full/deep/er/x.pt", "sharded/x.pt", "dcp/x.pt"}) ExpectRefused(name, {});
}

TEST_P(UnreadableOutputTest, ACheckpointDirectoryIsNoRoot) {
  Write("full", Hdf5Target());
  ExpectRefused("full", {.kind = OutputKind::kRoot});
}

INSTANTIATE_TEST_SUITE_P(Causes, UnreadableOutputTest, testing::Values(EIO, ESTALE, EMFILE, ETIMEDOUT),
                         [](const testing::TestParamInfo<int>& info) { return absl::StrCat("Errno", info.param); });

TEST(UnreadableOutputTest, APlaceThatIsFreeButMayNotBeLookedAtIsRefused) {
  const std::string root = fs::canonical(NewTestDirectory());
  fs::create_directories(root + "/a/b");
  SystemCallFaults::Begin(Kind::kFailFrom, 1, EACCES);
  const absl::Status refused = CheckOutput(root + "/a/b/x.pt", {});
  SystemCallFaults::End();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Permission denied")));
  EXPECT_OK(CheckOutput(root + "/a/b/x.pt", {}));
}

}  // namespace
}  // namespace fsdp
