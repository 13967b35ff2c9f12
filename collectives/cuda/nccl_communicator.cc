// SPDX-License-Identifier: Apache-2.0
//
// All communicators are non-blocking (ncclConfig_t::blocking = 0). A blocking call of NCCL returns only when all peers
// have made it too, so a rank whose peer died would block for ever inside the library, out of reach of any deadline or
// abort. A non-blocking call returns ncclInProgress; Poll then calls ncclCommGetAsyncError until it is done, the
// deadline is past, or another thread has aborted. See "Fault Tolerance" in NCCL's user guide.
//
// ncclCommAbort frees the communicator, so every use of comm_ is under the mutex, and comm_ is null after an abort.
//
// NCCL's results become these codes: ncclRemoteError (a peer is gone) kUnavailable; ncclInvalidUsage (ranks disagree,
// or two ranks on one GPU) kFailedPrecondition; everything else (CUDA, system, internal errors) kInternal.
#include "fsdp/collectives/cuda/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/collectives/cuda/cuda_ordinal.h"
#include "fsdp/collectives/cuda/nccl_windows.h"
#include "fsdp/cuda/cuda_status.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

absl::StatusCode CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return absl::StatusCode::kOk;
    case ncclRemoteError:
      return absl::StatusCode::kUnavailable;
    case ncclInvalidUsage:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

// `comm` may be null, as ncclGetLastError permits.
absl::Status NcclStatus(ncclResult_t result, std::string_view call, ncclComm_t comm) {
  if (result == ncclSuccess) return absl::OkStatus();
  const char* detail = ncclGetLastError(comm);
  std::string text = absl::StrCat(std::string(call), ": ", ncclGetErrorString(result));
  if (detail != nullptr && *detail != '\0') absl::StrAppend(&text, ": ", detail);
  if (absl::StrContains(text, "Duplicate GPU")) {
    absl::StrAppend(&text, "; ranks that share a GPU need an NCCL_HOSTID each, see docs/gpu.md");
  }
  return absl::Status(CodeOf(result), text);
}

std::optional<ncclDataType_t> TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kInt64:
      return ncclInt64;
    case DType::kInt32:
      return ncclInt32;
    default:
      return std::nullopt;  // moved as bytes, and never reduced
  }
}

ncclConfig_t Config(CommunicatorPolicy policy) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (policy == CommunicatorPolicy::kCopyEngines) UseNoMultiprocessors(config);
  return config;
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaCommunicator>> NcclCommunicator::Create(ProcessGroup& control,
                                                                           std::shared_ptr<Device> device,
                                                                           absl::Duration timeout) {
  // A rank with an error still takes part in every exchange, so that its peers get the error instead of a timeout.
  ncclUniqueId id = {};
  absl::StatusOr<int> ordinal = CudaOrdinal(*device);
  absl::Status mine = ordinal.status();
  if (mine.ok() && control.rank() == 0) mine = NcclStatus(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
  FSDP_RETURN_IF_ERROR(AllReduceStatus(control, mine));
  FSDP_ASSIGN_OR_RETURN(
      const std::vector<std::string> ids,
      control.AllGatherObject(control.rank() == 0 ? std::string_view(id.internal, sizeof(id.internal)) : ""));
  if (ids[0].size() != sizeof(id.internal)) return absl::InternalError("rank 0 gave no id of a communicator");
  std::memcpy(id.internal, ids[0].data(), sizeof(id.internal));

  std::shared_ptr<NcclCommunicator> made(new NcclCommunicator(std::move(device), *ordinal, control.size(), timeout));
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(*ordinal), "cudaSetDevice", *ordinal));
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&made->barrier_, sizeof(int32_t)), "cudaMalloc", *ordinal));
  ncclConfig_t config = Config(CommunicatorPolicy::kDefault);
  const int rank = control.rank();
  FSDP_RETURN_IF_ERROR(AllReduceStatus(control, made->Make("ncclCommInitRankConfig", [&] {
    return ncclCommInitRankConfig(&made->comm_, made->size_, id, rank, &config);
  })));
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ != nullptr) {
    for (const auto& [dtype, op] : averages_) ncclRedOpDestroy(op, comm_);
    // ncclCommFinalize waits for the peers' outstanding work. There is no such work: a group outlives its work.
    const absl::Status finalized = Make("ncclCommFinalize", [this] { return ncclCommFinalize(comm_); });
    if (comm_ != nullptr) finalized.ok() ? ncclCommDestroy(comm_) : ncclCommAbort(comm_);
  }
  if (barrier_ != nullptr) cudaFree(barrier_);
}

