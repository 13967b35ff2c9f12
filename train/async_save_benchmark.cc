// SPDX-License-Identifier: Apache-2.0
//
// async_save_benchmark measures how much an asynchronous save slows down the training that continues meanwhile. One
// process trains with the flags of train_gpt that describe model, batch and sharding, on --nproc ranks that are
// threads. It repeats a cycle --cycles times: steps without a save; then the start of a SHARDED save of model and
// optimizer, and steps until it is durable; then steps during the floor. The floor is the cost of any such write for
// the disk and the machine: as many threads, of the same niceness, write as many bytes of memory into a flat file and
// fsync it (raw_file.h).
//
//   async_save_benchmark --model=gpt2 --config=... --nproc=1 --checkpoint_dir=DISK --cycles=5
//
// A step counts as one during a save if it began after AsyncSaver::Save returned and ended before the commit. Prints
// the mean, median, lowest and highest seconds of the three kinds of steps, the ratios, and for the saves: seconds in
// flight, their share of all time, seconds that training was blocked (the copy), bytes. --json: one object.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/benchmark/raw_file.h"
#include "fsdp/checkpoint/native/async_saver.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/train/batch_loader.h"
#include "fsdp/train/sharded_language_model.h"
#include "fsdp/train/token_data.h"
#include "fsdp/train/train_options.h"
#include "fsdp/train/train_step.h"

ABSL_FLAG(int, cycles, 5, "saves, each after as many steps without one as the save before had");
ABSL_FLAG(int, save_threads, fsdp::AsyncSaverOptions().save.io_threads, "threads of each rank that digest and write");
ABSL_FLAG(int, nice, fsdp::AsyncSaverOptions().nice, "how nice these threads are to training, 0 to 19");
ABSL_FLAG(double, processor_share, 0, "what each takes of one core's time at most; 0: as AsyncSaverOptions chooses");
ABSL_FLAG(bool, json, false, "print one JSON object");

namespace fsdp {
namespace {

constexpr int kWarmupSteps = 3;
constexpr int kLeastSteps = 4;  // without a save, per cycle

constexpr char kTextName[] = "/text";

// The data, for samples of `seq_len`. They do not affect the time.
void WriteText(const std::string& root, int64_t seq_len) {
  std::filesystem::create_directories(root);
  std::ofstream text(root + kTextName);
  for (int64_t i = 0; i < 64 * seq_len; ++i) text.put(static_cast<char>('a' + i * i % 26));
}

// The measurements of rank 0.
struct Measured {
  std::vector<double> without;  // seconds of each step
  std::vector<double> with;
  std::vector<double> beside_floor;
  std::vector<double> in_flight;  // seconds of each save
  std::vector<double> floor_in_flight;
  std::vector<double> blocked;
  int64_t staged_bytes = 0;  // of one rank
  double seconds = 0;        // of all cycles

  // The share of the time during which a save was in flight.
  double share() const { return std::accumulate(in_flight.begin(), in_flight.end(), 0.0) / seconds; }
};

class AsyncSaveBenchmark {
 public:
  AsyncSaveBenchmark(const TrainOptions& options, std::shared_ptr<ProcessGroup> group, std::string root)
      : options_(options), group_(std::move(group)), root_(std::move(root)) {}

  absl::StatusOr<Measured> Run() {
    FSDP_RETURN_IF_ERROR(Build());
    for (int step = 0; step < kWarmupSteps; ++step) FSDP_RETURN_IF_ERROR(Step().status());
    // The first save allocates the arena and is not counted.
    FSDP_RETURN_IF_ERROR(Cycle());
    measured_ = {};
    const absl::Time start = absl::Now();
    for (int cycle = 0; cycle < absl::GetFlag(FLAGS_cycles); ++cycle) FSDP_RETURN_IF_ERROR(Cycle());
    measured_.seconds = absl::ToDoubleSeconds(absl::Now() - start);
    return measured_;
  }

