// SPDX-License-Identifier: Apache-2.0
//
// Measures the speed of conversions, compared with the disk:
//
//   convert_benchmark --bytes=2000000000 --directory=/var/tmp/x
//
// A model of that many bytes is converted between safetensors, a torch file, a DCP directory and checkpoints of ours,
// FULL and SHARDED by four ranks, in every direction; and every form is compared with safetensors, summed up for
// inspect's page, and verified. Each row runs in its own process; targets are durable. Before each row and cp, their
// input is dropped from the page cache (--cold), as after training has written it by direct I/O, or read once
// (--nocold). The disk is synced before each measurement, so that no measurement pays for the pages of another; the
// disk's own rate still varies from second to second, so cp + sync of the same bytes runs before and after each row.
//
//   seconds, GB/s   the median of the row; payload bytes / that
//   cp              the median of cp + sync
//   of cp           the row's seconds / the mean of cp's before and after it: the median, the lowest and the highest
//   peak            largest resident set of the process, in MB
//
// With --tensors=300000 the model has that many tensors of one size, as the experts of a large model: then names and
// places cost more than bytes, and --max_memory must be as large as the message of the first row says.
//
// If --python has them, torch's own format_utils run dcp_to_torch and torch_to_dcp on the same bytes, and the
// safetensors package reads the model and writes it again.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/check.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/benchmark/page_cache.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/diff.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/formats/verify_source.h"
#include "fsdp/checkpoint/source/value_statistics.h"
#include "fsdp/tensor/state_dict.h"