template <typename Call>
absl::Status NcclCommunicator::Make(std::string_view name, Call call) {
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return absl::CancelledError(absl::StrCat(std::string(name), ": the communicator was aborted"));
    result = call();
    if (result != ncclInProgress) return NcclStatus(result, name, comm_);
  }
  return Poll(name, result);
}

absl::Status NcclCommunicator::Poll(std::string_view name, ncclResult_t result) {
  const absl::Time deadline = SteadyNow() + timeout_;
  while (true) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (aborted_) return absl::CancelledError(absl::StrCat(std::string(name), ": the communicator was aborted"));
      FSDP_RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError", comm_));
      if (result != ncclInProgress) return NcclStatus(result, name, comm_);
    }
    if (SteadyNow() > deadline) {
      // NCCL cannot cancel a single call, so a call that timed out costs the communicator.
      Abort();
      return absl::DeadlineExceededError(
          absl::StrCat(std::string(name), " waited ", absl::FormatDuration(timeout_), " for its peers"));
    }
    // Without the mutex, so that another thread can abort in between.
    absl::SleepFor(absl::Microseconds(50));
  }
}

absl::Status NcclCommunicator::AsyncError() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return absl::OkStatus();
  ncclResult_t result = ncclSuccess;
  FSDP_RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError", comm_));
  return result == ncclInProgress ? absl::OkStatus() : NcclStatus(result, "nccl", comm_);
}

void NcclCommunicator::Abort() {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Set even if comm_ is null, so that a later Make fails.
  aborted_ = true;
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
}

absl::Status NcclCommunicator::Launch(absl::Span<const Collective> collectives, CUstream_st* stream) {
  std::vector<NcclCall> calls;
  for (const Collective& collective : collectives) {
    FSDP_ASSIGN_OR_RETURN(NcclCall call, CallFor(collective, stream));
    calls.push_back(std::move(call));
  }
  if (calls.size() == 1) return Make(calls[0].name, calls[0].make);
  // After an error in the middle the group must still be ended: an open group would swallow the next calls of this
  // thread.
  return Make("ncclGroupEnd", [&] {
    ncclResult_t first = ncclGroupStart();
    for (const NcclCall& call : calls) {
      const ncclResult_t made = first == ncclSuccess ? call.make() : first;
      if (made != ncclSuccess && made != ncclInProgress) first = made;
    }
    const ncclResult_t ended = ncclGroupEnd();
    return first == ncclSuccess ? ended : first;
  });
}

// Data that is only moved is sent as bytes, so every dtype works. A barrier is an all_reduce of one number, which no
// rank can finish before all have started.
absl::StatusOr<NcclCommunicator::NcclCall> NcclCommunicator::CallFor(const Collective& c, CUstream_st* stream) {
  const auto nbytes = static_cast<size_t>(c.spec.count * SizeOf(c.spec.dtype));
  switch (c.spec.op) {
    case CollectiveOp::kAllGather:
      return NcclCall{"ncclAllGather",
                      [=, this] { return ncclAllGather(c.input, c.output, nbytes, ncclUint8, comm_, stream); }};
    case CollectiveOp::kBroadcast:
      return NcclCall{"ncclBroadcast", [=, this] {
                        return ncclBroadcast(c.input, c.output, nbytes, ncclUint8, c.spec.root, comm_, stream);
                      }};
    case CollectiveOp::kBarrier:
      return NcclCall{"ncclAllReduce",
                      [=, this] { return ncclAllReduce(barrier_, barrier_, 1, ncclInt32, ncclMax, comm_, stream); }};
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllReduce:
      return CallForReduction(c, stream);
    case CollectiveOp::kAllGatherObject:
    case CollectiveOp::kReplay:
      break;
  }
  return absl::InternalError(absl::StrCat(CollectiveOpName(c.spec.op), " is not for a GPU"));
}