 private:
  absl::Status Build() {
    FSDP_ASSIGN_OR_RETURN(const CausalLmConfig config, ReadModelConfig(options_, nullptr));
    FSDP_ASSIGN_OR_RETURN(model_, MakeShardedModel(config, options_, group_, /*trace=*/nullptr));
    optimizer_ = std::make_unique<AdamW>(AdamW::DecayMatricesOnly(model_->parameters(), options_.adamw));
    FSDP_ASSIGN_OR_RETURN(TokenData data, TokenData::FromTextFiles(root_ + kTextName));
    batches_ = std::make_unique<BatchLoader>(std::move(data), BatchShape{.batch_size = options_.batch_size,
                                                                         .seq_len = options_.seq_len,
                                                                         .grad_accum = options_.grad_accum,
                                                                         .rank = group_->rank(),
                                                                         .world_size = group_->size()});
    FSDP_ASSIGN_OR_RETURN(train_step_, TrainStep::Create(*model_, {optimizer_.get()}, *batches_, nullptr));
    AsyncSaverOptions options;
    options.save.overwrite = true;
    options.save.io_threads = absl::GetFlag(FLAGS_save_threads);
    options.nice = absl::GetFlag(FLAGS_nice);
    options.processor_share = absl::GetFlag(FLAGS_processor_share);
    options.committed = [this](const std::string&) {
      committed_ = true;
      return absl::OkStatus();
    };
    FSDP_ASSIGN_OR_RETURN(saver_, AsyncSaver::Create(root_, *group_, options));
    return absl::OkStatus();
  }

  // Steps without a save, then steps during one, then steps during the floor. The number of steps without a save
  // follows the number of the others in the cycle before, so that the kinds are sampled equally often.
  absl::Status Cycle() {
    for (int i = 0; i < std::max<int>(kLeastSteps, last_steps_); ++i) {
      FSDP_ASSIGN_OR_RETURN(const double seconds, Step());
      measured_.without.push_back(seconds);
    }
    committed_ = false;
    FSDP_ASSIGN_OR_RETURN(const StateDict state, ShardedState());
    FSDP_ASSIGN_OR_RETURN(const AsyncSaveReport report, saver_->Save(state, 1));
    measured_.blocked.push_back(absl::ToDoubleSeconds(report.blocked));
    measured_.staged_bytes = report.staged_bytes;
    last_steps_ = 0;
    FSDP_ASSIGN_OR_RETURN(const double in_flight, StepUntil(committed_, measured_.with));
    measured_.in_flight.push_back(in_flight);
    FSDP_RETURN_IF_ERROR(saver_->Wait().status());
    return BesideFloor();
  }

  absl::StatusOr<StateDict> ShardedState() {
    const StateDictTypeGuard guard(*model_, {ShardedStateDictConfig{}, ShardedOptimStateDictConfig{}});
    FSDP_ASSIGN_OR_RETURN(StateDict state, model_->GetStateDict());
    FSDP_RETURN_IF_ERROR(model_->AddOptimStateDict(*optimizer_, state));
    return state;
  }

  // The floor: memory of the size that the save staged, written by a pool of the same size and niceness to a flat file.
  absl::Status BesideFloor() {
    if (!floor_bytes_) {
      FSDP_ASSIGN_OR_RETURN(floor_bytes_, group_->device()->AllocatePinned(measured_.staged_bytes));
      std::memset(floor_bytes_.data(), 1, floor_bytes_.nbytes());
      FSDP_ASSIGN_OR_RETURN(floor_writers_, ThreadPool::CreateBackground(absl::GetFlag(FLAGS_save_threads), "floor-io",
                                                                         {.nice = absl::GetFlag(FLAGS_nice)}));
    }
    const RawFile file(absl::StrFormat("%s/floor-%d", root_, group_->rank()), *floor_writers_);
    std::atomic<bool> written{false};
    absl::Status status;
    std::thread writer([&] {
      status = file.Write(absl::MakeConstSpan(floor_bytes_.data(), floor_bytes_.nbytes()), floor_bytes_.nbytes());
      written = true;
    });
    const absl::StatusOr<double> in_flight = StepUntil(written, measured_.beside_floor);
    writer.join();
    std::error_code ignored;
    std::filesystem::remove(file.path(), ignored);
    FSDP_RETURN_IF_ERROR(in_flight.status());
    measured_.floor_in_flight.push_back(*in_flight);
    return status;
  }

  // Makes steps until `done` is set on rank 0. All ranks learn that after each step, since all must make the same
  // number. Adds the seconds of each step except the last, which ended after the save did; returns the seconds of all.
  absl::StatusOr<double> StepUntil(const std::atomic<bool>& done, std::vector<double>& steps) {
    const absl::Time start = absl::Now();
    while (true) {
      FSDP_ASSIGN_OR_RETURN(const double seconds, Step());
      FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> known, group_->AllGatherObject(done ? "1" : "0"));
      if (known[0] == "1") return absl::ToDoubleSeconds(absl::Now() - start);
      steps.push_back(seconds);
      ++last_steps_;
    }
  }

  absl::StatusOr<double> Step() {
    const absl::Time start = absl::Now();
    FSDP_RETURN_IF_ERROR(train_step_->Run(next_step_++, options_.clip_limit()).status());
    FSDP_RETURN_IF_ERROR(model_->stream().Synchronize());
    return absl::ToDoubleSeconds(absl::Now() - start);
  }

