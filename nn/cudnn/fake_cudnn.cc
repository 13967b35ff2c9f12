// SPDX-License-Identifier: Apache-2.0
//
// Finalising an operation graph turns it into a FakeCudnnGraph; engines and plans carry that graph on. An execution
// checks its variant pack and then runs the graph in stream order, as a host function of the emulated stream.
#include "fsdp/nn/cudnn/fake_cudnn.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/cuda/emulator/device_memory.h"
#include "fsdp/nn/cudnn/fake_cudnn_descriptor.h"
#include "fsdp/nn/cudnn/fake_cudnn_graph.h"
#include "fsdp/nn/cudnn/installed_cudnn.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {
namespace {

using cudnn::Attribute;
using cudnn::AttributeType;
using cudnn::DescriptorType;
using cudnn::Status;
using Descriptor = FakeCudnnDescriptor;

std::mutex state_mutex;
FakeCudnnFaults faults;  // guarded by state_mutex
FakeCudnnCounts counts;  // guarded by state_mutex
bool installed = false;  // guarded by state_mutex

// Per thread, so that a message belongs to the caller's own last failure.
thread_local std::string last_error;

Status Refuse(Status status, std::string why) {
  last_error = std::move(why);
  return status;
}

FakeCudnnFaults Faults() {
  const std::lock_guard<std::mutex> lock(state_mutex);
  return faults;
}

void Count(int FakeCudnnCounts::*what, int by) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  counts.*what += by;
}

Status FinalizeTensor(const Descriptor& descriptor) {
  const FakeCudnnTensor tensor = FakeTensorOf(descriptor);
  if (tensor.dims.size() != 4 || tensor.strides.size() != 4) return Refuse(cudnn::kBadParam, "a tensor has 4 dims");
  for (size_t d = 0; d < 4; ++d) {
    if (tensor.dims[d] <= 0 || tensor.strides[d] <= 0) return Refuse(cudnn::kBadParam, "a dim or stride is not > 0");
  }
  return cudnn::kSuccess;
}

Status FinalizeGraph(Descriptor& descriptor) {
  auto graph = std::make_shared<FakeCudnnGraph>(FakeGraphOf(descriptor));
  if (std::string fault = graph->Fault(); !fault.empty()) return Refuse(cudnn::kBadParam, std::move(fault));
  descriptor.graph = std::move(graph);
  return cudnn::kSuccess;
}

Status FinalizePlan(Descriptor& descriptor) {
  const Descriptor& config = descriptor.At(Attribute::kPlanEngineConfig);
  // So that CudnnGraph must try the next engine.
  if (config.engine > 0 && config.engine <= Faults().broken_engines) {
    return Refuse(cudnn::kNotSupported, absl::StrCat("engine ", config.engine, " is broken"));
  }
  descriptor.graph = config.graph;
  descriptor.workspace_bytes = config.graph->WorkspaceBytes();
  // Counted so that tests see how often plans are made, and how much workspace they ask for.
  const std::lock_guard<std::mutex> lock(state_mutex);
  ++counts.plans;
  counts.workspace_bytes.push_back(descriptor.workspace_bytes);
  return cudnn::kSuccess;
}

// Not older than CudnnLibrary::kOldestVersion.
size_t GetVersion() { return 91900; }

const char* GetErrorString(Status status) {
  if (status == cudnn::kSuccess) return "CUDNN_STATUS_SUCCESS";
  if (status / 1000 == 2) return "CUDNN_STATUS_BAD_PARAM";
  if (status / 1000 == 3) return "CUDNN_STATUS_NOT_SUPPORTED";
  return status / 1000 == 5 ? "CUDNN_STATUS_EXECUTION_FAILED" : "CUDNN_STATUS_NOT_INITIALIZED";
}

void GetLastErrorString(char* message, size_t size) {
  std::strncpy(message, last_error.c_str(), size);
  // Reading clears the message.
  last_error.clear();
}

struct Handle {
  cudaStream_t stream = nullptr;
};

Status Create(void** handle) {
  constexpr Status kNotInitialized = 1001;
  if (Faults().has_no_driver) return Refuse(kNotInitialized, "no driver");
  *handle = new Handle;
  Count(&FakeCudnnCounts::handles, 1);
  return cudnn::kSuccess;
}

Status Destroy(void* handle) {
  delete static_cast<Handle*>(handle);
  Count(&FakeCudnnCounts::handles, -1);
  return cudnn::kSuccess;
}

Status SetStream(void* handle, CUstream_st* stream) {
  static_cast<Handle*>(handle)->stream = stream;
  return cudnn::kSuccess;
}

Status CreateDescriptor(DescriptorType type, void** descriptor) {
  auto* const made = new Descriptor;
  made->type = type;
  *descriptor = made;
  Count(&FakeCudnnCounts::descriptors, 1);
  return cudnn::kSuccess;
}

