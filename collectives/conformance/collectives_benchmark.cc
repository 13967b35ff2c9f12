// SPDX-License-Identifier: Apache-2.0
//
// Times the collectives of a host backend and compares them with memcpy, or with plain sockets between the hosts.
//
//   bazel run //collectives/conformance:collectives_benchmark -- --nproc=2 --backend=shm
//   bazel run //collectives/conformance:collectives_benchmark -- --nproc=4 --backend=net --ranks_per_host=2
//   launch --nnodes=2 --node_rank=N --master_addr=A --master_port=P --nproc=2 -- collectives_benchmark --backend=net
//   mpirun -np 4 bazel-bin/collectives/conformance/collectives_benchmark --backend=mpi --ranks_per_host=2
//
// Started directly, it starts ranks on this host; --ranks_per_host makes them count as several hosts. Started by
// launch, torchrun, srun or mpirun, on one host or several, it measures those ranks, as tests/hosts/benchmark.sh does;
// backend mpi needs MPI's launcher.
//
// Collectives are issued in batches and synchronised once per batch, as training does. The numbers are meaningful only
// on an idle machine with at least one core per rank.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/conformance/collective_timing.h"
#include "fsdp/collectives/conformance/socket_wire.h"
#include "fsdp/collectives/init_process_group.h"
#include "fsdp/collectives/job/host_identity.h"
#include "fsdp/collectives/job/rendezvous.h"
#include "fsdp/collectives/launcher.h"
#include "fsdp/collectives/net/host_layout.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/collectives/self_launch.h"
#include "nlohmann/json.hpp"

ABSL_FLAG(int, nproc, 2, "ranks on this machine");
ABSL_FLAG(std::string, backend, "shm", "shm: ranks are processes; local: they are threads; net: UCX; mpi: MPI");
ABSL_FLAG(int, ranks_per_host, 0,
          "with --backend=net or mpi: this many consecutive ranks count as one host; 0: real hosts");
ABSL_FLAG(fsdp::ByteSizeFlag, min_bytes, {4 << 10}, "smallest size");
ABSL_FLAG(fsdp::ByteSizeFlag, max_bytes, {256 << 20}, "largest size; sizes grow by a factor of 4");
ABSL_FLAG(std::string, dtype, "float32", "element type: float32, bfloat16, ...");
ABSL_FLAG(std::string, op, "all", "all_gather, reduce_scatter, all_reduce, broadcast or all");
ABSL_FLAG(int, rounds, 15, "batches of each measurement; odd");
ABSL_FLAG(bool, wire, false, "compare with plain sockets between the first two hosts instead of memcpy");
ABSL_FLAG(bool, json, false, "print one JSON object instead of the table");

