// SPDX-License-Identifier: Apache-2.0
//
// Measures durable save and verified load, compared with the floor set by the disk and with other libraries, in one run
// and on the same bytes; checkpoint_rows.h defines the rows, paired_rows.h the columns.
//
//   bazel run -c opt //checkpoint/benchmark:checkpoint_benchmark -- --directory=DISK --megabytes=1000 --repetitions=3
#include <stdio.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/benchmark/checkpoint_rows.h"
#include "fsdp/checkpoint/benchmark/paired_rows.h"

ABSL_FLAG(std::string, directory, "",
          "directory to write to; a new directory is made in it (default: the temporary directory)");
ABSL_FLAG(int, megabytes, 512, "payload, in units of 10^6 bytes");
ABSL_FLAG(int, tensors, 100, "tensors that share it");
ABSL_FLAG(int, repetitions, 5, "counted runs of each row, after one warm-up run");
ABSL_FLAG(int, io_threads, 2, "threads of a save or load");
ABSL_FLAG(std::string, rows, "", "only rows whose name contains this, and their floors");
ABSL_FLAG(std::string, python, "python3", "the interpreter with h5py and torch; empty: no rows for them");
ABSL_FLAG(bool, json, false, "print one JSON object instead of a table");

namespace fsdp {
namespace {

// The path of the peers' script: in the runfiles of this program, or below the current directory, as under bazel run.
std::string FindPeers() {
  namespace fs = std::filesystem;
  const fs::path script = "checkpoint/benchmark/benchmark_peers.py";
  std::error_code error;
  const fs::path runfiles = fs::read_symlink("/proc/self/exe", error).string() + ".runfiles";
  for (fs::directory_iterator entry(runfiles, error), end; !error && entry != end; entry.increment(error)) {
    if (fs::exists(entry->path() / script)) return entry->path() / script;
  }
  return script;
}

// The load average is part of the result: it shows whether the machine was busy with other work.
absl::StatusOr<nlohmann::json> Measure(const std::string& directory) {
  CheckpointRowsOptions options;
  options.directory = directory;
  options.python = absl::GetFlag(FLAGS_python);
  options.peers = FindPeers();
  options.payload_bytes = int64_t{absl::GetFlag(FLAGS_megabytes)} * 1000 * 1000;
  options.tensors = absl::GetFlag(FLAGS_tensors);
  options.io_threads = absl::GetFlag(FLAGS_io_threads);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointRows> all, CheckpointRows::Create(options));
  std::vector<PairedRow> rows = SelectRows(all->Rows(), absl::GetFlag(FLAGS_rows));
  FSDP_RETURN_IF_ERROR(MeasureRows(rows, absl::GetFlag(FLAGS_repetitions)));
  double load[1] = {0};
  (void)getloadavg(load, 1);
  return nlohmann::json{{"bytes", all->nbytes()},           {"tensors", options.tensors},
                        {"io_threads", options.io_threads}, {"repetitions", absl::GetFlag(FLAGS_repetitions)},
                        {"load_average", load[0]},          {"rows", SummariseRows(rows, all->nbytes())},
                        {"missing", MissingRows(rows)}};
}

int Main() {
  std::string directory = absl::GetFlag(FLAGS_directory);
  if (directory.empty()) directory = std::filesystem::temp_directory_path();
  directory += "/checkpoint-benchmark-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    fprintf(stderr, "cannot make a directory %s\n", directory.c_str());
    return 1;
  }
  const absl::StatusOr<nlohmann::json> measured = Measure(directory);
  std::filesystem::remove_all(directory);
  if (!measured.ok()) {
    fprintf(stderr, "checkpoint_benchmark: %s\n", measured.status().ToString().c_str());
    return 1;
  }
  if (absl::GetFlag(FLAGS_json)) {
    printf("%s\n", measured->dump(2).c_str());
    return 0;
  }
  printf("%.3f GB in %d tensors, %d threads, median of %d, load average %.1f\n%s%s",
         (*measured)["bytes"].get<double>() / 1e9, (*measured)["tensors"].get<int>(),
         (*measured)["io_threads"].get<int>(), (*measured)["repetitions"].get<int>(),
         (*measured)["load_average"].get<double>(), RowTable((*measured)["rows"]).c_str(),
         MissingTable((*measured)["missing"]).c_str());
  return 0;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const std::optional<int> status = fsdp::ParseFlags(
      argc, argv,
      "checkpoint_benchmark [flags]: durable save and verified load compared with the disk and with other libraries");
  return status ? *status : fsdp::Main();
}