absl::StatusOr<NcclCommunicator::NcclCall> NcclCommunicator::CallForReduction(const Collective& c,
                                                                              CUstream_st* stream) {
  const std::optional<ncclDataType_t> type = TypeOf(c.spec.dtype);
  if (!type.has_value()) {
    return absl::UnimplementedError(absl::StrCat("backend nccl cannot reduce ", std::string(DTypeName(c.spec.dtype))));
  }
  FSDP_ASSIGN_OR_RETURN(const ncclRedOp_t op, Reduction(c.spec));
  const auto count = static_cast<size_t>(c.spec.count);
  if (c.spec.op == CollectiveOp::kAllReduce) {
    return NcclCall{"ncclAllReduce",
                    [=, this] { return ncclAllReduce(c.input, c.output, count, *type, op, comm_, stream); }};
  }
  return NcclCall{"ncclReduceScatter",
                  [=, this] { return ncclReduceScatter(c.input, c.output, count, *type, op, comm_, stream); }};
}

// An average is a sum of inputs that NCCL multiplies by 1/n. ncclAvg is not used, so that the factor and its rounding
// to the dtype are chosen here. The operator is created once per dtype: it belongs to the communicator and is freed
// with it.
absl::StatusOr<ncclRedOp_t> NcclCommunicator::Reduction(const CollectiveSpec& spec) {
  switch (spec.reduce_op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kAvg:
      break;
  }
  if (const auto made = averages_.find(spec.dtype); made != averages_.end()) return made->second;
  const double factor = 1.0 / size_;
  std::array<std::byte, sizeof(double)> scalar;
  FSDP_RETURN_IF_ERROR(Convert(DType::kFloat64, &factor, spec.dtype, scalar.data(), 1));
  ncclRedOp_t op = ncclSum;
  FSDP_RETURN_IF_ERROR(Make("ncclRedOpCreatePreMulSum", [&] {
    return ncclRedOpCreatePreMulSum(&op, scalar.data(), *TypeOf(spec.dtype), ncclScalarHostImmediate, comm_);
  }));
  averages_[spec.dtype] = op;
  return op;
}

absl::StatusOr<Buffer> NcclCommunicator::Allocate(int64_t nbytes) {
  if (nbytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(device_->name(), ": cannot allocate ", nbytes, " bytes"));
  }
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice", ordinal_));
  const auto size = static_cast<size_t>(std::max<int64_t>(nbytes, 1));
  void* data = nullptr;
  if (const ncclResult_t result = ncclMemAlloc(&data, size); result != ncclSuccess) {
    cudaGetLastError();  // clears the error, or the next launch would report it
    return absl::ResourceExhaustedError(
        absl::StrCat(device_->name(), ": cannot allocate ", nbytes, " bytes; ", device_->allocated_bytes(),
                     " bytes are in use: ", NcclStatus(result, "ncclMemAlloc", nullptr).message()));
  }
  device_->RecordAllocation(nbytes);
  void* registration = nullptr;
  const absl::Status registered =
      Make("ncclCommRegister", [&] { return ncclCommRegister(comm_, data, size, &registration); });
  // Made before the error is returned, so that its destructor frees the memory.
  Buffer buffer(
      data, nbytes, [self = shared_from_this(), data, nbytes, registration] { self->Free(data, nbytes, registration); },
      device_->id());
  FSDP_RETURN_IF_ERROR(registered);
  return buffer;
}

