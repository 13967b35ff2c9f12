// SPDX-License-Identifier: Apache-2.0
//
// KernelRunner: how cuda_kernels_benchmark measures one kernel. As in a training step its operands are not in the L2
// cache, and hold normal random numbers: products of zeros draw less power and so run at a higher clock.
//
//   sets of operands    as many as are cold_bytes together; launch i uses set i modulo their number
//   burst               a CUDA graph of launches on all sets, replayed for burst_seconds and timed by events
//   microseconds        of one launch: the median of `rounds` bursts, after one that warms up
//   spread              (slowest burst - fastest) / median
//   of_copy             the time of a copy of as many bytes, measured in turn with the kernel, over the kernel's
//
// Each kernel is a line of JSON on stdout. Not thread-safe.
#ifndef FSDP_OPTIM_BENCHMARK_KERNEL_RUNNER_H_
#define FSDP_OPTIM_BENCHMARK_KERNEL_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/optim/benchmark/gpu_timer.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/tensor.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {

struct KernelRunnerOptions {
  std::string filter;              // only kernels whose "name, shape" contains it
  double seconds = 0;              // nothing starts after so many; 0: no limit
  int rounds = 7;                  // at least 1
  double burst_seconds = 4e-3;     // of one burst, at least
  int64_t cold_bytes = 256 << 20;  // more than twice the L2 cache of any GPU so far
  int64_t graph_launches = 20;     // of one graph; fewer if they take longer than a burst
};

// One measurement. The count that bounds the kernel decides which rate is printed.
struct KernelCase {
  std::string name;  // the same as gpu_torch_kernels.py's, as are the shapes
  std::string shape;
  DType dtype = DType::kBFloat16;
  int64_t bytes = 0;  // what it must read plus what it must write, once each
  double flops = 0;   // multiplications and additions that the result needs; 0: memory bounds it
};

class KernelRunner {
 public:
  // Puts the kernel on stream() once.
  using Launch = std::function<void()>;

  static absl::StatusOr<std::unique_ptr<KernelRunner>> Create(std::shared_ptr<Device> device,
                                                              const KernelRunnerOptions& options);

  // Measures the launches that `make` returns, each with separate operands, and prints the result. Does nothing if the
  // case is filtered out; counts it as skipped if there is no time left.
  absl::Status Measure(const KernelCase& kernel, const std::function<Launch()>& make);

  // Normally distributed, with mean 0 and the given standard deviation; no two tensors begin alike. Float dtypes.
  Tensor Random(DType dtype, Shape shape, double deviation = 1);
  // Tokens with the frequencies of words: token k has probability proportional to 1 / (k + 1). The tokens of
  // gpu_torch_kernels.py have the same distribution.
  Tensor Tokens(int64_t numel, int64_t classes);
  // For outputs and sums, which begin at zero.
  Tensor Zeros(DType dtype, Shape shape);

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  int measured() const { return measured_; }
  int skipped() const { return skipped_; }

 private:
  struct Burst {
    std::vector<Launch> launches;
    std::unique_ptr<WorkGraph> graph;
    int64_t graph_launches = 0;
    int64_t replays = 1;
    std::vector<double> seconds;  // of one launch, a burst each
  };

  KernelRunner(std::shared_ptr<Device> device, const KernelRunnerOptions& options);

  // The first burst of `launches`, which also chooses the number of replays.
  absl::StatusOr<Burst> WarmUp(std::vector<Launch> launches);
  // Seconds of one launch in a burst.
  absl::StatusOr<double> Run(const Burst& burst);
  // Launches that copy `bytes` / 2, with as many sets of operands as the kernel has.
  std::vector<Launch> Copies(int64_t bytes);
  int64_t SetsFor(int64_t bytes) const;

  const std::shared_ptr<Device> device_;
  const KernelRunnerOptions options_;
  const std::unique_ptr<Stream> stream_;
  std::unique_ptr<GpuTimer> timer_;
  const std::chrono::steady_clock::time_point began_;
  Tensor numbers_;  // normal, float32: tensors are filled from it
  int64_t next_number_ = 0;
  int64_t next_seed_ = 0;  // of Tokens
  int measured_ = 0;
  int skipped_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_BENCHMARK_KERNEL_RUNNER_H_
