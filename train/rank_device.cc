// SPDX-License-Identifier: Apache-2.0
//
// A CUDA context does not survive fork(), and the launcher forks the ranks. So a process that has yet to start ranks
// must not touch the driver: CountGpus asks the driver in a child process, which exits with the count.
#include "fsdp/train/rank_device.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "absl/strings/str_cat.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/tensor/host_device.h"

namespace fsdp {
namespace {

absl::Status NoGpu(const absl::Status& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("--device=cuda: ", why.message(), "; train with --device=cpu, or on a machine with a GPU"));
}

// cudaGetDeviceCount initialises the driver, after which a process must not fork. The count is an exit status, so at
// most 255.
int CountInChild() {
  const pid_t child = fork();
  if (child == 0) _exit(std::min(CudaDeviceCount().value_or(0), 255));
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

// The cores of the host divided evenly among its ranks.
std::shared_ptr<Device> HostShare(const Rendezvous& job) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return CreateHostDevice({.kernel_threads = std::max(1, cores / job.local_world_size)});
}

}  // namespace

absl::StatusOr<int> CountGpus(DeviceChoice choice) {
  if (choice == DeviceChoice::kCpu) return 0;
  const int gpus = CountInChild();
  if (gpus > 0 || choice == DeviceChoice::kAuto) return gpus;
  const absl::StatusOr<int> why = CudaDeviceCount();  // without a GPU this starts no driver, and returns the reason
  return why.ok() ? *why : absl::StatusOr<int>(NoGpu(why.status()));
}

absl::StatusOr<std::shared_ptr<Device>> CreateRankDevice(const Rendezvous& job, const RankDeviceOptions& options) {
  if (options.device == DeviceChoice::kCpu) return HostShare(job);
  const absl::StatusOr<int> gpus = CudaDeviceCount();
  if (!gpus.ok()) {
    return options.device == DeviceChoice::kAuto ? absl::StatusOr<std::shared_ptr<Device>>(HostShare(job))
                                                 : NoGpu(gpus.status());
  }
  if (job.local_world_size > *gpus) {
    if (!options.share_gpu) {
      return absl::InvalidArgumentError(absl::StrCat(job.local_world_size, " ranks on this host, which has ",
                                                     Counted(*gpus, "GPU"), ": expected at most ", *gpus,
                                                     ", or --share_gpu"));
    }
    // NCCL tells hosts apart by this name: with one for each rank it accepts several ranks on one GPU.
    setenv("NCCL_HOSTID", absl::StrCat("rank-", job.rank).c_str(), /*overwrite=*/0);
  }
  return CreateCudaDevice(job.local_rank % *gpus);
}

}  // namespace fsdp