Status DestroyDescriptor(void* descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  Count(&FakeCudnnCounts::descriptors, -1);
  return cudnn::kSuccess;
}

Status SetAttribute(void* of, Attribute name, AttributeType type, int64_t count, const void* elements) {
  std::string fault = static_cast<Descriptor*>(of)->Set(name, type, count, elements);
  return fault.empty() ? cudnn::kSuccess : Refuse(cudnn::kBadParam, std::move(fault));
}

Status Finalize(void* of) {
  auto* const descriptor = static_cast<Descriptor*>(of);
  if (std::string missing = descriptor->Missing(); !missing.empty())
    return Refuse(cudnn::kBadParam, std::move(missing));
  Status status = cudnn::kSuccess;
  if (descriptor->type == DescriptorType::kTensor) status = FinalizeTensor(*descriptor);
  if (descriptor->type == DescriptorType::kOperationGraph) status = FinalizeGraph(*descriptor);
  if (descriptor->type == DescriptorType::kExecutionPlan) status = FinalizePlan(*descriptor);
  descriptor->is_finalized = status == cudnn::kSuccess;
  return status;
}

// Fills the engine configurations in `room`: number 0 is not deterministic.
int64_t OfferEngines(const Descriptor& heuristic, const std::vector<Descriptor*>& room) {
  const FakeCudnnFaults now = Faults();
  const std::shared_ptr<const FakeCudnnGraph>& graph = heuristic.At(Attribute::kHeuristicOperationGraph).graph;
  // As on a GPU without an engine for such heads.
  if (graph->HeadDim() > now.max_head_dim) return 0;
  const size_t offered = std::min<size_t>(room.size(), now.is_nondeterministic ? 1 : 3);
  for (size_t i = 0; i < offered; ++i) {
    room[i]->graph = graph;
    room[i]->engine = static_cast<int>(i);
    room[i]->is_finalized = true;
  }
  return static_cast<int64_t>(offered);
}

Status GetAttribute(void* of, Attribute name, AttributeType, int64_t room, int64_t* count, void* elements) {
  const auto& descriptor = *static_cast<const Descriptor*>(of);
  // An engine is read before it is finalised: it is only a slot that the configuration fills.
  if (!descriptor.is_finalized && descriptor.type != DescriptorType::kEngine) {
    return Refuse(cudnn::kBadParam, "a descriptor that is not finalised cannot be read");
  }
  auto* const descriptors = static_cast<Descriptor**>(elements);
  switch (name) {
    case Attribute::kHeuristicResults:
      *count = OfferEngines(descriptor, {descriptors, descriptors + room});
      return cudnn::kSuccess;
    case Attribute::kEngineConfigEngine:
      descriptors[0]->engine = descriptor.engine;
      *count = 1;
      return cudnn::kSuccess;
    case Attribute::kEngineNumericalNotes:
      *count = descriptor.engine == 0 ? 1 : 0;
      if (*count == 1) *static_cast<cudnn::NumericalNote*>(elements) = cudnn::NumericalNote::kNondeterministic;
      return cudnn::kSuccess;
    case Attribute::kPlanWorkspaceSize:
      *static_cast<int64_t*>(elements) = descriptor.workspace_bytes;
      *count = 1;
      return cudnn::kSuccess;
    default:
      return Refuse(cudnn::kBadParam, absl::StrCat("attribute ", static_cast<int>(name), " cannot be read"));
  }
}

int64_t ElementBytes(cudnn::DataType dtype) { return dtype == cudnn::DataType::kFloat ? 4 : 2; }

// The bindings of a variant pack, or the reason that it does not fit the plan.
Status Bind(const Descriptor& plan, const Descriptor& pack, FakeCudnnBindings& bindings) {
  const auto uids = pack.All<int64_t>(Attribute::kVariantPackUniqueIds);
  const auto pointers = pack.All<void*>(Attribute::kVariantPackDataPointers);
  const std::map<int64_t, FakeCudnnTensor> bound = plan.graph->Bound();
  const std::set<int64_t> distinct(uids.begin(), uids.end());
  // Each tensor exactly once, and no other: cuDNN would read stale addresses.
  if (uids.size() != pointers.size() || distinct.size() != uids.size() || uids.size() != bound.size()) {
    return Refuse(cudnn::kBadParam, "the variant pack binds other tensors than the graph's");
  }
  EmulatedMemory& memory = EmulatedMemory::Get();
  for (size_t i = 0; i < uids.size(); ++i) {
    const auto tensor = bound.find(uids[i]);
    if (tensor == bound.end()) return Refuse(cudnn::kBadParam, absl::StrCat("tensor ", uids[i], " is unknown"));
    if (tensor->second.is_by_value) {
      bindings.values[uids[i]] = *static_cast<const float*>(pointers[i]);
      continue;
    }
    const int64_t nbytes = tensor->second.Extent() * ElementBytes(tensor->second.dtype);
    if (memory.DeviceOf(pointers[i]) < 0 || !memory.IsValid(pointers[i], static_cast<size_t>(nbytes)) ||
        reinterpret_cast<uintptr_t>(pointers[i]) % 16 != 0) {
      return Refuse(cudnn::kBadParam, absl::StrCat("tensor ", uids[i], " is not in memory, or misaligned"));
    }
    bindings.addresses[uids[i]] = memory.KernelView(pointers[i]);
  }
  return cudnn::kSuccess;
}

