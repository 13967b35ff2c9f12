// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/benchmark/checkpoint_rows.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/benchmark/hdf5_baseline.h"
#include "fsdp/checkpoint/benchmark/page_cache.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/tensor/host_device.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// Steps that loads read. Rows that save use the steps before them, and delete them again.
constexpr int64_t kSavedByOne = 18;
constexpr int64_t kSavedByEight = 19;

std::string StepPath(const std::string& directory, int64_t step) {
  return absl::StrCat(directory, "/step-000000", step < 10 ? "0" : "", step);
}

// The threads of one rank: all ranks together have as many as a single rank.
int ThreadsOf(int io_threads, int world_size) { return std::max(1, io_threads / world_size); }

}  // namespace

CheckpointRows::CheckpointRows(const CheckpointRowsOptions& options, std::unique_ptr<ThreadPool> pool)
    : options_(options),
      pool_(std::move(pool)),
      tensors_(options.tensors, options.payload_bytes),
      flat_(Path("flat"), *pool_),
      copy_(NewAlignedBlock(tensors_.nbytes())) {
  std::memset(copy_.get(), 0, tensors_.nbytes());
}

// The files for the loads are written once, here, and kept.
absl::StatusOr<std::unique_ptr<CheckpointRows>> CheckpointRows::Create(const CheckpointRowsOptions& options) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ThreadPool> pool, ThreadPool::Create(options.io_threads, "raw"));
  std::unique_ptr<CheckpointRows> rows(new CheckpointRows(options, std::move(pool)));
  FSDP_RETURN_IF_ERROR(rows->flat_.Write(rows->tensors_.saved(), rows->nbytes()));
  FSDP_RETURN_IF_ERROR(WriteByHdf5(rows->tensors_, rows->Path("kept.h5")));
  FSDP_RETURN_IF_ERROR(rows->Save({StateDictType::kSharded, kSavedByOne, 1}));
  FSDP_RETURN_IF_ERROR(rows->Save({StateDictType::kSharded, kSavedByEight, 8}));
  return rows;
}

std::vector<PairedRow> CheckpointRows::Rows() {
  std::vector<PairedRow> rows;
  AddSaves(rows);
  AddLoads(rows);
  AddStaging(rows);
  return rows;
}

// The name selects the preparation: "save" deletes the files of the previous save, "cold" and "warm" set the page
// cache.
PairedRow CheckpointRows::Row(const std::string& name, const std::string& floor, std::function<absl::Status()> run) {
  PairedRow row = {name, floor, [run = std::move(run)] { return Timed(run); }};
  if (absl::StartsWith(name, "save")) row.prepare = [this] { return RemoveSaved(); };
  if (absl::StrContains(name, "cold")) row.prepare = [this] { return DropFromPageCache(options_.directory); };
  if (absl::StrContains(name, "warm")) row.prepare = [this] { return ReadIntoPageCache(options_.directory); };
  return row;
}

// As Row, but the peer measures its time itself: starting Python and importing are not part of the comparison.
PairedRow CheckpointRows::PeerRow(const std::string& name, const std::string& floor, const std::string& what) {
  PairedRow row = Row(name, floor, {});
  row.run = [this, what] { return Peer(what); };
  return row;
}

// Every form writes the same bytes, so they share one floor, except parity, which writes half as many bytes more.
void CheckpointRows::AddSaves(std::vector<PairedRow>& rows) {
  const std::string floor = "save, floor";
  const auto save = [&](const std::string& name, const SaveForm& form) {
    rows.push_back(Row(name, floor, [this, form] { return Save(form); }));
  };
  const auto raw = [&](const std::string& name, int64_t nbytes) {
    rows.push_back(
        Row(name, floor, [this, nbytes] { return RawFile(Path("new"), *pool_).Write(tensors_.saved(), nbytes); }));
  };
  raw(floor, nbytes());
  rows.push_back(
      Row("save, pwrite", floor, [this] { return RawFile(Path("new"), *pool_).WriteBuffered(tensors_.saved()); }));
  save("save, SHARDED", {StateDictType::kSharded, 1, 1});
  save("save, SHARDED, 2 ranks", {StateDictType::kSharded, 2, 2});
  save("save, LOCAL", {StateDictType::kLocal, 3, 1});
  save("save, LOCAL, 2 ranks", {StateDictType::kLocal, 4, 2});
  save("save, FULL", {StateDictType::kFull, 5, 1});
  save("save, FULL, 2 ranks", {StateDictType::kFull, 6, 2});
  raw("save, parity, floor", nbytes() + nbytes() / 2);
  save("save, parity", {StateDictType::kSharded, 7, 2, 1});
  rows.back().floor = "save, parity, floor";
  rows.push_back(Row("save, H5Dwrite", floor, [this] { return WriteByHdf5(tensors_, Path("new")); }));
  for (const char* peer : {"h5py", "torch", "dcp"}) {
    rows.push_back(PeerRow(absl::StrCat("save, ", peer), floor, absl::StrCat(peer, "-save")));
  }
}

// Every row reads the same payload, cold and warm.
void CheckpointRows::AddLoads(std::vector<PairedRow>& rows) {
  for (const std::string cache : {"cold", "warm"}) {
    const std::string load = absl::StrCat("load ", cache, ", ");
    const std::string floor = load + "floor";
    rows.push_back(Row(floor, floor, [this] { return flat_.Read(tensors_.loaded()); }));
    rows.push_back(Row(load + "pread", floor, [this] { return flat_.ReadBuffered(tensors_.loaded()); }));
    rows.push_back(Row(load + "verified", floor, [this] { return Load(kSavedByOne, 1, true); }));
    rows.push_back(Row(load + "unverified", floor, [this] { return Load(kSavedByOne, 1, false); }));
    rows.push_back(Row(load + "3 from 8", floor, [this] { return Load(kSavedByEight, 3, true); }));
    rows.push_back(Row(load + "H5Dread", floor, [this] { return ReadByHdf5(tensors_, Path("kept.h5")); }));
    for (const char* peer : {"h5py", "torch", "dcp"}) {
      rows.push_back(PeerRow(load + peer, floor, absl::StrCat(peer, "-load")));
    }
    rows.push_back(Row("verify " + cache, floor, [this] { return Verify(); }));
  }
}

