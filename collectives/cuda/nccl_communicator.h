// SPDX-License-Identifier: Apache-2.0
//
// NcclCommunicator: NCCL, without blocking: every call is polled to its end or to a deadline, and may be aborted from
// another thread. One process per GPU; several ranks on one GPU need an NCCL_HOSTID each (docs/gpu.md). NCCL's
// algorithm determines the order of sums: they are equal on all ranks, but can differ from the host backends' in the
// last bits. 16-bit floats are rounded at each hop.
#ifndef FSDP_COLLECTIVES_CUDA_NCCL_COMMUNICATOR_H_
#define FSDP_COLLECTIVES_CUDA_NCCL_COMMUNICATOR_H_

#include <nccl.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "fsdp/collectives/cuda/cuda_communicator.h"
#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

// CudaCommunicator over NCCL. Every rank is a process, or a thread, with its own GPU. Calls come from one thread at a
// time, except for AsyncError, Abort and the destruction of Buffers, which come from any thread.
class NcclCommunicator final : public CudaCommunicator, public std::enable_shared_from_this<NcclCommunicator> {
 public:
  // A communicator of the ranks of `control`, each with its own GPU `device`. Every rank calls it. `timeout` bounds
  // every call of NCCL that needs the peers: setting up, splitting, and launching while NCCL connects lazily.
  static absl::StatusOr<std::shared_ptr<CudaCommunicator>> Create(ProcessGroup& control, std::shared_ptr<Device> device,
                                                                  absl::Duration timeout);
  // Blocks while NCCL finalizes; aborts the communicator if that takes longer than the timeout.
  ~NcclCommunicator() override;

  std::string_view backend() const override { return "nccl"; }

  // NCCL multiplies by 1/n, in the dtype itself, before it adds. For 16-bit types that is less exact than dividing the
  // sum, unless n is a power of two and the multiplication is exact.
  bool CanAverage(DType dtype) const override { return SizeOf(dtype) >= 4 || (size_ & (size_ - 1)) == 0; }

  bool CanCapture() const override { return true; }
  // Several collectives become one group call of NCCL. kDeadlineExceeded if NCCL waits for its peers for longer than
  // the timeout; the communicator is then aborted. kCancelled after Abort.
  absl::Status Launch(absl::Span<const Collective> collectives, CUstream_st* stream) override;
  // OK after Abort, and while a call is in progress.
  absl::Status AsyncError() override;
  // Frees NCCL's communicator: later calls are kCancelled. Any thread.
  void Abort() override;

  // From ncclMemAlloc and registered with this communicator, which may then read and write it without a copy. Rounded
  // up to NCCL's granularity, some MiB: use it for arenas.
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override;
  bool RegistersMemory() const override { return true; }

  // Windows need NCCL 2.27, copy engines NCCL 2.28 (loaded, and its nccl.h in the build) and a driver of CUDA 12.5.
  absl::Status CheckWindows(CommunicatorPolicy policy) const override;
  // The window keeps the communicator alive, so it is deregistered first; not after an abort, which frees it. Later
  // collectives find it by address.
  absl::StatusOr<std::unique_ptr<SymmetricWindow>> RegisterWindow(const Buffer& memory) override;

  // The parent stays usable. The part shares the device and the timeout.
  absl::StatusOr<std::shared_ptr<CudaCommunicator>> Split(const std::vector<int>& members,
                                                          CommunicatorPolicy policy) override;

 private:
  class Window;

  NcclCommunicator(std::shared_ptr<Device> device, int ordinal, int size, absl::Duration timeout)
      : device_(std::move(device)), ordinal_(ordinal), size_(size), timeout_(timeout) {}

  // Makes `call` and polls until it is done. Holds the mutex during the call and each poll, but not in between, so that
  // another thread can abort.
  template <typename Call>
  absl::Status Make(std::string_view name, Call call);
  absl::Status Poll(std::string_view name, ncclResult_t result);

  // NCCL's call for a collective: its name, and the function that makes it.
  struct NcclCall {
    std::string_view name;
    std::function<ncclResult_t()> make;
  };
  // kUnimplemented for reductions of types other than floats and int32/int64.
  absl::StatusOr<NcclCall> CallFor(const Collective& collective, CUstream_st* stream);
  absl::StatusOr<NcclCall> CallForReduction(const Collective& collective, CUstream_st* stream);
  absl::StatusOr<ncclRedOp_t> Reduction(const CollectiveSpec& spec);
  // Deregisters and frees the memory of Allocate. Any thread, also after Abort.
  void Free(void* data, int64_t nbytes, void* registration);

  const std::shared_ptr<Device> device_;
  const int ordinal_;
  const int size_;
  const absl::Duration timeout_;

  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;              // guarded by mutex_; null once aborted
  bool aborted_ = false;                   // guarded by mutex_
  std::map<DType, ncclRedOp_t> averages_;  // created on first use
  void* barrier_ = nullptr;                // one int32 on the device
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_NCCL_COMMUNICATOR_H_
