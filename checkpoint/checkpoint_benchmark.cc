// SPDX-License-Identifier: Apache-2.0
//
// Durable save and verified load beside the least that a disk asks for, in one run, because absolute numbers of a
// shared machine mean little.
//
//   bazel run //checkpoint:checkpoint_benchmark -- --directory=/path/on/the/disk --megabytes=1024 --repetitions=5
//
// A state of --tensors float32 tensors of unequal sizes is written and read by one rank with --io_threads threads.
// Rows:
//
//   raw pwrite       the same bytes into one flat file, in blocks of 4 MiB, then fsync: the floor of a save
//   SHARDED, FULL    SaveCheckpoint, until the checkpoint is durable and committed
//   H5Dwrite         the same tensors through HDF5 (contiguous, aligned, never filled), then fsync
//   raw pread        the flat file into the same memory: the floor of a load
//   verified         LoadCheckpoint of the SHARDED checkpoint, every digest compared
//   unverified       the same without digests
//   H5Dread          the tensors of H5Dwrite's file
//
// Loads are measured cold (the page cache is dropped for the files; a host below us may still have them) and warm.
// Columns: median seconds, its spread (lowest and highest), GB/s = payload / median / 1e9, and ratio = median of
// (seconds / seconds of the raw row of the same repetition). Rows alternate; the first repetition is a warm-up and is
// not counted. Before each write as many bytes are written and unlinked, untimed, so that no row pays for pages that
// the guest must fault in.
#include <fcntl.h>
#include <hdf5.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "collectives/run_ranks.h"

ABSL_FLAG(std::string, directory, "",
          "where to write; a new directory is made in it (default: the temporary directory)");
ABSL_FLAG(int, megabytes, 512, "payload, in units of 10^6 bytes");
ABSL_FLAG(int, tensors, 100, "tensors that share it");
ABSL_FLAG(int, repetitions, 5, "counted runs of each row");
ABSL_FLAG(int, io_threads, 2, "threads of a save or load");
ABSL_FLAG(bool, json, false, "print one JSON object instead of a table");

namespace fsdp {
namespace {

namespace fs = std::filesystem;

struct Row {
  std::string name;
  std::string raw;  // the row that its ratio refers to
  std::function<void()> run;
  std::vector<double> seconds;
};

class CheckpointBenchmark {
 public:
  explicit CheckpointBenchmark(std::string directory) : directory_(std::move(directory)) {
    flat_ = directory_ + "/flat";
    h5_ = directory_ + "/direct.h5";
    const int count = absl::GetFlag(FLAGS_tensors);
    const int64_t numel = int64_t{absl::GetFlag(FLAGS_megabytes)} * 1000 * 1000 / 4;
    for (int i = 0; i < count; ++i) {
      // Sizes 1 : 2 : ... : count, as whole rows of 16.
      AddTensor(absl::StrCat("layer.", i, ".weight"),
                std::max<int64_t>(1, numel / count * 2 * (i + 1) / (count + 1) / 16));
    }
    absl::StatusOr<std::unique_ptr<ThreadPool>> pool = ThreadPool::Create(absl::GetFlag(FLAGS_io_threads), "raw");
    Check(pool.ok(), "no threads");
    pool_ = *std::move(pool);
  }

  int64_t nbytes() const { return static_cast<int64_t>(values_.size()) * 4; }

  std::vector<Row> Rows() {
    return {
        {"save, raw pwrite + fsync", "save, raw pwrite + fsync", [this] { WriteFlat(flat_); }, {}},
        {"save, SHARDED", "save, raw pwrite + fsync", [this] { Save(StateDictType::kSharded, 1); }, {}},
        {"save, FULL", "save, raw pwrite + fsync", [this] { Save(StateDictType::kFull, 2); }, {}},
        {"save, H5Dwrite + fsync", "save, raw pwrite + fsync", [this] { WriteHdf5(); }, {}},
        {"load cold, raw pread", "load cold, raw pread", [this] { ReadFlat(); }, {}},
        {"load cold, verified", "load cold, raw pread", [this] { Load(true); }, {}},
        {"load cold, H5Dread", "load cold, raw pread", [this] { ReadHdf5(); }, {}},
        {"load warm, raw pread", "load warm, raw pread", [this] { ReadFlat(); }, {}},
        {"load warm, verified", "load warm, raw pread", [this] { Load(true); }, {}},
        {"load warm, unverified", "load warm, raw pread", [this] { Load(false); }, {}},
        {"load warm, H5Dread", "load warm, raw pread", [this] { ReadHdf5(); }, {}},
    };
  }

  // What must be done before a row, untimed.
  void Prepare(const Row& row) {
    if (row.name.find("save") == 0) {
      WriteFlat(directory_ + "/warm-up");
      fs::remove(directory_ + "/warm-up");
    }
    if (row.name.find("cold") != std::string::npos) DropCache();
    if (row.name.find("warm") != std::string::npos) row.run();
  }

 private:
  void AddTensor(const std::string& name, int64_t rows) {
    offsets_.push_back(static_cast<int64_t>(values_.size()));
    names_.push_back(name);
    shapes_.push_back(Shape({rows, 16}));
    values_.resize(values_.size() + rows * 16, 1.5f + static_cast<float>(names_.size()));
    loaded_.resize(values_.size(), 0.0f);
  }

