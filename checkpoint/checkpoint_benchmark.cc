// SPDX-License-Identifier: Apache-2.0
//
// Durable save and verified load beside the least that a disk asks for, in one run, because absolute numbers of a
// shared machine mean little.
//
//   bazel run //checkpoint:checkpoint_benchmark -- --directory=/path/on/the/disk --megabytes=1024 --repetitions=5
//
// A state of --tensors float32 tensors of unequal sizes is written and read with --io_threads threads. Rows:
//
//   save, floor      the same I/O into one flat file: space reserved, blocks of 4 MiB, as many in flight, then fsync
//   save, pwrite     the same bytes through the page cache, then fsync
//   save, KIND       SaveCheckpoint, until the checkpoint is durable and committed; of one rank, or of 2
//   save, parity     SHARDED of 2 ranks with one parity file: a third file to write, and two to read again
//   save, H5Dwrite   the same tensors through HDF5 (contiguous, aligned, never filled), then fsync
//   save, h5py|torch by python3, where it has them (benchmark_peers.py), then fsync; the process' start is not counted
//   load, floor      the flat file into the same memory by the same reads
//   load, verified   LoadCheckpoint of the SHARDED checkpoint, every digest compared; unverified: without digests
//   load, 3 from 8   by 3 ranks of what 8 ranks saved, after one another, verified
//   load, H5Dread    the tensors of H5Dwrite's file; h5py, torch as above
//   verify           VerifyCheckpoint of the SHARDED checkpoint: every byte, NaN and infinity counted
//   stage, memcpy    a copy of the state into warm memory, by two threads
//   stage, blocked   what AsyncSaver::Save keeps its caller waiting
//
// Loads are measured cold (the page cache is dropped for the files; a host below us may still have them) and warm.
// Columns: median seconds, its spread (lowest and highest), GB/s = payload / median / 1e9, and ratio = median of
// (seconds / seconds of the floor of the same repetition). Rows alternate; the first repetition is a warm-up and is not
// counted. What was saved before is deleted untimed.
#include <fcntl.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "checkpoint/async_saver.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/storage/file_system.h"
#include "checkpoint/verify.h"
#include "collectives/run_ranks.h"

ABSL_FLAG(std::string, directory, "",
          "where to write; a new directory is made in it (default: the temporary directory)");
ABSL_FLAG(int, megabytes, 512, "payload, in units of 10^6 bytes");
ABSL_FLAG(int, tensors, 100, "tensors that share it");
ABSL_FLAG(int, repetitions, 5, "counted runs of each row");
ABSL_FLAG(int, io_threads, 2, "threads of a save or load");
ABSL_FLAG(std::string, rows, "", "only rows whose name contains this, and their floors");
ABSL_FLAG(bool, json, false, "print one JSON object instead of a table");

namespace fsdp {
namespace {

namespace fs = std::filesystem;

struct Row {
  std::string name;
  std::string floor;                           // the row that its ratio refers to
  std::function<std::optional<double>()> run;  // seconds that it measured itself; none: it cannot be run here
  std::vector<double> seconds = {};
};

double Seconds(const std::function<void()>& run) {
  const absl::Time start = absl::Now();
  run();
  return absl::ToDoubleSeconds(absl::Now() - start);
}

class CheckpointBenchmark {
 public:
  explicit CheckpointBenchmark(std::string directory) : directory_(std::move(directory)) {
    const int count = absl::GetFlag(FLAGS_tensors);
    const int64_t numel = int64_t{absl::GetFlag(FLAGS_megabytes)} * 1000 * 1000 / 4;
    for (int i = 0; i < count; ++i) {
      // Sizes 1 : 2 : ... : count, as whole rows of 16.
      AddTensor(absl::StrCat("layer.", i, ".weight"),
                std::max<int64_t>(1, numel / count * 2 * (i + 1) / (count + 1) / 16));
    }
    copied_.resize(values_.size(), 0.0f);
    absl::StatusOr<std::unique_ptr<ThreadPool>> pool = ThreadPool::Create(absl::GetFlag(FLAGS_io_threads), "raw");
    Check(pool.ok(), "no threads");
    pool_ = *std::move(pool);
    // What loads read.
    WriteFlat();
    WriteHdf5();
    Save(StateDictType::kSharded, kSavedByOne, 1, 0);
    Save(StateDictType::kSharded, kSavedByEight, 8, 0);
    (void)Peer("h5py-save");
    (void)Peer("torch-save");
  }