// Any thread, and possibly after an abort, which has freed the registrations with the communicator.
void NcclCommunicator::Free(void* data, int64_t nbytes, void* registration) {
  if (registration != nullptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ != nullptr) ncclCommDeregister(comm_, registration);
  }
  cudaSetDevice(ordinal_);
  ncclMemFree(data);
  cudaGetLastError();
  device_->RecordAllocation(-nbytes);
}

absl::Status NcclCommunicator::CheckWindows(CommunicatorPolicy policy) const {
  FSDP_RETURN_IF_ERROR(CheckNcclHasWindows());
  return policy == CommunicatorPolicy::kCopyEngines ? CheckNcclHasCopyEngines() : absl::OkStatus();
}

class NcclCommunicator::Window final : public SymmetricWindow {
 public:
  Window(std::shared_ptr<NcclCommunicator> communicator, void* window)
      : communicator_(std::move(communicator)), window_(window) {}

  ~Window() override {
    const std::lock_guard<std::mutex> lock(communicator_->mutex_);
    if (communicator_->comm_ != nullptr) DeregisterNcclWindow(communicator_->comm_, window_);
    cudaGetLastError();
  }

 private:
  const std::shared_ptr<NcclCommunicator> communicator_;
  void* const window_;
};

absl::StatusOr<std::unique_ptr<SymmetricWindow>> NcclCommunicator::RegisterWindow(const Buffer& memory) {
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice", ordinal_));
  // As Allocate: a buffer of no bytes has one byte of memory.
  const auto size = static_cast<size_t>(std::max<int64_t>(memory.nbytes(), 1));
  void* window = nullptr;
  // As with ncclCommSplit, success may be the result of a call that has not ended.
  FSDP_RETURN_IF_ERROR(Make("ncclCommWindowRegister", [&] {
    const ncclResult_t begun = RegisterNcclWindow(comm_, memory.data(), size, &window);
    return begun == ncclSuccess ? ncclInProgress : begun;
  }));
  if (window == nullptr) {
    return absl::FailedPreconditionError(
        "symmetric window: NCCL made none: expected GPUs that reach each other's memory by NVLink or PCIe, and "
        "NCCL_WIN_ENABLE and NCCL_CUMEM_ENABLE not 0");
  }
  return std::make_unique<Window>(shared_from_this(), window);
}

absl::StatusOr<std::shared_ptr<CudaCommunicator>> NcclCommunicator::Split(const std::vector<int>& members,
                                                                          CommunicatorPolicy policy) {
  const auto size = static_cast<int>(members.size());
  std::shared_ptr<NcclCommunicator> part(new NcclCommunicator(device_, ordinal_, size, timeout_));
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice", ordinal_));
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&part->barrier_, sizeof(int32_t)), "cudaMalloc", ordinal_));
  int rank = 0;
  FSDP_RETURN_IF_ERROR(Make("ncclCommUserRank", [&] { return ncclCommUserRank(comm_, &rank); }));
  // NCCL orders the ranks of a part by key, so the position in `members` is the new rank.
  const auto key = static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
  ncclConfig_t config = Config(policy);
  // The lowest member serves as the color: no other part of the split has it.
  const int color = *std::min_element(members.begin(), members.end());
  // Non-blocking, ncclCommSplit returns ncclSuccess (2.28) or ncclInProgress and leaves comm_ null: a thread of NCCL
  // sets it before the parent is no longer in progress.
  FSDP_RETURN_IF_ERROR(Make("ncclCommSplit", [&] {
    const ncclResult_t begun = ncclCommSplit(comm_, color, key, &part->comm_, &config);
    return begun == ncclSuccess ? ncclInProgress : begun;
  }));
  if (part->comm_ == nullptr) return absl::InternalError("ncclCommSplit made no communicator; expected one");
  FSDP_RETURN_IF_ERROR(part->Make("ncclCommSplit", [] { return ncclInProgress; }));
  return part;
}

}  // namespace fsdp