void CheckpointRows::AddStaging(std::vector<PairedRow>& rows) {
  const std::string floor = "stage, memcpy";
  rows.push_back(Row(floor, floor, [this] { return CopyAll(); }));
  rows.push_back(Row("stage, blocked", floor, {}));
  rows.back().run = [this] { return StageOnly(); };
}

// Ranks are threads of this process that share the threads for I/O: a machine's disk does not become faster with more
// ranks.
absl::Status CheckpointRows::Save(const SaveForm& form) const {
  // FULL of several ranks is made from their dim-0 chunks.
  const bool is_gathered = form.type == StateDictType::kFull && form.world_size > 1;
  const StateDictType held = is_gathered ? StateDictType::kSharded : form.type;
  SaveOptions options;
  options.type = form.type;
  options.parity = form.parity;
  options.io_threads = ThreadsOf(options_.io_threads, form.world_size);
  return RunRanks(form.world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StateDict state = tensors_.StateOf(held, form.world_size, group->rank(), tensors_.saved());
    return SaveCheckpoint(state, options_.directory, form.step, *group, options).status();
  });
}

// Ranks are threads here as well; each wants its dim-0 chunk, for any number of ranks that saved.
absl::Status CheckpointRows::Load(int64_t step, int world_size, bool verify) const {
  const LoadOptions options = {.verify = verify, .io_threads = ThreadsOf(options_.io_threads, world_size)};
  return RunRanks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
    StateDict wanted = tensors_.StateOf(StateDictType::kSharded, world_size, group->rank(), tensors_.loaded());
    return LoadCheckpoint(StepPath(options_.directory, step), wanted, options);
  });
}

// A checkpoint with problems fails the row: a fast answer that is wrong is not a result.
absl::Status CheckpointRows::Verify() const {
  const VerifyOptions options = {.count_nonfinite = true, .io_threads = options_.io_threads};
  FSDP_ASSIGN_OR_RETURN(const VerifyReport report,
                        VerifyCheckpoint(StepPath(options_.directory, kSavedByOne), options));
  return report.problems.empty() ? absl::OkStatus() : absl::DataLossError(report.problems.front());
}

// The floor of staging: the same bytes by the same threads, into memory that has been touched.
absl::Status CheckpointRows::CopyAll() {
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  return pool_->ParallelFor((nbytes() + kPieceBytes - 1) / kPieceBytes, [&](int64_t piece) {
    const int64_t begin = piece * kPieceBytes;
    std::memcpy(copy_.get() + begin, tensors_.saved().data() + begin, std::min(kPieceBytes, nbytes() - begin));
    return absl::OkStatus();
  });
}

// Only the time for which Save blocks its caller, without waiting for the previous save. The first save allocates the
// arena; MeasureRows does not count it.
absl::StatusOr<double> CheckpointRows::StageOnly() {
  constexpr int64_t kStep = 8;
  if (saver_ == nullptr) {
    AsyncSaverOptions options;
    options.save.overwrite = true;
    options.copy_threads = options_.io_threads;
    alone_ = std::move(CreateLocalGroups({CreateHostDevice()}).front());
    FSDP_ASSIGN_OR_RETURN(saver_, AsyncSaver::Create(options_.directory, *alone_, options));
  }
  const StateDict state = tensors_.StateOf(StateDictType::kSharded, 1, 0, tensors_.saved());
  FSDP_ASSIGN_OR_RETURN(const AsyncSaveReport report, saver_->Save(state, kStep));
  FSDP_RETURN_IF_ERROR(saver_->Wait().status());
  return absl::ToDoubleSeconds(report.blocked - report.waited);
}

// The first row of a peer starts the program. A failure is kept, so that each row of a missing peer reports it.
absl::StatusOr<double> CheckpointRows::Peer(const std::string& what) {
  if (options_.python.empty()) return absl::UnavailableError("no python was given");
  if (peer_.ok() && *peer_ == nullptr) {
    std::error_code error;
    if (!fs::exists(options_.peers, error)) {
      return absl::UnavailableError(absl::StrCat("no script ", options_.peers, " in ", fs::current_path().string()));
    }
    std::vector<std::string> command = {options_.python, options_.peers, options_.directory};
    for (const BenchmarkTensors::Entry& tensor : tensors_.entries()) {
      command.push_back(absl::StrCat(tensor.shape.dim(0)));
    }
    peer_ = PeerProcess::Start(command);
  }
  FSDP_RETURN_IF_ERROR(peer_.status());
  return (*peer_)->Ask(what);
}

// Deleting frees blocks of the disk, which takes time: it is done before a row, not during it.
absl::Status CheckpointRows::RemoveSaved() const {
  std::error_code error;
  for (int64_t step = 1; step < kSavedByOne && !error; ++step) {
    fs::remove_all(StepPath(options_.directory, step), error);
  }
  if (!error) fs::remove(Path("new"), error);
  return error ? absl::InternalError(absl::StrCat("cannot remove what was saved: ", error.message()))
               : absl::OkStatus();
}

}  // namespace fsdp