  int64_t nbytes() const { return static_cast<int64_t>(values_.size()) * 4; }

  std::vector<Row> Rows() {
    const auto timed = [](std::function<void()> run) {
      return [run = std::move(run)]() -> std::optional<double> { return Seconds(run); };
    };
    const std::string save = "save, floor";
    const std::string cold = "load cold, floor";
    const std::string warm = "load warm, floor";
    return {
        {save, save, timed([this] { WriteFlat(); })},
        {"save, pwrite", save, timed([this] { WriteBuffered(); })},
        {"save, SHARDED", save, timed([this] { Save(StateDictType::kSharded, 1, 1, 0); })},
        {"save, SHARDED, 2 ranks", save, timed([this] { Save(StateDictType::kSharded, 4, 2, 0); })},
        {"save, LOCAL, 2 ranks", save, timed([this] { Save(StateDictType::kLocal, 5, 2, 0); })},
        {"save, FULL", save, timed([this] { Save(StateDictType::kFull, 2, 1, 0); })},
        {"save, parity", save, timed([this] { Save(StateDictType::kSharded, 3, 2, 1); })},
        {"save, H5Dwrite", save, timed([this] { WriteHdf5(); })},
        {"save, h5py", save, [this] { return Peer("h5py-save"); }},
        {"save, torch", save, [this] { return Peer("torch-save"); }},
        {cold, cold, timed([this] { ReadFlat(); })},
        {"load cold, verified", cold, timed([this] { Load(kSavedByOne, 1, true); })},
        {"load cold, 3 from 8", cold, timed([this] { Load(kSavedByEight, 3, true); })},
        {"load cold, H5Dread", cold, timed([this] { ReadHdf5(); })},
        {"load cold, h5py", cold, [this] { return Peer("h5py-load"); }},
        {"load cold, torch", cold, [this] { return Peer("torch-load"); }},
        {"verify cold", cold, timed([this] { Verify(); })},
        {warm, warm, timed([this] { ReadFlat(); })},
        {"load warm, verified", warm, timed([this] { Load(kSavedByOne, 1, true); })},
        {"load warm, unverified", warm, timed([this] { Load(kSavedByOne, 1, false); })},
        {"load warm, H5Dread", warm, timed([this] { ReadHdf5(); })},
        {"stage, memcpy", "stage, memcpy", timed([this] { CopyAll(); })},
        {"stage, blocked", "stage, memcpy", [this] { return StageOnly(); }},
    };
  }

  // What must be done before a row, untimed. What warms a row is that row itself.
  void Prepare(const Row& row) {
    if (row.name == row.floor && absl::StartsWith(row.name, "save")) fs::remove(directory_ + "/flat");
    if (absl::StartsWith(row.name, "save")) RemoveSaved();
    if (absl::StrContains(row.name, "H5Dwrite")) fs::remove(directory_ + "/direct.h5");
    if (absl::StrContains(row.name, "cold")) DropCache();
    if (absl::StrContains(row.name, "warm")) WarmCache(row);
  }

 private:
  // Steps that loads read.
  static constexpr int64_t kSavedByOne = 8;
  static constexpr int64_t kSavedByEight = 9;

  // A save makes new files, and nobody pays for the deletion of old ones.
  void RemoveSaved() {
    for (int64_t step = 1; step < kSavedByOne; ++step) fs::remove_all(absl::StrCat(directory_, "/step-0000000", step));
    fs::remove(directory_ + "/buffered");
  }

  void AddTensor(const std::string& name, int64_t rows) {
    offsets_.push_back(static_cast<int64_t>(values_.size()));
    names_.push_back(name);
    shapes_.push_back(Shape({rows, 16}));
    values_.resize(values_.size() + rows * 16, 1.5f + static_cast<float>(names_.size()));
    loaded_.resize(values_.size(), 0.0f);
  }

