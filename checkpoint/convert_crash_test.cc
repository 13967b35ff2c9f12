// SPDX-License-Identifier: Apache-2.0
//
// Conversion with a crash or an error at each of its storage operations in turn, to every kind of target, new and
// replaced: afterwards the target's name holds the old contents or the whole conversion, and converting again leaves
// nothing else behind.
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/conformance/formats_under_test.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/fault_file_system.h"
#include "fsdp/checkpoint/storage/fault_series.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

struct Scenario {
  FormatUnderTest target;
  bool is_replaced = false;
};

// The new source holds more rows than the old one.
std::vector<TestTensor> Tensors(int64_t rows) {
  return {{StateKey::Model("wte.weight"), DType::kFloat32, {rows, 3}},
          {StateKey::Model("wpe.weight"), DType::kFloat32, {2000}},
          {StateKey::OptimState("wte.weight", "exp_avg"), DType::kFloat32, {rows, 3}}};
}
constexpr int64_t kOld = 5;
constexpr int64_t kNew = 8;

class ConvertCrashTest : public testing::TestWithParam<Scenario> {
 protected:
  ConvertCrashTest() {
    for (const int64_t rows : {kOld, kNew}) {
      EXPECT_OK(RunRanks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
        StateDict state = ShardedState(Tensors(rows), 2, group->rank());
        state.aliases.clear();
        return SaveCheckpoint(state, sources_, rows, *group).status();
      }));
    }
    const std::string old = olds_ + "/" + GetParam().target.destination;
    FaultFileSystem sound(PosixFileSystem(), graveyard_);
    EXPECT_OK(Convert(sound, kOld, old));
    old_ = BytesOf(old);
  }

  absl::Status Convert(FileSystem& files, int64_t rows, const std::string& destination) {
    ConvertOptions options;
    options.target = GetParam().target.target;
    options.force = true;
    options.io_threads = 1;
    options.file_system = &files;
    return ConvertCheckpoint(JoinPath(sources_, StepName(rows)), destination, options).status();
  }

  std::string Destination() const { return root_ + "/" + GetParam().target.destination; }

  // An empty directory, or one that already holds a checkpoint under the target's name.
  void Prepare() {
    fs::remove_all(root_);
    fs::create_directories(root_);
    if (!GetParam().is_replaced) return;
    if (old_.count("") == 0) fs::create_directory(Destination());
    for (const auto& [name, bytes] : old_) {
      fs::create_directories(fs::path(Destination() + name).parent_path());
      WriteAll(Destination() + name, bytes);
    }
  }

  // True when the conversion is there, whole; otherwise checks that the old contents are there.
  bool NewIsThere() {
    const std::map<std::string, std::string> found = BytesOf(Destination());
    if (found == (GetParam().is_replaced ? old_ : std::map<std::string, std::string>())) return false;
    if (GetParam().target.is_ours()) {
      const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(Destination());
      EXPECT_OK(report);
      if (report.ok()) {
        EXPECT_THAT(report->problems, IsEmpty());
      }
    }
    std::vector<TestTensor> tensors = Tensors(kNew);
    if (GetParam().target.model_only()) tensors.pop_back();  // holds the model
    StateDict wanted = WantedState(tensors, 1, 0);
    wanted.aliases.clear();
    // Other formats leave texts out; every tensor is compared.
    EXPECT_OK(LoadCheckpoint(Destination(), wanted, {.strict = false}));
    for (const TestTensor& tensor : tensors) {
      const Tensor expected = MakeElements(tensor, {0, tensor.shape.numel()});
      const Tensor& loaded = wanted.FindTensor(tensor.key)->shards[0].data;
      EXPECT_EQ(std::memcmp(loaded.data(), expected.data(), expected.nbytes()), 0) << tensor.key.ToString();
    }
    return true;
  }

  void ConvertAgain() {
    FaultFileSystem sound(PosixFileSystem(), graveyard_);
    ASSERT_OK(Convert(sound, kNew, Destination()));
    EXPECT_TRUE(NewIsThere());
    EXPECT_THAT(ListNames(root_), testing::ElementsAre(GetParam().target.destination));
  }

  const std::string sources_ = NewTestDirectory();
  const std::string olds_ = NewTestDirectory();
  const std::string root_ = NewTestDirectory() + "/root";
  const std::string graveyard_ = NewTestDirectory();
  std::map<std::string, std::string> old_;
};

TEST_P(ConvertCrashTest, AFaultAtAnyOperationLeavesOldOrNew) {
  Prepare();
  FaultFileSystem counting(PosixFileSystem(), graveyard_);
  ASSERT_OK(Convert(counting, kNew, Destination()));
  ASSERT_TRUE(NewIsThere());
  const int64_t operations = counting.operations();
  ASSERT_GT(operations, 5);
  std::printf("convert, %s: %lld operations\n", testing::UnitTest::GetInstance()->current_test_info()->name(),
              static_cast<long long>(operations));
  for (const StorageFault& fault : FaultSeries(operations)) {
    SCOPED_TRACE(fault.ToString());
    Prepare();
    FaultFileSystem files(PosixFileSystem(), graveyard_);
    fault.Arm(files);
    const absl::Status converted = Convert(files, kNew, Destination());
    fault.Strike(files);
    const bool is_new = NewIsThere();
    EXPECT_TRUE(is_new || !converted.ok()) << "a conversion was reported and then lost";
    if (!fault.is_crash() && !converted.ok()) {
      EXPECT_THAT(std::string(converted.message()), testing::HasSubstr("test: "));
      if (is_new) {
        EXPECT_THAT(std::string(converted.message()), testing::HasSubstr(Destination() + " is complete"));
      }
    }
    ConvertAgain();
  }
}

std::vector<Scenario> Scenarios() {
  std::vector<Scenario> scenarios;
  for (const FormatUnderTest& target : WrittenFormatsUnderTest()) {
    for (const bool is_replaced : {false, true}) scenarios.push_back({target, is_replaced});
  }
  return scenarios;
}

INSTANTIATE_TEST_SUITE_P(Targets, ConvertCrashTest, testing::ValuesIn(Scenarios()),
                         [](const testing::TestParamInfo<Scenario>& info) {
                           return info.param.target.name + (info.param.is_replaced ? "Replaced" : "New");
                         });

}  // namespace
}  // namespace fsdp