// Keeps work that graphs replay for the rest of the program.
// The captured functions are never freed: no call reports that a graph will not be replayed again.
std::function<void()>* Captured(std::function<void()> work) {
  static auto* const captured = new std::deque<std::function<void()>>;
  const std::lock_guard<std::mutex> lock(state_mutex);
  return &captured->emplace_back(std::move(work));
}

Status Launch(std::function<void()> work, cudaStream_t stream) {
  cudaStreamCaptureStatus captures = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &captures);
  const bool is_captured = captures != cudaStreamCaptureStatusNone;
  // A replayed function must survive its runs; any other is freed by its only run.
  auto* const kept = is_captured ? Captured(std::move(work)) : new std::function<void()>(std::move(work));
  const auto run = [](void* argument) { (*static_cast<std::function<void()>*>(argument))(); };
  const auto run_once = [](void* argument) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(argument));
    (*owned)();
  };
  const cudaError_t launched =
      is_captured ? cudaLaunchHostFunc(stream, run, kept) : cudaLaunchHostFunc(stream, run_once, kept);
  return launched == cudaSuccess ? cudnn::kSuccess : cudnn::kExecutionFailed;
}

Status Execute(void* handle, void* plan_descriptor, void* pack_descriptor) {
  const auto& plan = *static_cast<const Descriptor*>(plan_descriptor);
  const auto& pack = *static_cast<const Descriptor*>(pack_descriptor);
  if (const std::string failure = Faults().execution_failure; !failure.empty()) {
    return Refuse(cudnn::kExecutionFailed, failure);
  }
  FakeCudnnBindings bindings;
  if (const Status status = Bind(plan, pack, bindings); status != cudnn::kSuccess) return status;
  void* const workspace = pack.One<void*>(Attribute::kVariantPackWorkspace);
  const auto workspace_bytes = static_cast<size_t>(plan.workspace_bytes);
  EmulatedMemory& memory = EmulatedMemory::Get();
  if (memory.DeviceOf(workspace) < 0 || !memory.IsValid(workspace, workspace_bytes)) {
    return Refuse(cudnn::kBadParam, "the workspace is too small");
  }
  const auto* const begin = static_cast<const std::byte*>(memory.KernelView(workspace));
  for (const auto& [uid, address] : bindings.addresses) {
    if (address >= begin && address < begin + workspace_bytes) {
      return Refuse(cudnn::kBadParam, absl::StrCat("tensor ", uid, " is in the workspace"));
    }
  }
  Count(&FakeCudnnCounts::executions, 1);
  return Launch(
      [graph = plan.graph, bindings, space = memory.KernelView(workspace), workspace_bytes] {
        // Overwritten before and after the run, so that a result that reads the workspace, or expects it to persist, is
        // NaN.
        std::memset(space, 0xff, workspace_bytes);
        graph->Run(bindings);
        std::memset(space, 0xff, workspace_bytes);
      },
      static_cast<Handle*>(handle)->stream);
}

}  // namespace

void SetFakeCudnnFaults(const FakeCudnnFaults& wanted) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  faults = wanted;
}

const CudnnLibrary& FakeCudnn() {
  static const CudnnLibrary library = {.get_version = GetVersion,
                                       .get_error_string = GetErrorString,
                                       .get_last_error_string = GetLastErrorString,
                                       .create = Create,
                                       .destroy = Destroy,
                                       .set_stream = SetStream,
                                       .create_descriptor = CreateDescriptor,
                                       .destroy_descriptor = DestroyDescriptor,
                                       .finalize = Finalize,
                                       .set_attribute = SetAttribute,
                                       .get_attribute = GetAttribute,
                                       .execute = Execute};
  return library;
}

void InstallFakeCudnn(bool wanted) {
  const std::lock_guard<std::mutex> lock(state_mutex);
  installed = wanted;
}

FakeCudnnCounts CountFakeCudnn() {
  const std::lock_guard<std::mutex> lock(state_mutex);
  return counts;
}

// The emulated program's definition, in place of installed_cudnn.cc's.
absl::StatusOr<const CudnnLibrary*> InstalledCudnn() {
  const std::lock_guard<std::mutex> lock(state_mutex);
  if (!installed) return absl::NotFoundError("no fake cuDNN is installed");
  return &FakeCudnn();
}

}  // namespace fsdp