  // Rank `rank`'s part of the tensors that lie in `values`: rows, or a slice of one flat parameter of all.
  StateDict State(std::vector<float>& values, StateDictType type, int world_size, int rank) {
    StateDict state;
    state.type = type;
    FlatUnitLayout unit;
    unit.unsharded_numel = static_cast<int64_t>(values.size());
    const Interval flat = ChunkOf(unit.unsharded_numel, world_size, rank);
    for (size_t i = 0; i < names_.size(); ++i) {
      const int64_t numel = shapes_[i].numel();
      unit.parameters.push_back({names_[i], offsets_[i], numel});
      ShardedTensor tensor;
      tensor.shape = shapes_[i];
      const Interval held = type == StateDictType::kLocal
                                ? Intersect({flat.begin - offsets_[i], flat.end - offsets_[i]}, {0, numel})
                                : Dim0Chunk(shapes_[i], world_size, rank);
      if (!held.empty()) {
        const Buffer buffer = Buffer::Unowned(values.data() + offsets_[i] + held.begin, held.size() * 4);
        tensor.shards.push_back({held, Tensor(buffer, DType::kFloat32, {held.size()})});
      }
      state.Set(StateKey::Model(names_[i]), std::move(tensor));
    }
    if (type == StateDictType::kLocal) state.units.push_back(std::move(unit));
    return state;
  }

  void Save(StateDictType type, int64_t step, int world_size, int parity) {
    const absl::Status saved = RunRanks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
      SaveOptions options;
      options.parity = parity;
      options.io_threads = std::max(1, absl::GetFlag(FLAGS_io_threads) / world_size);
      return SaveCheckpoint(State(values_, type, world_size, group->rank()), directory_, step, *group, options)
          .status();
    });
    Check(saved.ok(), "a save failed");
  }

  void Load(int64_t step, int world_size, bool verify) {
    for (int rank = 0; rank < world_size; ++rank) {
      StateDict wanted = State(loaded_, StateDictType::kSharded, world_size, rank);
      const LoadOptions options = {.verify = verify, .io_threads = absl::GetFlag(FLAGS_io_threads)};
      Check(LoadCheckpoint(absl::StrCat(directory_, "/step-0000000", step), wanted, options).ok(), "a load failed");
    }
  }

  void Verify() {
    const VerifyOptions options = {.count_nonfinite = true, .io_threads = absl::GetFlag(FLAGS_io_threads)};
    const absl::StatusOr<VerifyReport> report =
        VerifyCheckpoint(absl::StrCat(directory_, "/step-0000000", kSavedByOne), options);
    Check(report.ok() && report->problems.empty(), "a checkpoint does not verify");
  }

  template <typename Transfer>
  void ForEachBlock(Transfer transfer) {
    const absl::Status status = pool_->ParallelFor(BlockCount(nbytes()), [&](int64_t block) {
      const int64_t begin = block * kBlockBytes;
      return transfer(begin, std::min(kBlockBytes, nbytes() - begin));
    });
    Check(status.ok(), "raw I/O failed");
  }

  // One queue per thread, as a save has.
  void WriteFlat() {
    const std::unique_ptr<File> file = *PosixFileSystem().Create(directory_ + "/flat");
    Check(file->Reserve(nbytes()).ok(), "the disk is full");
    const auto* bytes = reinterpret_cast<const std::byte*>(values_.data());
    const int64_t blocks = BlockCount(nbytes());
    const int threads = pool_->threads();
    std::vector<std::unique_ptr<WriteQueue>> queues(threads);
    const absl::Status written = pool_->ParallelFor(threads, [&](int64_t thread) -> absl::Status {
      std::unique_ptr<WriteQueue>& queue = queues[thread];
      queue = file->NewWriteQueue(4);
      for (int64_t block = thread; block < blocks; block += threads) {
        const int64_t begin = block * kBlockBytes;
        const absl::Status status =
            queue->Write(begin, absl::MakeConstSpan(bytes + begin, std::min(kBlockBytes, nbytes() - begin)));
        if (!status.ok()) return status;
      }
      return queue->Drain();
    });
    Check(written.ok(), "raw I/O failed");
    for (const std::unique_ptr<WriteQueue>& queue : queues) Check(queue->Finish().ok(), "raw I/O failed");
    Check(file->Sync().ok(), "fsync failed");
  }

  void WriteBuffered() {
    const std::string path = directory_ + "/buffered";
    const std::unique_ptr<File> file = *PosixFileSystem().Create(path);
    const auto* bytes = reinterpret_cast<const std::byte*>(values_.data());
    ForEachBlock(
        [&](int64_t begin, int64_t size) { return file->Write(begin, absl::MakeConstSpan(bytes + begin, size)); });
    Check(file->Sync().ok(), "fsync failed");
  }

