// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/gpu_ranks_testutil.h"

#include <ATen/Context.h>
#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"

namespace fsdp {
namespace {

constexpr std::chrono::seconds kTestLimit(40);
constexpr absl::Duration kCollectiveTimeout = absl::Seconds(20);

void PrintStack(int) {
  void* frames[64];
  const int depth = backtrace(frames, 64);
  backtrace_symbols_fd(frames, depth, STDERR_FILENO);
  fputs("\n", stderr);
}

// A signal handler can print only the stack of the thread it runs on, so each thread gets the signal.
// One after the other, so that their lines do not mix.
void PrintStacks() {
  signal(SIGUSR2, PrintStack);
  DIR* const tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return;
  while (const dirent* const entry = readdir(tasks)) {
    const int task = std::atoi(entry->d_name);
    if (task == 0) continue;
    fprintf(stderr, "thread %d:\n", task);
    syscall(SYS_tgkill, getpid(), task, SIGUSR2);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  closedir(tasks);
}

// Ends the process, with the stacks of its threads, when a test takes longer than kTestLimit.
class Watch final : public ::testing::EmptyTestEventListener {
 public:
  Watch() : thread_([this] { Run(); }) {}
  ~Watch() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void OnTestStart(const ::testing::TestInfo& test) override {
    Set(std::string(test.test_suite_name()) + "." + test.name());
  }
  void OnTestEnd(const ::testing::TestInfo&) override { Set(""); }

 private:
  void Set(std::string name) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      name_ = std::move(name);
      ++number_;
    }
    changed_.notify_all();
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!ended_) {
      const int number = number_;
      const auto other = [&] { return ended_ || number_ != number; };
      if (changed_.wait_for(lock, kTestLimit, other) || name_.empty()) continue;
      fprintf(stderr, "%s hangs: not done after %d s\n", name_.c_str(), static_cast<int>(kTestLimit.count()));
      PrintStacks();
      // No destructors: a thread that hangs would make them hang too.
      _exit(3);
    }
  }

  // Guards the next three members and changed_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string name_;
  // Counts starts and ends of tests, so that Run notices a change.
  int number_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

// cuBLAS reads the variable when a thread first uses it. TF32 rounds operands to 10 bits.
void MakeKernelsDeterministic() {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/1);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setAllowTF32CuBLAS(false);
  context.setAllowTF32CuDNN(false);
}

}  // namespace

absl::Status RunGpuRanks(int ranks, const std::function<absl::Status(std::shared_ptr<ProcessGroup> group)>& rank_main) {
  std::vector<std::shared_ptr<Device>> devices;
  for (int rank = 0; rank < ranks; ++rank) {
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(0));
    // A device each, since streams and allocators of ranks must not be shared.
    devices.push_back(std::move(device));
  }
  FSDP_ASSIGN_OR_RETURN(auto groups, CreateLocalCudaGroups(devices, kCollectiveTimeout));
  return RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    // RunRanks starts the threads; each of them then uses its own group on the GPU.
    const std::shared_ptr<ProcessGroup> group = std::move(groups[meeting->rank()]);
    const absl::Status status = rank_main(group);
    // The other ranks may wait in a collective: end it now, not after kCollectiveTimeout.
    if (!status.ok()) group->Abort(status);
    return status;
  });
}

void GpuRanksTest::SetUp() {
  if (const auto gpus = CudaDeviceCount(); !gpus.ok()) GTEST_SKIP() << "no GPU: " << gpus.status().message();
  if (!at::globalContext().hasCUDA()) {
    GTEST_SKIP() << "LibTorch has no GPU: it is one for the host, or its CUDA part was not linked "
                    "(FSDP_LIBTORCH_CUDA in third_party/libtorch.bzl)";
  }
}

int RunGpuTests(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  MakeKernelsDeterministic();
  ::testing::UnitTest::GetInstance()->listeners().Append(new Watch);
  return RUN_ALL_TESTS();
}

}  // namespace fsdp
