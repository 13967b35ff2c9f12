// SPDX-License-Identifier: Apache-2.0
//
// The speed at which a checkpoint leaves a GPU and comes back: AsyncSaver's copies to pinned memory, and a load's
// copies to the device, each compared with one copy of as many bytes in the same run. One JSON line each:
//
//   gpu_staging_benchmark [--mib=1400] [--scratch=/tmp] [--io_threads=4,8,16]
//
// Files are written to --scratch, which is not timed for staging. A load is timed whole: it reads and verifies too, and
// has a line for each number of threads in --io_threads.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/async_saver.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/state_dict.h"

ABSL_FLAG(int64_t, mib, 1400, "of the state; a GPT-2 124M with AdamW has 1424");
ABSL_FLAG(std::string, scratch, "/tmp", "directory in which checkpoints are written and deleted again");
ABSL_FLAG(std::vector<std::string>, io_threads, {"4"}, "threads of a load; several numbers with commas between");

namespace fsdp {
namespace {

constexpr int kRepeats = 5;
constexpr int64_t kColumns = 768;

// A state like a sharded GPT's: matrices of a few MiB and vectors of a few KiB, alternating.
absl::StatusOr<StateDict> MakeState(int64_t nbytes, Device& device, Stream& stream) {
  StateDict state;
  int64_t made = 0;
  for (int i = 0; made < nbytes; ++i) {
    const int64_t rows = i % 2 == 0 ? 4 * kColumns : 1;
    const Shape shape = {rows, kColumns};
    FSDP_ASSIGN_OR_RETURN(const Tensor data, Tensor::Empty(device, DType::kFloat32, {shape.numel()}));
    device.ops().Zero(data, stream);
    ShardedTensor tensor;
    tensor.dtype = DType::kFloat32;
    tensor.shape = shape;
    tensor.shards.push_back({{0, shape.numel()}, data});
    state.Set(StateKey::Model(absl::StrCat("tensor.", i)), std::move(tensor));
    made += data.nbytes();
  }
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  return state;
}

int64_t BytesOf(const StateDict& state) {
  int64_t nbytes = 0;
  for (const auto& [key, value] : state.entries()) nbytes += std::get<ShardedTensor>(value).shards[0].data.nbytes();
  return nbytes;
}

absl::Status ReadIntoCache(const std::string& path) {
  std::vector<char> block(1 << 20);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    while (file.read(block.data(), static_cast<std::streamsize>(block.size()))) {
    }
    if (!file.eof()) return absl::DataLossError(absl::StrCat(entry.path().string(), ": cannot be read"));
  }
  return absl::OkStatus();
}

class StagingBenchmark {
 public:
  StagingBenchmark(std::shared_ptr<Device> device, std::string root)
      : device_(std::move(device)), root_(std::move(root)) {}

  absl::Status Run(int64_t nbytes, const std::vector<int>& io_threads) {
    FSDP_ASSIGN_OR_RETURN(stream_, device_->CreateStream("compute"));
    FSDP_ASSIGN_OR_RETURN(StateDict state, MakeState(nbytes, *device_, *stream_));
    nbytes_ = BytesOf(state);
    FSDP_ASSIGN_OR_RETURN(const Tensor on_device, Tensor::Empty(*device_, DType::kUInt8, {nbytes_}));
    device_->ops().Zero(on_device, *stream_);
    FSDP_ASSIGN_OR_RETURN(const Buffer pinned, device_->AllocatePinned(nbytes_));
    FSDP_ASSIGN_OR_RETURN(const double down, Copy(pinned.data(), on_device.data()));
    FSDP_ASSIGN_OR_RETURN(const double up, Copy(on_device.data(), pinned.data()));
    FSDP_RETURN_IF_ERROR(Stage(state, down));
    for (const int threads : io_threads) FSDP_RETURN_IF_ERROR(Load(state, up, threads));
    return absl::OkStatus();
  }

 private:
  // Bytes per second of one copy, the best of a few. Noise only makes copies slower, so the best one is nearest to the
  // speed of the link, the reference for the other rates.
  absl::StatusOr<double> Copy(void* destination, const void* source) {
    double best = 0;
    for (int i = 0; i < kRepeats; ++i) {
      FSDP_RETURN_IF_ERROR(stream_->Synchronize());
      const absl::Time start = absl::Now();
      stream_->CopyAsync(destination, source, nbytes_);
      FSDP_RETURN_IF_ERROR(stream_->Synchronize());
      best = std::max(best, BytesPerSecond(absl::Now() - start));
    }
    return best;
  }

  // Timed until the last copy to pinned memory is done, on the device's side, not until the file is written: the next
  // update may then change the parameters. `blocked` is the part during which the training thread was blocked.
  absl::Status Stage(const StateDict& state, double copy) {
    FSDP_ASSIGN_OR_RETURN(auto groups, CreateLocalCudaGroups({device_}));
    AsyncSaverOptions options;
    options.save.overwrite = true;
    FSDP_ASSIGN_OR_RETURN(const auto saver, AsyncSaver::Create(root_, *groups[0], options));
    double best = 0;
    absl::Duration blocked = absl::InfiniteDuration();
    for (int i = 0; i < 2 + kRepeats; ++i) {
      FSDP_RETURN_IF_ERROR(saver->Wait().status());
      const absl::Time start = absl::Now();
      FSDP_ASSIGN_OR_RETURN(const AsyncSaveReport report, saver->Save(state, /*step=*/1, stream_.get()));
      FSDP_RETURN_IF_ERROR(report.copied.Synchronize());
      if (i < 2) continue;  // the first saves allocate and pin the staging memory
      best = std::max(best, BytesPerSecond(absl::Now() - start));
      blocked = std::min(blocked, report.blocked);
    }
    FSDP_RETURN_IF_ERROR(saver->Wait().status());
    Print("checkpoint staging, device to pinned", best, copy,
          absl::StrFormat(", \"blocked_ms\": %.3f", absl::ToDoubleMilliseconds(blocked)));
    return absl::OkStatus();
  }

  // From files in the page cache: reading a disk would hide the speed of the copies. Saves bypass the cache.
  absl::Status Load(StateDict& state, double copy, int io_threads) {
    FSDP_ASSIGN_OR_RETURN(const std::string path, LatestCheckpoint(root_));
    FSDP_RETURN_IF_ERROR(ReadIntoCache(path));
    LoadOptions options;
    options.device = device_.get();
    options.io_threads = io_threads;
    double best = 0;
    for (int i = 0; i < kRepeats; ++i) {
      const absl::Time start = absl::Now();
      FSDP_RETURN_IF_ERROR(LoadCheckpoint(path, state, options));
      best = std::max(best, BytesPerSecond(absl::Now() - start));
    }
    Print(absl::StrCat("checkpoint load, cached file to device, verified, ", io_threads, " threads"), best, copy, "");
    return absl::OkStatus();
  }

  double BytesPerSecond(absl::Duration took) const {
    return static_cast<double>(nbytes_) / absl::ToDoubleSeconds(took);
  }

  void Print(const std::string& what, double rate, double copy, const std::string& more) const {
    absl::PrintF(
        "{\"copy\": \"%s\", \"bytes\": %d, \"gb_per_s\": %.2f, \"plain_copy_gb_per_s\": %.2f, \"of_copy\": "
        "%.3f%s}\n",
        what, nbytes_, rate / 1e9, copy / 1e9, rate / copy, more);
  }

  const std::shared_ptr<Device> device_;
  const std::string root_;
  std::unique_ptr<Stream> stream_;
  int64_t nbytes_ = 0;
};

// The numbers of --io_threads.
absl::StatusOr<std::vector<int>> IoThreads() {
  std::vector<int> numbers;
  for (const std::string& text : absl::GetFlag(FLAGS_io_threads)) {
    if (!absl::SimpleAtoi(text, &numbers.emplace_back()) || numbers.back() < 1) {
      return absl::InvalidArgumentError(absl::StrCat("--io_threads: \"", text, "\", expected 1 or more"));
    }
  }
  return numbers;
}

absl::Status Main(const std::vector<int>& io_threads) {
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(0));
  const std::string root = absl::StrCat(absl::GetFlag(FLAGS_scratch), "/gpu_staging_benchmark.", getpid());
  const absl::Status status = StagingBenchmark(std::move(device), root).Run(absl::GetFlag(FLAGS_mib) << 20, io_threads);
  std::error_code ignored;
  std::filesystem::remove_all(root, ignored);
  return status;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  if (const std::optional<int> status = fsdp::ParseFlags(argc, argv, "gpu_staging_benchmark [flags]")) return *status;
  if (absl::GetFlag(FLAGS_mib) < 1) {
    return fsdp::ReportUsageError("gpu_staging_benchmark", absl::InvalidArgumentError("--mib: expected at least 1"));
  }
  const absl::StatusOr<std::vector<int>> io_threads = fsdp::IoThreads();
  if (!io_threads.ok()) return fsdp::ReportUsageError("gpu_staging_benchmark", io_threads.status());
  const absl::Status status = fsdp::Main(*io_threads);
  if (status.ok()) return fsdp::kExitDone;
  std::fprintf(stderr, "gpu_staging_benchmark: %s\n", std::string(status.message()).c_str());
  return fsdp::kExitFailed;
}