namespace fsdp {
namespace {

constexpr char kColumns[] =
    "bytes   S: all_gather's output, reduce_scatter's input, else the tensor; per rank\n"
    "count   elements of S\n"
    "time    us per collective: the slowest rank's, median of --rounds batches; best: the fastest batch; +-: half the\n"
    "        distance of the quartiles, in % of the median\n"
    "algbw   S / time, GB/s\n"
    "busbw   algbw times what each rank must get from others, in units of S: (n-1)/n, all_reduce 2(n-1)/n, broadcast "
    "1\n"
    "limit   algbw if the op's memory traffic went at the speed of memcpy on the same ranks, measured in turn with "
    "it:\n"
    "        all_gather copies S(n-1)/n; reduce_scatter reads S and writes S/n; all_reduce is both; broadcast copies "
    "S\n"
    "        with --wire: algbw if plain sockets took the bytes that the op's route on backend net puts on a host's "
    "link,\n"
    "        both ways at the same time between two hosts; up to 16 KiB: if it took a ping-pong of these bytes\n"
    "share   algbw / limit, median over pairs of batches\n";

constexpr CollectiveOp kOps[] = {CollectiveOp::kAllGather, CollectiveOp::kReduceScatter, CollectiveOp::kAllReduce,
                                 CollectiveOp::kBroadcast};

std::vector<CollectiveOp> ChosenOps() {
  std::vector<CollectiveOp> chosen;
  for (const CollectiveOp op : kOps) {
    if (absl::GetFlag(FLAGS_op) == "all" || absl::GetFlag(FLAGS_op) == CollectiveOpName(op)) {
      chosen.push_back(op);
    }
  }
  return chosen;
}

// Flushes each row, so that a long run shows its progress also through a pipe.
void PrintRow(const Timing& t) {
  std::printf("%s\n",
              absl::StrFormat("%-14s %11d %11d %9s %10.1f %10.1f %4.0f %8.2f %8.2f %8.2f %6.2f", CollectiveOpName(t.op),
                              t.bytes, t.bytes / SizeOf(t.dtype), std::string(DTypeName(t.dtype)), t.time * 1e6,
                              t.best * 1e6, t.spread * 100, t.algbw / 1e9, t.busbw / 1e9, t.limit / 1e9, t.share)
                  .c_str());
  std::fflush(stdout);
}

void PrintHead(const ProcessGroup& group) {
  std::printf("%s\n# backend %s, %d ranks\n", kColumns, std::string(group.backend()).c_str(), group.size());
  std::printf("%-14s %11s %11s %9s %10s %10s %4s %8s %8s %8s %6s\n", "op", "bytes", "count", "dtype", "time us",
              "best us", "+-%", "algbw", "busbw", "limit", "share");
}

// The same numbers as the table, in units that the keys name.
void PrintJson(const ProcessGroup& group, const std::vector<Timing>& timings) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Timing& t : timings) {
    rows.push_back({{"op", CollectiveOpName(t.op)},
                    {"bytes", t.bytes},
                    {"count", t.bytes / SizeOf(t.dtype)},
                    {"dtype", std::string(DTypeName(t.dtype))},
                    {"time_us", t.time * 1e6},
                    {"best_us", t.best * 1e6},
                    {"spread", t.spread},
                    {"algbw_gb_per_s", t.algbw / 1e9},
                    {"busbw_gb_per_s", t.busbw / 1e9},
                    {"floor_us", t.floor * 1e6},
                    {"limit_gb_per_s", t.limit / 1e9},
                    {"share_of_limit", t.share}});
  }
  const nlohmann::json all = {{"backend", std::string(group.backend())}, {"ranks", group.size()}, {"rows", rows}};
  std::printf("%s\n", all.dump(2).c_str());
}

// Every rank runs all measurements, because they are collective; only rank 0 prints.
absl::Status MeasureAll(ProcessGroup& group, SocketWire* wire) {
  const int64_t max_bytes = absl::GetFlag(FLAGS_max_bytes).bytes;
  const bool table = group.rank() == 0 && !absl::GetFlag(FLAGS_json);
  FSDP_ASSIGN_OR_RETURN(const DType dtype, ParseDType(absl::GetFlag(FLAGS_dtype)));
  FSDP_ASSIGN_OR_RETURN(
      const std::unique_ptr<CollectiveTimer> timer,
      CollectiveTimer::Create(group, dtype, max_bytes, {.rounds = absl::GetFlag(FLAGS_rounds), .wire = wire}));
  if (table) {
    PrintHead(group);
  }
  std::vector<Timing> timings;
  for (const CollectiveOp op : ChosenOps()) {
    for (int64_t bytes = absl::GetFlag(FLAGS_min_bytes).bytes; bytes <= max_bytes; bytes *= 4) {
      FSDP_ASSIGN_OR_RETURN(const Timing timing, timer->Measure(op, bytes));
      timings.push_back(timing);
      if (table) {
        PrintRow(timing);
      }
    }
  }
  if (group.rank() == 0 && !table) {
    PrintJson(group, timings);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SocketWire>> MakeWire(ProcessGroup& group, const Rendezvous& rendezvous,
                                                     const std::string& host_id) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                        group.AllGatherObject(HostIdentity::OfThisProcess(host_id).ToBlob()));
  std::vector<std::string> hosts;
  for (const std::string& blob : blobs) hosts.push_back(HostIdentity::FromBlob(blob).kernel);
  return SocketWire::Create(group, HostLayout::Of(hosts), rendezvous.master_addr);
}

