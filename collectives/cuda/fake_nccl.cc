// SPDX-License-Identifier: Apache-2.0
//
// The functions of nccl.h, on fake_nccl_communicator.h.
#include "fsdp/collectives/cuda/fake_nccl.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "fsdp/collectives/cuda/fake_nccl_communicator.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

std::mutex state_mutex;
FakeNcclFaults faults;  // guarded by state_mutex
FakeNcclCounts counts;  // guarded by state_mutex

}  // namespace

FakeNcclFaults fake_nccl::Faults() {
  const std::lock_guard<std::mutex> lock(state_mutex);
  return faults;
}

void fake_nccl::Count(int FakeNcclCounts::*what, int by) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  counts.*what += by;
}

void SetFakeNcclFaults(const FakeNcclFaults& wanted) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  faults = wanted;
}

FakeNcclCounts CountFakeNccl() {
  const std::lock_guard<std::mutex> lock(state_mutex);
  return counts;
}

}  // namespace fsdp

using fsdp::FakeNcclCounts;
using fsdp::fake_nccl::BeginGroup;
using fsdp::fake_nccl::Clique;
using fsdp::fake_nccl::CliqueOf;
using fsdp::fake_nccl::Count;
using fsdp::fake_nccl::DTypeOf;
using fsdp::fake_nccl::EndGroup;
using fsdp::fake_nccl::Faults;
using fsdp::fake_nccl::IsValid;
using fsdp::fake_nccl::Join;
using fsdp::fake_nccl::Launch;
using fsdp::fake_nccl::Member;
using fsdp::fake_nccl::Op;
using fsdp::fake_nccl::SplitOff;

ncclResult_t ncclGetVersion(int* version) {
  *version = Faults().version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<uint64_t> last{0};
  *id = {};
  const uint64_t number = ++last;
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (!IsValid(*config) || rank < 0 || rank >= nranks) return ncclInvalidArgument;
  std::shared_ptr<Clique> clique = CliqueOf(id, nranks);
  *comm = new ncclComm;
  Join(*comm, std::move(clique), rank, config->CTAPolicy == NCCL_CTA_POLICY_ZERO);
  return ncclInProgress;
}

// As in the real NCCL: returns ncclSuccess immediately, and a thread creates the communicator when all ranks have come.
// Until then *newcomm is null, which no call accepts, and ncclCommGetAsyncError of the parent reports ncclInProgress.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  if (!IsValid(*config) || color < 0 || comm->splitting) return ncclInvalidArgument;
  *newcomm = nullptr;
  comm->splitting = true;
  if (comm->splitter.joinable()) comm->splitter.join();
  const bool copy_engines = config->CTAPolicy == NCCL_CTA_POLICY_ZERO;
  comm->splitter = std::thread([=, member = comm->member] {
    *newcomm = SplitOff(*member, color, key, copy_engines);
    comm->splitting = false;
  });
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() { return BeginGroup() ? ncclSuccess : ncclInvalidUsage; }

ncclResult_t ncclGroupEnd() {
  ncclResult_t result = ncclSuccess;
  return EndGroup(result) ? result : ncclInvalidUsage;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->member->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Count(&FakeNcclCounts::communicators, -1);
  {
    const Member& member = *comm->member;
    const std::lock_guard<std::mutex> lock(member.clique->mutex);
    if (!member.aborted) Count(&FakeNcclCounts::left_windows, member.clique->windows.count(member.rank));
    member.clique->windows.DeregisterAll(member.rank);
  }
  // Destroying a communicator frees what belongs to it, so tests count only real leaks.
  Count(&FakeNcclCounts::registrations, -comm->registrations);
  Count(&FakeNcclCounts::reductions, -comm->reductions);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->member->Abort();
  return ncclCommDestroy(comm);
}

// A communicator is in progress until all ranks have joined it; the fault `init_hangs` keeps it in progress for ever.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (comm == nullptr) return ncclInvalidArgument;
  Member& member = *comm->member;
  *error = member.async_error;
  if (*error != ncclSuccess) return ncclSuccess;
  if (comm->splitting) {
    *error = ncclInProgress;
    return ncclSuccess;
  }
  const std::lock_guard<std::mutex> lock(member.clique->mutex);
  if (member.hangs_in_init || member.clique->joined < member.clique->size) *error = ncclInProgress;
  if (*error == ncclSuccess) *error = member.clique->windows.Progress(member.rank);
  return ncclSuccess;
}

// The texts of NCCL 2.x, so that messages in tests look as they do on a GPU.
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, size_t, void** handle) {
  *handle = data;
  ++comm->registrations;
  Count(&FakeNcclCounts::registrations, 1);
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  --comm->registrations;
  Count(&FakeNcclCounts::registrations, -1);
  return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags) {
  *win = nullptr;
  if (Faults().no_windows) return ncclSuccess;
  Member& member = *comm->member;
  const std::lock_guard<std::mutex> lock(member.clique->mutex);
  return member.clique->windows.Register(member.rank, buff, size, winFlags, win);
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  Member& member = *comm->member;
  const std::lock_guard<std::mutex> lock(member.clique->mutex);
  return member.clique->windows.Deregister(member.rank, win);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  double factor = 0;
  if (residence != ncclScalarHostImmediate ||
      !fsdp::Convert(DTypeOf(type), scalar, fsdp::DType::kFloat64, &factor, 1).ok()) {
    return ncclInvalidArgument;
  }
  comm->factors.push_back(factor);
  *op = static_cast<ncclRedOp_t>(ncclAvg + comm->factors.size());
  ++comm->reductions;
  Count(&FakeNcclCounts::reductions, 1);
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t comm) {
  --comm->reductions;
  Count(&FakeNcclCounts::reductions, -1);
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return Launch({.op = Op::kAllGather, .send = send, .receive = receive, .count = count, .type = type}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return Launch(
      {.op = Op::kReduceScatter, .send = send, .receive = receive, .count = count, .type = type, .reduction = op}, comm,
      stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return Launch({.op = Op::kAllReduce, .send = send, .receive = receive, .count = count, .type = type, .reduction = op},
                comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return Launch({.op = Op::kBroadcast, .send = send, .receive = receive, .count = count, .type = type, .root = root},
                comm, stream);
}
