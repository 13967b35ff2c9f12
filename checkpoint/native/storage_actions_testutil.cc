// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/storage_actions_testutil.h"

#include <filesystem>
#include <map>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/object/download.h"
#include "fsdp/checkpoint/object/fake_object_store.h"
#include "fsdp/checkpoint/object/upload.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/collectives/run_ranks.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

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
  for (const std::string& name : ListNames(path)) {
    const std::string entry = JoinPath(path, name);
    contents[name] = fs::is_directory(entry) ? "a directory" : ReadFile(entry);
  }
  return contents;
}

absl::Status CheckEqual(const std::string& a, const std::string& b) {
  const std::map<std::string, std::string> wanted = ContentsOf(a);
  std::map<std::string, std::string> found = ContentsOf(b);
  for (const auto& [name, bytes] : wanted) {
    if (found.count(name) == 0) return absl::DataLossError(absl::StrCat(b, " lacks ", name));
    if (found[name] != bytes) return absl::DataLossError(absl::StrCat(b, "/", name, " differs"));
    found.erase(name);
  }
  // Left by a repair that could not delete it; the next repair does.
  while (!found.empty() && absl::StartsWith(found.begin()->first, ".repair-")) found.erase(found.begin());
  return found.empty() ? absl::OkStatus() : absl::DataLossError(absl::StrCat(b, " has ", found.begin()->first, " too"));
}

absl::Status Nothing(const std::string&) { return absl::OkStatus(); }

absl::Status SaveOneStep(const std::string& root) { return Save(StateDictType::kSharded, root, 1, {}); }

// OK when every step of `root` holds the tensors, and step 1 exists if it did before.
absl::Status CheckOldOrNew(const std::string& root, bool had_step_1) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> steps, ListCheckpoints(root));
  for (const std::string& step : steps) FSDP_RETURN_IF_ERROR(CheckHolds(JoinPath(root, step)));
  const bool has_step_1 = fs::exists(JoinPath(root, StepName(1)));
  return has_step_1 || !had_step_1 ? absl::OkStatus() : absl::DataLossError("step 1 is lost");
}

StorageAction SaveAction(const std::string& name, StateDictType type, const SaveOptions& options,
                         bool is_second = false) {
  const int64_t step = is_second && !options.overwrite ? 2 : 1;
  return {name, [=](const std::string& root) { return is_second ? Save(type, root, 1, {}) : absl::OkStatus(); },
          [=](const std::string& root) {
            SaveOptions save = options;
            if (!save.base.empty()) save.base = JoinPath(root, StepName(1));
            return Save(type, root, step, save);
          },
          [=](const std::string& root) { return CheckHolds(JoinPath(root, StepName(step))); },
          [=](const std::string& root) { return CheckOldOrNew(root, is_second); }};
}

// Converts the checkpoint that `prepare` saves; a conversion without faults gives the same bytes, unless they contain a
// save id.
StorageAction ConvertAction(const std::string& name, const std::string& destination, const FormatTarget& to) {
  const auto convert = [to](const std::string& root, const std::string& name) {
    ConvertOptions options;
    options.target = to;
    return ConvertCheckpoint(JoinPath(root, StepName(1)), JoinPath(root, name), options).status();
  };
  const auto check = [=](const std::string& root) -> absl::Status {
    if (DriverOf(to).traits().is_ours) return CheckHolds(JoinPath(root, destination));
    FSDP_RETURN_IF_ERROR(convert(root, "again-" + destination));
    return CheckEqual(JoinPath(root, "again-" + destination), JoinPath(root, destination));
  };
  return {name, SaveOneStep, [=](const std::string& root) { return convert(root, destination); }, check,
          [=](const std::string& root) {
            return fs::exists(JoinPath(root, destination)) ? check(root) : CheckOldOrNew(root, true);
          }};
}

StorageAction RepairAction() {
  const std::string lost[] = {"rank-00000-of-00002.h5", "checkpoint.h5", "manifest.json"};
  const auto repair = [](const std::string& root) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const RepairReport report, RepairCheckpoint(JoinPath(root, StepName(1))));
    return report.is_whole() ? absl::OkStatus() : absl::DataLossError(absl::StrJoin(report.problems, "; "));
  };
  const auto check = [](const std::string& root) { return CheckEqual(root + "/good", JoinPath(root, StepName(1))); };
  return {"Repair",
          [=](const std::string& root) -> absl::Status {
            FSDP_RETURN_IF_ERROR(Save(StateDictType::kSharded, root, 1, {.parity = 1}));
            fs::copy(JoinPath(root, StepName(1)), root + "/good");
            for (const std::string& name : lost) fs::remove(JoinPath(JoinPath(root, StepName(1)), name));
            return absl::OkStatus();
          },
          repair, check,
          [=](const std::string& root) -> absl::Status {
            FSDP_RETURN_IF_ERROR(repair(root));
            return check(root);
          }};
}