ABSL_FLAG(int64_t, bytes, 2'000'000'000, "payload of the model");
ABSL_FLAG(int64_t, tensors, 0, "that the model has, all of one size; 0: matrices of 64 MB and vectors of 16 KB");
ABSL_FLAG(std::string, directory, "", "directory to write to; by default a new directory in /tmp, removed at the end");
ABSL_FLAG(bool, cold, true, "drop the input from the page cache before each measurement; false: read it once before");
ABSL_FLAG(int, repetitions, 3, "of each row, at least 1; the median is shown");
ABSL_FLAG(int64_t, max_memory, int64_t{512} << 20, "as ckpt convert's");
ABSL_FLAG(std::string, python, "python3", "interpreter of torch's format_utils; empty: skip them");
ABSL_FLAG(std::vector<std::string>, rows, {}, "only rows whose names hold one of these, comma separated");

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// One run of a row in its own process: wall time, largest resident set, and success (exit status 0).
struct Measurement {
  double seconds = 0;
  double peak_bytes = 0;
  bool done = false;
};

// Runs `body` in a child process, which exits with its result. A process for each row, because the peak of a process
// never falls: a row's own peak would be hidden by a larger one before it.
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

// Runs in the child. The reason of a failure goes to the file `log`, which the parent reads.
int Convert(const std::string& from, const std::string& to, const FormatTarget& target, const std::string& log) {
  ConvertOptions options;
  options.target = target;
  options.force = true;
  options.max_memory = absl::GetFlag(FLAGS_max_memory);
  const absl::StatusOr<ConvertReport> report = ConvertCheckpoint(from, to, options);
  if (!report.ok()) std::ofstream(log) << report.status().ToString() << "\n";
  return report.ok() ? 0 : 1;
}

// Runs in the child, as Convert does: runs `work` on the checkpoint `path`.
int Read(const std::string& path, const std::string& log,
         const std::function<absl::Status(const TensorSource& source)>& work) {
  const absl::StatusOr<std::unique_ptr<TensorSource>> source = OpenTensorSource(path);
  const absl::Status status = source.ok() ? work(**source) : source.status();
  if (!status.ok()) std::ofstream(log) << status.ToString() << "\n";
  return status.ok() ? 0 : 1;
}

// `count` tensors of one size, `bytes` in total.
StateDict ModelOfMany(int64_t bytes, int64_t count) {
  StateDict state;
  ShardedTensor tensor;
  tensor.shape = *Shape::Create({std::max<int64_t>(1, bytes / count / 4)});
  for (int64_t i = 0; i < count; ++i) {
    state.Set(StateKey::Model(absl::StrCat("model.layers.", i / 1000, ".mlp.experts.", i % 1000, ".weight")), tensor);
  }
  return state;
}

// Alternating matrices of 64 MB and vectors of 16 KB, about `bytes` in total, like the layers of a model.
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
    const int64_t tensors = absl::GetFlag(FLAGS_tensors);
    const StateDict state =
        tensors > 0 ? ModelOfMany(absl::GetFlag(FLAGS_bytes), tensors) : Model(absl::GetFlag(FLAGS_bytes));
    const std::string model = Path("model.safetensors");
    SafetensorsOptions options;
    options.overwrite = true;
    // In a child too: blocks that this process keeps for I/O would be copied page by page in every child that uses
    // them.
    Check(Measure([&] { return WriteSafetensors(model, state, ReadNumbers, options).ok() ? 0 : 1; }).done,
          "the model cannot be written");
    bytes_ = static_cast<double>(fs::file_size(model));
    std::printf("%-26s %8s %6s %6s %6s %6s %7s %8s\n", "", "seconds", "GB/s", "cp", "of cp", "lowest", "highest",
                "peak MB");
    bool done = true;
    for (const Form& from : kForms) {
      for (const Form& to : kForms) {
        if (&from == &to) continue;
        const std::string source = SourceOf(from);
        const std::string target = Path(absl::StrCat("to.", to.name));
        done &= Row(absl::StrCat(from.name, " to ", to.name), source, target,
                    [&] { return Convert(source, target, to.target, Log()); });
      }
    }
    for (const Form& form : kForms) done &= ReadingRows(form);
    return PeerRows() && done ? 0 : 1;
  }

 private:
  struct Form {
    const char* name;
    FormatTarget target;
  };
  inline static const Form kForms[] = {{"safetensors", SafetensorsTarget()},
                                       {"torch", TorchTarget()},
                                       {"dcp", DcpTarget{.world_size = 4}},
                                       {"hdf5", Hdf5Target()},
                                       {"sharded", Hdf5Target{.type = StateDictType::kSharded, .world_size = 4}}};

  std::string Path(const std::string& name) const { return directory_ / name; }

  static bool IsWanted(const std::string& name) {
    const std::vector<std::string> rows = absl::GetFlag(FLAGS_rows);
    return rows.empty() || std::any_of(rows.begin(), rows.end(),
                                       [&](const std::string& row) { return name.find(row) != std::string::npos; });
  }

  // The path of the model in that form, which the first call makes, untimed.
  std::string SourceOf(const Form& form) {
    std::string path =
        Path(DriverOf(form.target).traits().model_only ? "model.safetensors" : absl::StrCat("from.", form.name));
    if (!fs::exists(path)) {
      Check(Measure([&] { return Convert(Path("model.safetensors"), path, form.target, Log()); }).done,
            absl::StrCat(path, " cannot be made: ", LastLine(Log())).c_str());
    }
    return path;
  }

  // The rows that read a checkpoint and write almost nothing.
  bool ReadingRows(const Form& form) {
    const std::string source = SourceOf(form);
    const std::string model = Path("model.safetensors");
    bool done = Row(absl::StrCat("diff ", form.name), source, "", [&] {
      return Read(source, Log(), [&](const TensorSource& a) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> b, OpenTensorSource(model));
        FSDP_ASSIGN_OR_RETURN(const DiffReport report, DiffCheckpoints(a, *b, DiffOptions()));
        return report.equal() ? absl::OkStatus() : absl::InternalError("the two differ");
      });
    });
    done &= Row(absl::StrCat("inspect ", form.name), source, "", [&] {
      return Read(source, Log(), [](const TensorSource& read) { return ReadStatistics(read).status(); });
    });
    return Row(absl::StrCat("verify ", form.name), source, "",
               [&] {
                 return Read(source, Log(), [](const TensorSource& read) { return VerifySource(read).status(); });
               }) &&
           done;
  }

  // torch's own converters, started as a user starts them: importing torch is part of their time. Not measured, without
  // a failure, if the interpreter lacks torch.
  bool PeerRows() {
    const std::string python = absl::GetFlag(FLAGS_python);
    const auto tool = [&](const std::string& conversion, const Form& from, const std::string& to) {
      const std::string name = absl::StrCat("format_utils ", conversion);
      if (!IsWanted(name)) return true;
      if (python.empty()) return NoNumber(name, "--python is empty");
      const std::string imports = absl::StrCat(python, " -c 'import torch.distributed.checkpoint' >", Log(), " 2>&1");
      if (!Measure([&] { return Shell(imports); }).done) {
        return NoNumber(name, absl::StrCat(python, ": ", LastLine(Log())));
      }
      const std::string source = SourceOf(from);
      return Row(name, source, Path(to), [&] {
        return Shell(absl::StrCat(python, " -m torch.distributed.checkpoint.format_utils ", conversion, " ", source,
                                  " ", Path(to), " >", Log(), " 2>&1 && find ", Path(to), " -type f -exec sync {} +"));
      });
    };
    bool done = tool("dcp_to_torch", kForms[2], "peer.pt");
    done &= tool("torch_to_dcp", kForms[1], "peer.dcp");
    return SafetensorsPeer(python) && done;
  }

  bool SafetensorsPeer(const std::string& python) {
    const std::string name = "safetensors package";
    if (!IsWanted(name)) return true;
    if (python.empty()) return NoNumber(name, "--python is empty");
    const std::string imports = absl::StrCat(python, " -c 'import safetensors.numpy' >", Log(), " 2>&1");
    if (!Measure([&] { return Shell(imports); }).done) {
      return NoNumber(name, absl::StrCat(python, ": ", LastLine(Log())));
    }
    const std::string source = Path("model.safetensors"), target = Path("peer.safetensors");
    return Row(name, source, target, [&] {
      return Shell(absl::StrCat(python,
                                " -c 'from safetensors.numpy import load_file, save_file; save_file(load_file(\"",
                                source, "\"), \"", target, "\")' >", Log(), " 2>&1 && sync ", target));
    });
  }

  // The output of a row's process.
  std::string Log() const { return Path("log"); }

  static std::string LastLine(const std::string& path) {
    std::ifstream file(path);
    std::string last = "it printed nothing";
    for (std::string line; std::getline(file, line);) {
      if (!line.empty()) last = line;
    }
    return last;
  }

  // Reports a row that cannot be measured here, which is not a failure.
  static bool NoNumber(const std::string& name, const std::string& why) {
    std::printf("%-26s not measured: %s\n", name.c_str(), why.c_str());
    return true;
  }

  // Prepares the page cache for a measurement that reads `path`. False if that fails.
  bool Prepare(const std::string& path) const {
    sync();
    if (absl::GetFlag(FLAGS_cold)) return DropFromPageCache(directory_).ok();
    const std::string read = absl::StrCat("find ", path, " -type f -exec cat {} + >/dev/null");
    return Measure([&] { return Shell(read); }).done;
  }

  // Seconds of cp + sync of the model; negative if that fails.
  double CopySeconds() const {
    const std::string copy =
        absl::StrCat("cp ", Path("model.safetensors"), " ", Path("copy"), " && sync ", Path("copy"));
    if (!Prepare(Path("model.safetensors"))) return -1;
    const Measurement cp = Measure([&] { return Shell(copy); });
    fs::remove(Path("copy"));
    return cp.done ? cp.seconds : -1;
  }

  // Measures and prints one row; `target`, unless it is empty, is removed. cp runs before the first and after each
  // repetition, so that every repetition has one on both sides: their mean is the rate of the disk in between. False if
  // the row failed.
  bool Row(const std::string& name, const std::string& source, const std::string& target,
           const std::function<int()>& body) {
    if (!IsWanted(name)) return true;
    fs::remove(Log());
    std::vector<double> seconds;
    std::vector<double> copies = {CopySeconds()};
    std::vector<double> ratios;
    double peak = 0;
    for (int i = 0; i < absl::GetFlag(FLAGS_repetitions); ++i) {
      const bool is_prepared = Prepare(source);
      const Measurement row = Measure(body);
      if (!target.empty()) fs::remove_all(target);
      copies.push_back(CopySeconds());
      if (std::min(copies[i], copies[i + 1]) < 0 || !is_prepared || !row.done) {
        std::printf("%-26s failed: %s\n", name.c_str(), row.done ? "cp, or the page cache" : LastLine(Log()).c_str());
        return false;
      }
      seconds.push_back(row.seconds);
      ratios.push_back(row.seconds / ((copies[i] + copies[i + 1]) / 2));
      peak = std::max(peak, row.peak_bytes);
    }
    for (std::vector<double>* values : {&seconds, &copies, &ratios}) std::sort(values->begin(), values->end());
    const double median = seconds[seconds.size() / 2];
    std::printf("%-26s %8.2f %6.2f %6.2f %6.2f %6.2f %7.2f %8.0f\n", name.c_str(), median, bytes_ / 1e9 / median,
                copies[copies.size() / 2], ratios[ratios.size() / 2], ratios.front(), ratios.back(), peak / 1e6);
    std::fflush(stdout);
    return true;
  }

  const fs::path directory_;
  double bytes_ = 0;
};

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const std::optional<int> status = fsdp::ParseFlags(
      argc, argv,
      "convert_benchmark [flags]: times conversions of a model of --bytes between safetensors, torch, DCP and HDF5, "
      "and "
      "what reads one, compared with cp + sync of the same bytes, and with torch's format_utils and the safetensors "
      "package if --python has them; one line each");
  if (status) return *status;
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
