// SPDX-License-Identifier: Apache-2.0
//
// Conversion with a crash, or an error, at each of its storage operations in turn, to every kind of target, new and
// replaced: what has the target's name afterwards is what had it before, or all of the conversion; and converting again
// leaves nothing else behind.
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/format/file_names.h"
#include "fsdp/checkpoint/storage/fault_file_system.h"
#include "fsdp/checkpoint/storage/fault_series.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/test_state.h"
#include "fsdp/checkpoint/verify/verify.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

struct Target {
  std::string name;         // of the test
  std::string destination;  // of the conversion
  CheckpointFormat to = CheckpointFormat::kHdf5;
  StateDictType type = StateDictType::kFull;  // of kHdf5
  int world_size = 0;
  int parity = 0;
};

struct Scenario {
  Target target;
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

// A file's bytes, or those of all files of a directory; empty when there is nothing.
std::map<std::string, std::string> ContentsOf(const std::string& path) {
  std::map<std::string, std::string> contents;
  if (fs::is_regular_file(path)) contents[""] = ReadFile(path);
  if (!fs::is_directory(path)) return contents;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    contents[entry.path().filename()] = ReadFile(entry.path());
  }
  return contents;
}

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
    const std::string old = sources_ + "/" + GetParam().target.destination;
    FaultFileSystem sound(PosixFileSystem(), graveyard_);
    EXPECT_OK(Convert(sound, kOld, old));
    old_ = ContentsOf(old);
  }

  absl::Status Convert(FileSystem& files, int64_t rows, const std::string& destination) {
    const Target& target = GetParam().target;
    ConvertOptions options;
    options.to = target.to;
    if (target.to == CheckpointFormat::kHdf5) options.state_dict_type = target.type;
    if (target.world_size > 0) options.world_size = target.world_size;
    options.parity = target.parity;
    options.force = true;
    options.io_threads = 1;
    options.file_system = &files;
    return ConvertCheckpoint(JoinPath(sources_, StepName(rows)), destination, options).status();
  }

  std::string Destination() const { return root_ + "/" + GetParam().target.destination; }

  // A directory with what had the target's name before, or without.
  void Prepare() {
    fs::remove_all(root_);
    fs::create_directories(root_);
    if (!GetParam().is_replaced) return;
    if (old_.count("") == 1) return WriteAll(Destination(), old_.at(""));
    fs::create_directory(Destination());
    for (const auto& [name, bytes] : old_) WriteAll(Destination() + "/" + name, bytes);
  }

  // True when the conversion is there, whole; otherwise what was there before is.
  bool NewIsThere() {
    const std::map<std::string, std::string> found = ContentsOf(Destination());
    if (found == (GetParam().is_replaced ? old_ : std::map<std::string, std::string>())) return false;
    if (GetParam().target.to == CheckpointFormat::kHdf5) {
      const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(Destination());
      EXPECT_OK(report);
      if (report.ok()) {
        EXPECT_THAT(report->problems, IsEmpty());
      }
    }
    std::vector<TestTensor> tensors = Tensors(kNew);
    if (GetParam().target.to == CheckpointFormat::kSafetensors) tensors.pop_back();  // holds the model
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
    }
    ConvertAgain();
  }
}

std::vector<Scenario> Scenarios() {
  const std::vector<Target> targets = {
      {"Full", "full"},
      {"ShardedParity", "sharded", CheckpointFormat::kHdf5, StateDictType::kSharded, 3, 1},
      {"Local", "local", CheckpointFormat::kHdf5, StateDictType::kLocal, 2},
      {"SafetensorsFile", "model.safetensors", CheckpointFormat::kSafetensors},
      {"SafetensorsDirectory", "model", CheckpointFormat::kSafetensors},
      {"TorchFile", "model.pt", CheckpointFormat::kTorch},
      {"DcpDirectory", "dcp", CheckpointFormat::kDcp, StateDictType::kFull, 2},
  };
  std::vector<Scenario> scenarios;
  for (const Target& target : targets) {
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