  void ReadFlat() {
    const std::unique_ptr<File> file = *PosixFileSystem().Open(directory_ + "/flat");
    auto* bytes = reinterpret_cast<std::byte*>(loaded_.data());
    ForEachBlock([&](int64_t begin, int64_t size) { return file->Read(begin, absl::MakeSpan(bytes + begin, size)); });
  }

  void CopyAll() {
    ForEachBlock([&](int64_t begin, int64_t size) {
      std::memcpy(reinterpret_cast<char*>(copied_.data()) + begin, reinterpret_cast<char*>(values_.data()) + begin,
                  size);
      return absl::OkStatus();
    });
  }

  // The arena is that of a saver that has saved before.
  double StageOnly() {
    double seconds = 0;
    const absl::Status ran = RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
      AsyncSaverOptions options;
      options.save.overwrite = true;
      options.copy_threads = absl::GetFlag(FLAGS_io_threads);
      const auto saver = AsyncSaver::Create(directory_, *group, options);
      if (!saver.ok()) return saver.status();
      for (int64_t step = 6; step < 8; ++step) {
        const auto report = (*saver)->Save(State(values_, StateDictType::kSharded, 1, 0), step);
        if (!report.ok()) return report.status();
        seconds = absl::ToDoubleSeconds(report->blocked - report->waited);
      }
      return (*saver)->Wait().status();
    });
    Check(ran.ok(), "an asynchronous save failed");
    return seconds;
  }

  void WriteHdf5() {
    const std::string path = directory_ + "/direct.h5";
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
    H5Pset_alignment(access, 2048, 4096);
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER);
    for (size_t i = 0; i < names_.size(); ++i) {
      const hsize_t dims[] = {static_cast<hsize_t>(shapes_[i].dim(0)), 16};
      const hid_t space = H5Screate_simple(2, dims, nullptr);
      const hid_t dataset =
          H5Dcreate2(file, names_[i].c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
      Check(H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values_.data() + offsets_[i]) >= 0,
            "H5Dwrite failed");
      H5Dclose(dataset);
      H5Sclose(space);
    }
    H5Pclose(creation);
    H5Pclose(access);
    Check(H5Fclose(file) >= 0, "H5Fclose failed");
    const int fd = open(path.c_str(), O_WRONLY);
    Check(fsync(fd) == 0, "fsync failed");
    close(fd);
  }

  void ReadHdf5() {
    const hid_t file = H5Fopen((directory_ + "/direct.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    for (size_t i = 0; i < names_.size(); ++i) {
      const hid_t dataset = H5Dopen2(file, names_[i].c_str(), H5P_DEFAULT);
      Check(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, loaded_.data() + offsets_[i]) >= 0,
            "H5Dread failed");
      H5Dclose(dataset);
    }
    H5Fclose(file);
  }

  // Seconds of one row of benchmark_peers.py; none where python3 or the library is missing.
  std::optional<double> Peer(const std::string& what) {
    std::string command = absl::StrCat("python3 checkpoint/benchmark_peers.py ", what, " ", directory_);
    for (const Shape& shape : shapes_) absl::StrAppend(&command, " ", shape.dim(0));
    FILE* const pipe = popen((command + " 2>/dev/null").c_str(), "r");
    if (pipe == nullptr) return std::nullopt;
    char line[64] = "";
    const bool has_line = fgets(line, sizeof(line), pipe) != nullptr;
    double seconds = 0;
    if (pclose(pipe) != 0 || !has_line || !absl::SimpleAtod(absl::StripAsciiWhitespace(line), &seconds)) {
      return std::nullopt;
    }
    return seconds;
  }

  template <typename Visit>
  void ForEachFile(Visit visit) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory_)) {
      if (!entry.is_regular_file()) continue;
      const int fd = open(entry.path().c_str(), O_RDONLY);
      visit(fd);
      close(fd);
    }
  }

  void DropCache() {
    ForEachFile([](int fd) { posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); });
  }

  // Direct I/O leaves nothing in the page cache, so a warm row's files are read through it first.
  void WarmCache(const Row& row) {
    std::vector<char> buffer(1 << 20);
    ForEachFile([&](int fd) {
      while (read(fd, buffer.data(), buffer.size()) > 0) {
      }
    });
    (void)row.run();
  }

  const std::string directory_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<std::string> names_;
  std::vector<Shape> shapes_;
  std::vector<int64_t> offsets_;  // of each tensor's first element in values_
  std::vector<float> values_;
  std::vector<float> loaded_;
  std::vector<float> copied_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The rows that were asked for, and their floors.
