// SPDX-License-Identifier: Apache-2.0
//
// Interrupts each system call of a save, a load, a verification, a repair, a pruning and a conversion by a signal, or
// makes it transfer less than requested: each action succeeds with the same bytes. system_call_test.cc tests the loop
// that handles this.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/system_call_faults.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Kind = SystemCallFaults::Kind;
using testing::IsEmpty;

constexpr int kRanks = 2;

// More than one block on a rank, pages and odd lengths, and data that a second save links.
const std::vector<TestTensor>& Tensors() {
  static const auto* const tensors =
      new std::vector<TestTensor>{{StateKey::Model("wte.weight"), DType::kFloat32, {1300, 1000}},
                                  {StateKey::OptimState("wte.weight", "exp_avg"), DType::kBFloat16, {1300, 1000}},
                                  {StateKey::Model("h.0.bias"), DType::kFloat32, {1237}}};
  return *tensors;
}

absl::Status Save(StateDictType type, const std::string& root, int64_t step, const SaveOptions& options) {
  return RunRanks(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
    const std::vector<FlatUnitLayout> units = {
        {"", {{"wte.weight", 0, 1300000}, {"h.0.bias", 1300000, 1237}}, 1301237}};
    StateDict state = type == StateDictType::kLocal ? LocalState(Tensors(), kRanks, group->rank(), units)
                                                    : StateOf(type, Tensors(), kRanks, group->rank());
    state.aliases.clear();
    return SaveCheckpoint(state, root, step, *group, options).status();
  });
}

// Checks that its bytes match the digests that were computed in memory, and that its values are right.
absl::Status CheckHolds(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const VerifyReport report, VerifyCheckpoint(path));
  if (!report.problems.empty()) return absl::DataLossError(report.problems[0]);
  StateDict wanted = WantedState(Tensors(), 1, 0);
  wanted.aliases.clear();
  FSDP_RETURN_IF_ERROR(LoadCheckpoint(path, wanted));
  return CheckState(Tensors(), wanted);
}

std::map<std::string, std::string> ContentsOf(const std::string& path) {
  std::map<std::string, std::string> contents;
  if (fs::is_regular_file(path)) contents[""] = ReadFile(path);
  if (!fs::is_directory(path)) return contents;
  for (const std::string& name : ListNames(path)) contents[name] = ReadFile(JoinPath(path, name));
  return contents;
}

// An action in a directory `root` after `prepare`, with a check of its result.
struct Action {
  std::string name;
  std::function<absl::Status(const std::string& root)> prepare;
  std::function<absl::Status(const std::string& root)> act;
  std::function<absl::Status(const std::string& root)> check;
};

absl::Status Nothing(const std::string&) { return absl::OkStatus(); }

Action SaveAction(const std::string& name, StateDictType type, const SaveOptions& options, bool is_second = false) {
  const int64_t step = is_second && !options.overwrite ? 2 : 1;
  return {name, [=](const std::string& root) { return is_second ? Save(type, root, 1, {}) : absl::OkStatus(); },
          [=](const std::string& root) {
            SaveOptions save = options;
            if (!save.base.empty()) save.base = JoinPath(root, StepName(1));
            return Save(type, root, step, save);
          },
          [=](const std::string& root) -> absl::Status {
            FSDP_RETURN_IF_ERROR(CheckHolds(JoinPath(root, StepName(step))));
            return ListNames(root).size() == static_cast<size_t>(step)
                       ? absl::OkStatus()
                       : absl::InternalError("something is left behind");
          }};
}

// Converts the checkpoint that `prepare` saves; a conversion without faults gives the same bytes, unless they contain a
// save id.
Action ConvertAction(const std::string& name, const std::string& destination, const FormatTarget& to) {
  const auto convert = [to](const std::string& root, const std::string& name) {
    ConvertOptions options;
    options.target = to;
    return ConvertCheckpoint(JoinPath(root, StepName(1)), JoinPath(root, name), options).status();
  };
  return {name, [](const std::string& root) { return Save(StateDictType::kSharded, root, 1, {}); },
          [=](const std::string& root) { return convert(root, destination); },
          [=](const std::string& root) -> absl::Status {
            if (DriverOf(to).traits().is_ours) return CheckHolds(JoinPath(root, destination));
            FSDP_RETURN_IF_ERROR(convert(root, "again-" + destination));
            return ContentsOf(JoinPath(root, destination)) == ContentsOf(JoinPath(root, "again-" + destination))
                       ? absl::OkStatus()
                       : absl::InternalError("the bytes differ");
          }};
}