  const TrainOptions& options_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::string root_;
  std::unique_ptr<FullyShardedDataParallel> model_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<BatchLoader> batches_;
  std::unique_ptr<TrainStep> train_step_;
  std::unique_ptr<AsyncSaver> saver_;
  std::atomic<bool> committed_{false};  // set by the saver's thread of rank 0
  Buffer floor_bytes_;
  std::unique_ptr<ThreadPool> floor_writers_;
  int64_t next_step_ = 0;
  int last_steps_ = 0;  // during the save and the floor of the cycle before
  Measured measured_;
};

nlohmann::json Spread(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {{"count", values.size()},
          {"mean", sum / static_cast<double>(values.size())},
          {"median", values[values.size() / 2]},
          {"lowest", values.front()},
          {"highest", values.back()}};
}

void PrintRatio(const char* name, const nlohmann::json& beside, const nlohmann::json& without) {
  const auto ratio = [&](const char* of) { return beside[of].get<double>() / without[of].get<double>(); };
  absl::PrintF("a step %s takes %.3f of one without (mean; of the medians %.3f)\n", name, ratio("mean"),
               ratio("median"));
}

void Print(const Measured& measured) {
  const nlohmann::json summary = {{"steps without a save", Spread(measured.without)},
                                  {"steps beside a save", Spread(measured.with)},
                                  {"steps beside the floor", Spread(measured.beside_floor)},
                                  {"save in flight", Spread(measured.in_flight)},
                                  {"floor in flight", Spread(measured.floor_in_flight)},
                                  {"blocked", Spread(measured.blocked)},
                                  {"share of time in flight", measured.share()},
                                  {"staged bytes", measured.staged_bytes}};
  if (absl::GetFlag(FLAGS_json)) {
    absl::PrintF("%s\n", summary.dump(2));
    return;
  }
  absl::PrintF("%-22s %6s %9s %9s %9s %9s\n", "seconds of", "count", "mean", "median", "lowest", "highest");
  for (const auto& [name, spread] : summary.items()) {
    if (!spread.is_object()) continue;
    absl::PrintF("%-22s %6d %9.4f %9.4f %9.4f %9.4f\n", name, spread["count"].get<int>(), spread["mean"].get<double>(),
                 spread["median"].get<double>(), spread["lowest"].get<double>(), spread["highest"].get<double>());
  }
  if (measured.with.empty() || measured.beside_floor.empty()) {
    absl::PrintF("no step was as short as a save: take a smaller step or a larger model\n");
    return;
  }
  PrintRatio("beside a save", summary["steps beside a save"], summary["steps without a save"]);
  PrintRatio("beside the floor", summary["steps beside the floor"], summary["steps without a save"]);
  absl::PrintF("%.1f MB of a rank saved, in flight %.0f %% of the time\n",
               static_cast<double>(measured.staged_bytes) / 1e6, 100 * measured.share());
}

absl::StatusOr<Measured> MeasureOnRanks(const TrainOptions& options, const std::string& root) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int nproc = options.nproc.value_or(2);
  std::vector<std::shared_ptr<Device>> devices;
  for (int rank = 0; rank < nproc; ++rank) {
    devices.push_back(CreateHostDevice({.kernel_threads = std::max(1, cores / nproc)}));
  }
  std::vector<absl::StatusOr<Measured>> results(nproc, Measured());
  std::vector<std::thread> ranks;
  for (std::unique_ptr<ProcessGroup>& own : CreateLocalGroups(devices)) {
    ranks.emplace_back([&, group = std::shared_ptr<ProcessGroup>(std::move(own))]() mutable {
      const int rank = group->rank();
      results[rank] = AsyncSaveBenchmark(options, group, root).Run();
      if (!results[rank].ok()) group->Abort(results[rank].status());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const absl::StatusOr<Measured>& result : results) FSDP_RETURN_IF_ERROR(result.status());
  return results[0];
}

int Main(int argc, char** argv) {
  if (const std::optional<int> status = ParseFlags(argc, argv, "async_save_benchmark [flags]")) return *status;
  const absl::StatusOr<TrainOptions> options = TrainOptionsFromFlags();
  if (!options.ok()) return ReportUsageError("async_save_benchmark", options.status());
  const std::string root = options->checkpoint_dir + "/async-save-benchmark";
  WriteText(root, options->seq_len);
  const absl::StatusOr<Measured> measured = MeasureOnRanks(*options, root);
  std::error_code ignored;
  std::filesystem::remove_all(root, ignored);
  if (measured.ok()) {
    Print(*measured);
    return kExitDone;
  }
  std::fprintf(stderr, "async_save_benchmark: %s\n", std::string(measured.status().message()).c_str());
  return kExitFailed;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