StorageAction PruneAction() {
  const auto prune = [](const std::string& root) -> absl::Status {
    std::vector<std::string> left;
    FSDP_RETURN_IF_ERROR(PruneCheckpoints(root, 1, 0, &left));
    return left.empty() ? absl::OkStatus() : absl::UnavailableError(left[0]);
  };
  const auto check = [](const std::string& root) -> absl::Status {
    FSDP_RETURN_IF_ERROR(CheckHolds(JoinPath(root, StepName(2))));
    return fs::exists(JoinPath(root, StepName(1))) ? absl::InternalError("step 1 is left") : absl::OkStatus();
  };
  return {"Prune",
          [](const std::string& root) -> absl::Status {
            FSDP_RETURN_IF_ERROR(SaveOneStep(root));
            return Save(StateDictType::kSharded, root, 2, {});
          },
          prune, check, [](const std::string& root) { return CheckOldOrNew(root, false); }};
}

StorageAction ReadAction() {
  return {"VerifyAndLoad", SaveOneStep, [](const std::string& root) { return CheckHolds(JoinPath(root, StepName(1))); },
          Nothing, Nothing};
}

// The newest step, or an older one and the reason.
StorageAction LatestAction() {
  return {"Latest",
          [](const std::string& root) -> absl::Status {
            FSDP_RETURN_IF_ERROR(SaveOneStep(root));
            return Save(StateDictType::kSharded, root, 2, {});
          },
          [](const std::string& root) -> absl::Status {
            std::vector<std::string> skipped;
            FSDP_ASSIGN_OR_RETURN(const std::string newest, LatestCheckpoint(root, &skipped));
            if (newest == JoinPath(root, StepName(2)) && skipped.empty()) return absl::OkStatus();
            if (newest != JoinPath(root, StepName(1)) || skipped.size() != 1) return absl::InternalError(newest);
            return absl::DataLossError(skipped[0]);
          },
          Nothing, Nothing};
}

// A copy to an object store, and one from there.
StorageAction PushAction() {
  const auto store = std::make_shared<FakeObjectStore>(int64_t{1} << 20);
  const auto push = [=](const std::string& root) {
    return UploadCheckpoint(PosixFileSystem(), JoinPath(root, StepName(1)), *store, "run", {.threads = 1}).status();
  };
  const auto check = [=](const std::string& root) -> absl::Status {
    FSDP_RETURN_IF_ERROR(
        DownloadCheckpoint(*store, "run/" + StepName(1), PosixFileSystem(), root + "/pulled", {.threads = 1}).status());
    return CheckHolds(root + "/pulled");
  };
  return {"Push",
          [=](const std::string& root) {
            for (const auto& [key, bytes] : store->objects()) (void)store->Delete(key);
            return SaveOneStep(root);
          },
          push, check,
          [=](const std::string& root) {
            // The store has all of the step, or no manifest of it.
            return store->objects().count("run/" + StepName(1) + "/manifest.json") != 0 ? check(root)
                                                                                        : CheckOldOrNew(root, true);
          }};
}

StorageAction PullAction() {
  const auto store = std::make_shared<FakeObjectStore>(int64_t{1} << 20);
  const auto check = [](const std::string& root) { return CheckHolds(JoinPath(root, StepName(7))); };
  return {"Pull",
          [=](const std::string& root) -> absl::Status {
            FSDP_RETURN_IF_ERROR(SaveOneStep(root));
            return UploadCheckpoint(PosixFileSystem(), JoinPath(root, StepName(1)), *store, "run", {.overwrite = true})
                .status();
          },
          [=](const std::string& root) {
            return DownloadCheckpoint(*store, "run/" + StepName(1), PosixFileSystem(), JoinPath(root, StepName(7)),
                                      {.threads = 1})
                .status();
          },
          check, [=](const std::string& root) { return CheckOldOrNew(root, true); }};
}

}  // namespace

std::vector<StorageAction> StorageActions() {
  return {SaveAction("SaveFull", StateDictType::kFull, {}),
          SaveAction("SaveSharedFull", StateDictType::kSharded, {.type = StateDictType::kFull}),
          SaveAction("SaveSharded", StateDictType::kSharded, {}),
          SaveAction("SaveLocal", StateDictType::kLocal, {}),
          SaveAction("SaveWithParity", StateDictType::kSharded, {.parity = 1}),
          SaveAction("SaveIncremental", StateDictType::kSharded, {.base = "step 1"}, true),
          SaveAction("SaveOverAnother", StateDictType::kSharded, {.overwrite = true}, true),
          ReadAction(),
          LatestAction(),
          RepairAction(),
          PruneAction(),
          PushAction(),
          PullAction(),
          ConvertAction("ConvertToHdf5", "hdf5", Hdf5Target()),
          ConvertAction("ConvertToSafetensors", "one.safetensors", SafetensorsTarget()),
          ConvertAction("ConvertToTorch", "model.pt", TorchTarget()),
          ConvertAction("ConvertToDcp", "dcp", DcpTarget())};
}

}  // namespace fsdp