Action RepairAction() {
  const std::string lost[] = {"rank-00000-of-00002.h5", "checkpoint.h5", "manifest.json"};
  return {"Repair",
          [=](const std::string& root) -> absl::Status {
            FSDP_RETURN_IF_ERROR(Save(StateDictType::kSharded, root, 1, {.parity = 1}));
            fs::copy(JoinPath(root, StepName(1)), root + "/good");
            for (const std::string& name : lost) fs::remove(JoinPath(JoinPath(root, StepName(1)), name));
            return absl::OkStatus();
          },
          [](const std::string& root) { return RepairCheckpoint(JoinPath(root, StepName(1))).status(); },
          [](const std::string& root) {
            return ContentsOf(JoinPath(root, StepName(1))) == ContentsOf(root + "/good")
                       ? absl::OkStatus()
                       : absl::InternalError("the repaired bytes differ");
          }};
}

Action PruneAction() {
  return {"Prune",
          [](const std::string& root) -> absl::Status {
            FSDP_RETURN_IF_ERROR(Save(StateDictType::kSharded, root, 1, {}));
            return Save(StateDictType::kSharded, root, 2, {});
          },
          [](const std::string& root) { return PruneCheckpoints(root, 1); },
          [](const std::string& root) -> absl::Status {
            FSDP_RETURN_IF_ERROR(CheckHolds(JoinPath(root, StepName(2))));
            return ListNames(root).size() == 1 ? absl::OkStatus() : absl::InternalError("step 1 is left");
          }};
}

Action ReadAction() {
  return {"VerifyAndLoad", [](const std::string& root) { return Save(StateDictType::kSharded, root, 1, {}); },
          [](const std::string& root) { return CheckHolds(JoinPath(root, StepName(1))); }, Nothing};
}

class InterruptedCallsTest : public testing::TestWithParam<Action> {
 protected:
  // Runs the action with this fault, checks that it succeeds, and returns its number of calls.
  int64_t Run(Kind kind, int64_t at) {
    const std::string root = NewTestDirectory();
    EXPECT_OK(GetParam().prepare(root));
    SystemCallFaults::Begin(kind, at);
    const absl::Status acted = GetParam().act(root);
    const int64_t calls = SystemCallFaults::End();
    EXPECT_OK(acted);
    EXPECT_OK(GetParam().check(root));
    fs::remove_all(root);
    return calls;
  }
};

TEST_P(InterruptedCallsTest, GoesOnWhicheverCallItIs) {
  const bool all = std::getenv("EVERY_FAULT") != nullptr;  // without it at a few calls, spread over all
  for (const Kind kind : {Kind::kInterrupt, Kind::kCutShort}) {
    const int64_t calls = Run(kind, 0);
    EXPECT_GT(calls, 0);
    const int64_t stride = all ? 1 : std::max<int64_t>(1, calls / 5);
    for (int64_t k = 1; k <= calls; k += stride) {
      SCOPED_TRACE(absl::StrCat(kind == Kind::kInterrupt ? "interrupted" : "cut short", " at call ", k));
      Run(kind, k);
    }
    SCOPED_TRACE("every call");
    Run(kind, SystemCallFaults::kEvery);
    std::printf("%s: %lld calls to %s\n", GetParam().name.c_str(), static_cast<long long>(calls),
                kind == Kind::kInterrupt ? "interrupt" : "cut short");
  }
  std::printf("faults of system calls injected so far: %lld\n", static_cast<long long>(SystemCallFaults::injected()));
}

std::vector<Action> Actions() {
  return {SaveAction("SaveFull", StateDictType::kFull, {}),
          SaveAction("SaveSharedFull", StateDictType::kSharded, {.type = StateDictType::kFull}),
          SaveAction("SaveSharded", StateDictType::kSharded, {}),
          SaveAction("SaveLocal", StateDictType::kLocal, {}),
          SaveAction("SaveWithParity", StateDictType::kSharded, {.parity = 1}),
          SaveAction("SaveIncremental", StateDictType::kSharded, {.base = "step 1"}, true),
          SaveAction("SaveOverAnother", StateDictType::kSharded, {.overwrite = true}, true),
          ReadAction(),
          RepairAction(),
          PruneAction(),
          ConvertAction("ConvertToHdf5", "hdf5", Hdf5Target()),
          ConvertAction("ConvertToSafetensors", "one.safetensors", SafetensorsTarget()),
          ConvertAction("ConvertToTorch", "model.pt", TorchTarget()),
          ConvertAction("ConvertToDcp", "dcp", DcpTarget())};
}

INSTANTIATE_TEST_SUITE_P(Actions, InterruptedCallsTest, testing::ValuesIn(Actions()),
                         [](const testing::TestParamInfo<Action>& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp
