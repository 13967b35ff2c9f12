// SPDX-License-Identifier: Apache-2.0
//
// How fast conversions are, beside what the disk can do:
//
//   convert_benchmark --bytes=2000000000 --directory=/var/tmp/x
//
// A model of that many bytes is converted between safetensors, a torch file, a DCP directory and a checkpoint of ours,
// in every direction. Each row is a process of its own; sources are read once before, so that they are in the page
// cache like cp's, and targets are durable.
//
//   GB/s     payload bytes / wall-clock seconds
//   of cp    this row's seconds / those of cp + sync of the same bytes, measured just before it; the median
//   peak     largest resident set of the process, in MB
//
// Where --python has torch, torch's own format_utils do dcp_to_torch and torch_to_dcp on the same bytes.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/safetensors/safetensors_writer.h"
#include "tensor/state_dict.h"

ABSL_FLAG(int64_t, bytes, 2'000'000'000, "payload of the model");
ABSL_FLAG(std::string, directory, "", "where to write; by default a new directory in /tmp, removed at the end");
ABSL_FLAG(int, repetitions, 3, "of each row; the median is shown");
ABSL_FLAG(int64_t, max_memory, int64_t{512} << 20, "as ckpt convert's");
ABSL_FLAG(std::string, python, "python3", "interpreter of torch's format_utils; empty: leave them out");
ABSL_FLAG(std::vector<std::string>, rows, {}, "only rows whose names hold one of these, comma separated");

namespace fsdp {
namespace {

namespace fs = std::filesystem;

struct Measurement {
  double seconds = 0;
  double peak_bytes = 0;
  bool done = false;
};

// Runs `body` in a process of its own, which exits with its result.
Measurement Measure(const std::function<int()>& body) {
  const absl::Time start = absl::Now();
  const pid_t child = fork();
  Check(child >= 0, "fork");
  if (child == 0) _exit(body());
  int status = 0;
  struct rusage usage = {};
  Check(wait4(child, &status, 0, &usage) == child, "wait4");
  return {absl::ToDoubleSeconds(absl::Now() - start), static_cast<double>(usage.ru_maxrss) * 1024,
          WIFEXITED(status) && WEXITSTATUS(status) == 0};
}

int Shell(const std::string& command) {
  execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
  return 127;
}

int Convert(const std::string& from, const std::string& to, CheckpointFormat format) {
  ConvertOptions options;
  options.to = format;
  options.force = true;
  options.max_memory = absl::GetFlag(FLAGS_max_memory);
  if (format == CheckpointFormat::kDcp) options.world_size = 4;
  const absl::StatusOr<ConvertReport> report = ConvertCheckpoint(from, to, options);
  if (!report.ok()) std::fprintf(stderr, "%s\n", report.status().ToString().c_str());
  return report.ok() ? 0 : 1;
}

// Matrices of 64 MB, and some vectors.
StateDict Model(int64_t bytes) {
  StateDict state;
  const int64_t rows = std::max<int64_t>(1, std::min<int64_t>(4096, bytes / 16384));
  for (int64_t i = 0; i * rows * 4096 * 4 < bytes; ++i) {
    ShardedTensor matrix;
    matrix.shape = *Shape::Create({rows, 4096});
    state.Set(StateKey::Model(absl::StrCat("layers.", i, ".weight")), matrix);
    ShardedTensor vector;
    vector.shape = {4096};
    state.Set(StateKey::Model(absl::StrCat("layers.", i, ".bias")), vector);
  }
  return state;
}

absl::Status ReadNumbers(const StateKey&, const Interval& interval, void* out) {
  auto* numbers = static_cast<float*>(out);
  for (int64_t i = 0; i < interval.size(); ++i) numbers[i] = static_cast<float>((interval.begin + i) % 65521);
  return absl::OkStatus();
}

class Benchmark {
 public:
  explicit Benchmark(fs::path directory) : directory_(std::move(directory)) {}

  int Run() {
    const StateDict state = Model(absl::GetFlag(FLAGS_bytes));
    const std::string model = Path("model.safetensors");
    SafetensorsOptions options;
    options.overwrite = true;
    Check(WriteSafetensors(model, state, ReadNumbers, options).ok(), "the model cannot be written");
    bytes_ = static_cast<double>(fs::file_size(model));
    std::printf("%-34s %8s %8s %8s %8s\n", "", "seconds", "GB/s", "of cp", "peak MB");
    bool done = true;
    for (const Form& from : kForms) {
      for (const Form& to : kForms) {
        if (from.format == to.format) continue;
        const std::string source = SourceOf(from);
        const std::string target = Path(absl::StrCat("to.", to.name));
        done &= Row(absl::StrCat(from.name, " to ", to.name), source, target,
                    [&] { return Convert(source, target, to.format); });
      }
    }
    return PeerRows() && done ? 0 : 1;
  }

 private:
  struct Form {
    const char* name;
    CheckpointFormat format;
  };
  static constexpr Form kForms[] = {{"safetensors", CheckpointFormat::kSafetensors},
                                    {"torch", CheckpointFormat::kTorch},
                                    {"dcp", CheckpointFormat::kDcp},
                                    {"hdf5", CheckpointFormat::kHdf5}};

  std::string Path(const std::string& name) const { return directory_ / name; }

  static bool IsWanted(const std::string& name) {
    const std::vector<std::string> rows = absl::GetFlag(FLAGS_rows);
    return rows.empty() || std::any_of(rows.begin(), rows.end(),
                                       [&](const std::string& row) { return name.find(row) != std::string::npos; });
  }

  // The model in that form, made when it is first wanted.
  std::string SourceOf(const Form& form) {
    std::string path =
        Path(form.format == CheckpointFormat::kSafetensors ? "model.safetensors" : absl::StrCat("from.", form.name));
    if (!fs::exists(path)) {
      Check(Measure([&] { return Convert(Path("model.safetensors"), path, form.format); }).done, "no source");
    }
    return path;
  }

  bool PeerRows() {
    const std::string python = absl::GetFlag(FLAGS_python);
    if (python.empty() ||
        !Measure([&] { return Shell(absl::StrCat(python, " -c 'import torch' 2>/dev/null")); }).done) {
      return true;
    }
    const auto tool = [&](const std::string& conversion, const Form& from, const std::string& to) {
      const std::string source = SourceOf(from);
      return Row(absl::StrCat("format_utils ", conversion), source, Path(to), [&] {
        return Shell(absl::StrCat(python, " -m torch.distributed.checkpoint.format_utils ", conversion, " ", source,
                                  " ", Path(to), " >/dev/null 2>&1 && find ", Path(to), " -type f -exec sync {} +"));
      });
    };
    const bool done = tool("dcp_to_torch", kForms[2], "peer.pt");
    return tool("torch_to_dcp", kForms[1], "peer.dcp") && done;
  }

  bool Row(const std::string& name, const std::string& source, const std::string& target,
           const std::function<int()>& body) {
    if (!IsWanted(name)) return true;
    std::vector<double> seconds;
    std::vector<double> ratios;
    double peak = 0;
    for (int i = 0; i < absl::GetFlag(FLAGS_repetitions); ++i) {
      const std::string copy =
          absl::StrCat("cp ", Path("model.safetensors"), " ", Path("copy"), " && sync ", Path("copy"));
      const Measurement cp = Measure([&] { return Shell(copy); });
      fs::remove(Path("copy"));
      const std::string warm = absl::StrCat("find ", source, " -type f -exec cat {} + >/dev/null");
      const bool is_warm = Measure([&] { return Shell(warm); }).done;
      const Measurement row = Measure(body);
      fs::remove_all(target);
      if (!cp.done || !is_warm || !row.done) {
        std::printf("%-34s failed\n", name.c_str());
        return false;
      }
      seconds.push_back(row.seconds);
      ratios.push_back(row.seconds / cp.seconds);
      peak = std::max(peak, row.peak_bytes);
    }
    const auto median = [](std::vector<double>& values) {
      std::sort(values.begin(), values.end());
      return values[values.size() / 2];
    };
    const double median_seconds = median(seconds);
    std::printf("%-34s %8.2f %8.2f %8.2f %8.0f\n", name.c_str(), median_seconds, bytes_ / 1e9 / median_seconds,
                median(ratios), peak / 1e6);
    std::fflush(stdout);
    return true;
  }

  const fs::path directory_;
  double bytes_ = 0;
};

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  std::string directory = absl::GetFlag(FLAGS_directory);
  const bool is_own = directory.empty();
  if (is_own) {
    directory = "/tmp/convert_benchmark.XXXXXX";
    fsdp::Check(mkdtemp(directory.data()) != nullptr, "no directory");
  }
  std::filesystem::create_directories(directory);
  const int result = fsdp::Benchmark(directory).Run();
  if (is_own) std::filesystem::remove_all(directory);
  return result;
}