std::vector<Row> Selected(std::vector<Row> rows) {
  const std::string wanted = absl::GetFlag(FLAGS_rows);
  std::vector<Row> selected;
  for (const Row& row : rows) {
    const bool is_floor = std::any_of(rows.begin(), rows.end(), [&](const Row& other) {
      return other.floor == row.name && absl::StrContains(other.name, wanted);
    });
    if (is_floor || absl::StrContains(row.name, wanted)) selected.push_back(row);
  }
  return selected;
}

void Measure(CheckpointBenchmark& benchmark, std::vector<Row>& rows) {
  for (int repetition = 0; repetition <= absl::GetFlag(FLAGS_repetitions); ++repetition) {
    for (Row& row : rows) {
      if (repetition > 1 && row.seconds.empty()) continue;  // what cannot be run here
      benchmark.Prepare(row);
      const std::optional<double> seconds = row.run();
      if (repetition > 0 && seconds) row.seconds.push_back(*seconds);
    }
  }
}

nlohmann::json Summarise(const std::vector<Row>& rows, int64_t nbytes) {
  nlohmann::json summary = nlohmann::json::array();
  for (const Row& row : rows) {
    if (row.seconds.empty()) continue;
    const Row& floor = *std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == row.floor; });
    std::vector<double> ratios;
    for (size_t i = 0; i < row.seconds.size(); ++i) ratios.push_back(row.seconds[i] / floor.seconds[i]);
    const auto [low, high] = std::minmax_element(row.seconds.begin(), row.seconds.end());
    const double median = Median(row.seconds);
    summary.push_back({{"name", row.name},
                       {"seconds", median},
                       {"lowest", *low},
                       {"highest", *high},
                       {"gigabytes_per_second", static_cast<double>(nbytes) / median / 1e9},
                       {"ratio", Median(ratios)}});
  }
  return summary;
}

void Print(const nlohmann::json& summary) {
  printf("%-26s %9s %9s %9s %7s %6s\n", "", "seconds", "lowest", "highest", "GB/s", "ratio");
  for (const nlohmann::json& row : summary) {
    printf("%-26s %9.3f %9.3f %9.3f %7.2f %6.2f\n", row["name"].get<std::string>().c_str(),
           row["seconds"].get<double>(), row["lowest"].get<double>(), row["highest"].get<double>(),
           row["gigabytes_per_second"].get<double>(), row["ratio"].get<double>());
  }
}

int Main() {
  std::string directory = absl::GetFlag(FLAGS_directory);
  if (directory.empty()) directory = fs::temp_directory_path();
  directory += "/checkpoint-benchmark-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    fprintf(stderr, "cannot make a directory %s\n", directory.c_str());
    return 1;
  }
  CheckpointBenchmark benchmark(directory);
  std::vector<Row> rows = Selected(benchmark.Rows());
  Measure(benchmark, rows);
  fs::remove_all(directory);
  double load[1] = {0};
  (void)getloadavg(load, 1);
  const nlohmann::json summary = Summarise(rows, benchmark.nbytes());
  if (absl::GetFlag(FLAGS_json)) {
    const nlohmann::json whole = {{"bytes", benchmark.nbytes()},
                                  {"tensors", absl::GetFlag(FLAGS_tensors)},
                                  {"io_threads", absl::GetFlag(FLAGS_io_threads)},
                                  {"repetitions", absl::GetFlag(FLAGS_repetitions)},
                                  {"load_average", load[0]},
                                  {"rows", summary}};
    printf("%s\n", whole.dump(2).c_str());
  } else {
    printf("%.3f GB in %d tensors, %d threads, median of %d, load average %.1f\n",
           static_cast<double>(benchmark.nbytes()) / 1e9, absl::GetFlag(FLAGS_tensors), absl::GetFlag(FLAGS_io_threads),
           absl::GetFlag(FLAGS_repetitions), load[0]);
    Print(summary);
  }
  return 0;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return fsdp::Main();
}