absl::Status RunAsRank() {
  InitOptions options = {.backend = absl::GetFlag(FLAGS_backend)};
  FSDP_ASSIGN_OR_RETURN(const Rendezvous rendezvous, RendezvousFromEnvironment());
  if (const int ranks_per_host = absl::GetFlag(FLAGS_ranks_per_host); ranks_per_host > 0) {
    options.host_id = absl::StrCat(rendezvous.rank / ranks_per_host);
  } else if (const char* const host_id = getenv("FSDP_HOSTID"); host_id != nullptr) {
    options.host_id = host_id;
  }
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group, InitProcessGroup(rendezvous, options));
  std::unique_ptr<SocketWire> wire;
  if (absl::GetFlag(FLAGS_wire)) {
    FSDP_ASSIGN_OR_RETURN(wire, MakeWire(*group, rendezvous, options.host_id));
  }
  return MeasureAll(*group, wire.get());
}

// Starts this program again, as ranks.
absl::Status RunAsLauncher(int argc, char** argv) {
  LaunchOptions options = {.nproc = absl::GetFlag(FLAGS_nproc), .command = {SelfPath()}, .prefix_output = false};
  options.command.insert(options.command.end(), argv + 1, argv + argc);
  FSDP_ASSIGN_OR_RETURN(const LaunchResult result, Launch(options));
  return result.exit_code == 0 ? absl::OkStatus() : absl::UnavailableError(result.description);
}

absl::Status CheckFlags() {
  const std::string backend = absl::GetFlag(FLAGS_backend);
  const bool has_messages = backend == "net" || backend == "mpi";
  const bool is_known = (backend == "shm" || backend == "local" || has_messages) && !ChosenOps().empty();
  const int ranks_per_host = absl::GetFlag(FLAGS_ranks_per_host);
  const bool has_hosts = ranks_per_host >= 0 && (has_messages || (ranks_per_host == 0 && !absl::GetFlag(FLAGS_wire)));
  const bool has_median = absl::GetFlag(FLAGS_rounds) > 0 && absl::GetFlag(FLAGS_rounds) % 2 == 1;
  if (is_known && has_hosts && has_median && absl::GetFlag(FLAGS_min_bytes).bytes >= 1 &&
      absl::GetFlag(FLAGS_nproc) >= 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "wanted --nproc of at least 1, --min_bytes above 0, --rounds odd, --backend=shm, local, net or mpi, --op as "
      "listed, --ranks_per_host and --wire with --backend=net or mpi");
}

absl::Status Run(int argc, char** argv) {
  if (absl::GetFlag(FLAGS_backend) == "local") {
    return RunRanks(absl::GetFlag(FLAGS_nproc),
                    [](std::shared_ptr<ProcessGroup> group) { return MeasureAll(*group, nullptr); });
  }
  return InsideJob() ? RunAsRank() : RunAsLauncher(argc, argv);
}

int Main(int argc, char** argv) {
  const std::string usage = absl::StrFormat("collectives_benchmark [flags]\n\nColumns:\n%s", kColumns);
  if (const std::optional<int> status = ParseFlags(argc, argv, usage)) {
    return *status;
  }
  if (const absl::Status wrong = CheckFlags(); !wrong.ok()) return ReportUsageError("collectives_benchmark", wrong);
  const absl::Status status = Run(argc, argv);
  if (!status.ok()) {
    std::fprintf(stderr, "collectives_benchmark: %s\n", status.ToString().c_str());
  }
  return status.ok() ? kExitDone : kExitFailed;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
