// SPDX-License-Identifier: Apache-2.0
//
// Measures the speed of conversions, compared with the disk:
//
//   convert_benchmark --bytes=2000000000 --directory=/var/tmp/x
//
// A model of that many bytes is converted between all formats that are written, our own FULL and SHARDED by four ranks,
// in every direction; and every form is compared with safetensors, summed up for inspect's page, and verified. Each row
// runs in its own process; targets are durable. Before each row and cp, their input is dropped from the page cache
// (--cold), as after training has written it by direct I/O, or read once (--nocold). The disk is synced before each
// measurement, so that no measurement pays for the pages of another; the disk's own rate still varies from second to
// second, so cp + sync of the same bytes runs before and after each row.
//
//   seconds, GB/s   the median of the row; payload bytes / that
//   cp              the median of cp + sync
//   of cp           the row's seconds / the mean of cp's before and after it: the median, the lowest and the highest
//   peak            largest resident set of the process, in MB
//
// With --tensors=300000 the model has that many tensors of one size, as the experts of a large model: then names and
// places cost more than bytes, and --max_memory must be as large as the message of the first row says.
//
// If --python has them, the converters of other programs run on the same bytes: torch's format_utils, the safetensors
// package, and, on sources that they make themselves, those of trainers (trainer_peers.py), each next to ours.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/benchmark/cold_rows.h"
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
ABSL_FLAG(std::string, python, "python3", "interpreter with the packages of other programs; empty: skip their rows");
ABSL_FLAG(std::vector<std::string>, rows, {}, "only rows whose names hold one of these, comma separated");

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// Runs in the child. The reason of a failure goes to the file `log`, which the parent reads.
int Convert(const std::string& from, const std::string& to, const FormatTarget& target, const std::string& log,
            bool model_only = false) {
  ConvertOptions options;
  options.target = target;
  options.model_only = model_only;
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
  explicit Benchmark(const std::string& directory)
      : directory_(directory),
        rows_({.directory = directory,
               .cold = absl::GetFlag(FLAGS_cold),
               .repetitions = absl::GetFlag(FLAGS_repetitions),
               .names = absl::GetFlag(FLAGS_rows)}) {}

  int Run() {
    const int64_t tensors = absl::GetFlag(FLAGS_tensors);
    const StateDict state =
        tensors > 0 ? ModelOfMany(absl::GetFlag(FLAGS_bytes), tensors) : Model(absl::GetFlag(FLAGS_bytes));
    SafetensorsOptions options;
    options.overwrite = true;
    // In a child too: blocks that this process keeps for I/O would be copied page by page in every child that uses
    // them.
    Check(MeasureProcess([&] { return WriteSafetensors(model(), state, ReadNumbers, options).ok() ? 0 : 1; }).done,
          "the model cannot be written");
    ColdRows::PrintHeader();
    bool done = true;
    for (const Form& from : kForms) {
      for (const Form& to : kForms) {
        const std::string name = absl::StrCat(from.name, " to ", to.name);
        if (&from != &to && rows_.IsWanted(name)) done &= ConvertRow(name, SourceOf(from), to);
      }
    }
    for (const Form& form : kForms) done &= ReadingRows(form);
    done &= PackageRows();
    return TrainerRows() && done ? 0 : 1;
  }

 private:
  struct Form {
    const char* name;  // also the suffix of its files
    FormatTarget target;
  };
  inline static const Form kForms[] = {{"safetensors", SafetensorsTarget()},
                                       {"torch", TorchTarget()},
                                       {"dcp", DcpTarget{.world_size = 4}},
                                       {"hdf5", Hdf5Target()},
                                       {"sharded", Hdf5Target{.type = StateDictType::kSharded, .world_size = 4}},
                                       {"npz", NpzTarget()},
                                       {"gguf", GgufTarget()},
                                       {"deepspeed", DeepSpeedTarget()},
                                       {"megatron", MegatronTarget()}};

  // A converter of another program, which --python runs.
  struct Package {
    const char* name;
    const char* imports;  // modules
    std::string source;
    std::string target;
    std::string command;  // after the interpreter
  };

  std::string Path(const std::string& name) const { return directory_ / name; }
  std::string model() const { return Path("model.safetensors"); }

  bool ConvertRow(const std::string& name, const std::string& source, const Form& to, bool model_only = false) const {
    const std::string target = Path(absl::StrCat("to.", to.name));
    return rows_.Row(name, model(), source, target,
                     [&] { return Convert(source, target, to.target, rows_.Log(), model_only); });
  }

  // The path of the model in that form, which the first call makes, untimed.
  std::string SourceOf(const Form& form) const {
    if (&form == &kForms[0]) return model();
    std::string path = Path(absl::StrCat("from.", form.name));
    if (!fs::exists(path)) {
      Check(MeasureProcess([&] { return Convert(model(), path, form.target, rows_.Log()); }).done,
            absl::StrCat(path, " cannot be made: ", rows_.LastLine()).c_str());
    }
    return path;
  }

  // The rows that read a checkpoint and write almost nothing.
  bool ReadingRows(const Form& form) const {
    const auto row = [&](const char* what, const std::function<absl::Status(const TensorSource&)>& work) {
      const std::string name = absl::StrCat(what, " ", form.name);
      if (!rows_.IsWanted(name)) return true;
      const std::string source = SourceOf(form);
      return rows_.Row(name, model(), source, "", [&] { return Read(source, rows_.Log(), work); });
    };
    bool done = row("diff", [&](const TensorSource& a) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> b, OpenTensorSource(model()));
      FSDP_ASSIGN_OR_RETURN(const DiffReport report, DiffCheckpoints(a, *b, {.model_only = true}));
      return report.equal() ? absl::OkStatus() : absl::InternalError("the two differ");
    });
    done &= row("inspect", [](const TensorSource& source) { return ReadStatistics(source).status(); });
    return row("verify", [](const TensorSource& source) { return VerifySource(source).status(); }) && done;
  }

  // torch's own converters and the safetensors package, started as a user starts them: imports are part of their time.
  bool PackageRows() const {
    const std::string format_utils = " -m torch.distributed.checkpoint.format_utils ";
    const char* const dcp = "torch.distributed.checkpoint";
    bool done = true;
    for (const auto& [name, from, action, target] :
         {std::tuple("format_utils dcp_to_torch", &kForms[2], "dcp_to_torch", "peer.pt"),
          std::tuple("format_utils torch_to_dcp", &kForms[1], "torch_to_dcp", "peer.dcp")}) {
      if (!rows_.IsWanted(name)) continue;
      const std::string source = SourceOf(*from);
      done &= PackageRow(
          {name, dcp, source, Path(target), absl::StrCat(format_utils, action, " ", source, " ", Path(target))});
    }
    const std::string target = Path("peer.safetensors");
    return PackageRow({"safetensors package", "safetensors.numpy", model(), target,
                       absl::StrCat(" -c 'from safetensors.numpy import load_file, save_file; save_file(load_file(\"",
                                    model(), "\"), \"", target, "\")'")}) &&
           done;
  }

  // Not measured, without a failure, if the interpreter lacks the package.
  bool PackageRow(const Package& package) const {
    if (!rows_.IsWanted(package.name)) return true;
    if (!HasModules(package.name, package.imports)) return true;
    return rows_.Row(package.name, model(), package.source, package.target, [&] {
      return RunShell(absl::StrCat(absl::GetFlag(FLAGS_python), package.command, " >", rows_.Log(), " 2>&1 && find ",
                                   package.target, " -type f -exec sync {} +"));
    });
  }

  bool HasModules(const std::string& name, const std::string& modules) const {
    const std::string python = absl::GetFlag(FLAGS_python);
    if (python.empty()) return !ColdRows::NoNumber(name, "--python is empty");
    const std::string imports = absl::StrCat(python, " -c 'import ", modules, "' >", rows_.Log(), " 2>&1");
    if (MeasureProcess([&] { return RunShell(imports); }).done) return true;
    return !ColdRows::NoNumber(name, absl::StrCat(python, ": ", rows_.LastLine()));
  }

  // Trainers' converters, and ours on the same source, which the library has made: of its model, in the same format.
  bool TrainerRows() const {
    bool done = true;
    const Form &to_safetensors = kForms[0], &to_torch = kForms[1], &to_gguf = kForms[6];
    for (const auto& [format, suffix, to, modules] :
         {std::tuple("npz", ".npz", &to_safetensors, "numpy, safetensors"),
          std::tuple("gguf", ".gguf", &to_safetensors, "gguf, safetensors"),
          std::tuple("orbax", "", &to_safetensors, "orbax.checkpoint, safetensors"),
          std::tuple("tensorstore", "", &to_safetensors, "orbax.checkpoint, tensorstore, safetensors"),
          std::tuple("flax", ".msgpack", &to_safetensors, "flax, safetensors"),
          std::tuple("onnx", "", &to_safetensors, "onnx, safetensors"),
          std::tuple("keras", ".weights.h5", &to_safetensors, "keras, safetensors"),
          std::tuple("zero2", "", &to_torch, "deepspeed, safetensors"),
          std::tuple("zero3", "", &to_torch, "deepspeed, safetensors"),
          std::tuple("hf_to_gguf", "", &to_gguf, "convert_hf_to_gguf, sentencepiece, safetensors")}) {
      const std::string package = absl::StrCat(format, ", package"), ours = absl::StrCat(format, ", ours");
      if (!rows_.IsWanted(package) && !rows_.IsWanted(ours)) continue;
      if (!HasModules(package, modules)) continue;
      const std::string script = " checkpoint/benchmark/trainer_peers.py ";
      const std::string source = Path(absl::StrCat("peer.", format, suffix));
      const std::string make = absl::StrCat(absl::GetFlag(FLAGS_python), script, "make ", format, " ", model(), " ",
                                            source, " >", rows_.Log(), " 2>&1");
      fs::remove_all(source);
      if (!MeasureProcess([&] { return RunShell(make); }).done) {
        std::printf("%s failed: %s\n", package.c_str(), rows_.LastLine().c_str());
        done = false;
        continue;
      }
      done &= ConvertRow(ours, source, *to, /*model_only=*/true);
      const std::string target = Path(to == &to_torch ? "peer.pt" : absl::StrCat("peer.", to->name));
      done &= PackageRow({package.c_str(), modules, source, target,
                          absl::StrCat(script, "convert ", format, " ", source, " ", target)});
    }
    return done;
  }

  const fs::path directory_;
  const ColdRows rows_;
};

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const std::optional<int> status = fsdp::ParseFlags(
      argc, argv,
      "convert_benchmark [flags]: times conversions of a model of --bytes between all formats that are written, and "
      "what reads one, compared with cp + sync of the same bytes, and with the converters of other programs if "
      "--python "
      "has them; one line each");
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