  StateDict State(std::vector<float>& values, StateDictType type) {
    StateDict state;
    state.type = type;
    for (size_t i = 0; i < names_.size(); ++i) {
      const Buffer buffer = Buffer::Unowned(values.data() + offsets_[i], shapes_[i].numel() * 4);
      state.Set(StateKey::Model(names_[i]), ShardedTensor::Whole(Tensor(buffer, DType::kFloat32, shapes_[i])));
    }
    return state;
  }

  void Save(StateDictType type, int64_t step) {
    const absl::Status saved = RunRanks(1, [&](const std::shared_ptr<ProcessGroup>& group) {
      const SaveOptions options = {.overwrite = true, .io_threads = absl::GetFlag(FLAGS_io_threads)};
      return SaveCheckpoint(State(values_, type), directory_, step, *group, options).status();
    });
    Check(saved.ok(), "a save failed");
  }

  void Load(bool verify) {
    StateDict wanted = State(loaded_, StateDictType::kSharded);
    const LoadOptions options = {.verify = verify, .io_threads = absl::GetFlag(FLAGS_io_threads)};
    Check(LoadCheckpoint(directory_ + "/step-00000001", wanted, options).ok(), "a load failed");
  }

  template <typename Transfer>
  void ForEachBlock(Transfer transfer) {
    const absl::Status status = pool_->ParallelFor(BlockCount(nbytes()), [&](int64_t block) {
      const int64_t begin = block * kBlockBytes;
      const int64_t size = std::min(kBlockBytes, nbytes() - begin);
      return transfer(begin, size) == size ? absl::OkStatus() : absl::InternalError("a short transfer");
    });
    Check(status.ok(), "raw I/O failed");
  }

  void WriteFlat(const std::string& path) {
    fs::remove(path);
    const int fd = open(path.c_str(), O_CREAT | O_WRONLY, 0666);
    const auto* bytes = reinterpret_cast<const char*>(values_.data());
    ForEachBlock([&](int64_t begin, int64_t size) { return pwrite(fd, bytes + begin, size, begin); });
    Check(fsync(fd) == 0, "fsync failed");
    close(fd);
  }

  void ReadFlat() {
    const int fd = open(flat_.c_str(), O_RDONLY);
    auto* bytes = reinterpret_cast<char*>(loaded_.data());
    ForEachBlock([&](int64_t begin, int64_t size) { return pread(fd, bytes + begin, size, begin); });
    close(fd);
  }

  void WriteHdf5() {
    fs::remove(h5_);
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
    H5Pset_alignment(access, 2048, 4096);
    const hid_t file = H5Fcreate(h5_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
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
    const int fd = open(h5_.c_str(), O_WRONLY);
    Check(fsync(fd) == 0, "fsync failed");
    close(fd);
  }

  void ReadHdf5() {
    const hid_t file = H5Fopen(h5_.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    for (size_t i = 0; i < names_.size(); ++i) {
      const hid_t dataset = H5Dopen2(file, names_[i].c_str(), H5P_DEFAULT);
      Check(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, loaded_.data() + offsets_[i]) >= 0,
            "H5Dread failed");
      H5Dclose(dataset);
    }
    H5Fclose(file);
  }

  void DropCache() {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory_)) {
      if (!entry.is_regular_file()) continue;
      const int fd = open(entry.path().c_str(), O_RDONLY);
      posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      close(fd);
    }
  }

  const std::string directory_;
  std::string flat_;
  std::string h5_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<std::string> names_;
  std::vector<Shape> shapes_;
  std::vector<int64_t> offsets_;  // of each tensor's first element in values_
  std::vector<float> values_;
  std::vector<float> loaded_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void Measure(CheckpointBenchmark& benchmark, std::vector<Row>& rows) {
  for (int repetition = 0; repetition <= absl::GetFlag(FLAGS_repetitions); ++repetition) {
    for (Row& row : rows) {
      benchmark.Prepare(row);
      const absl::Time start = absl::Now();
      row.run();
      if (repetition > 0) row.seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    }
  }
}

nlohmann::json Summarise(const std::vector<Row>& rows, int64_t nbytes) {
  nlohmann::json summary = nlohmann::json::array();
  for (const Row& row : rows) {
    const Row& raw = *std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == row.raw; });
    std::vector<double> ratios;
    for (size_t i = 0; i < row.seconds.size(); ++i) ratios.push_back(row.seconds[i] / raw.seconds[i]);
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
  std::vector<Row> rows = benchmark.Rows();
  Measure(benchmark, rows);
  fs::remove_all(directory);
  const nlohmann::json summary = Summarise(rows, benchmark.nbytes());
  if (absl::GetFlag(FLAGS_json)) {
    const nlohmann::json whole = {{"bytes", benchmark.nbytes()},
                                  {"tensors", absl::GetFlag(FLAGS_tensors)},
                                  {"io_threads", absl::GetFlag(FLAGS_io_threads)},
                                  {"repetitions", absl::GetFlag(FLAGS_repetitions)},
                                  {"rows", summary}};
    printf("%s\n", whole.dump(2).c_str());
  } else {
    printf("%.3f GB in %d tensors, %d threads, median of %d\n", static_cast<double>(benchmark.nbytes()) / 1e9,
           absl::GetFlag(FLAGS_tensors), absl::GetFlag(FLAGS_io_threads), absl::GetFlag(FLAGS_repetitions));
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
