// SPDX-License-Identifier: Apache-2.0
//
// CudnnGraph: describes a computation to cuDNN as operations on tensors of four dimensions [batch, heads, rows,
// columns], and requests one engine that computes all of it. A tensor is in memory, and then named by a number that the
// caller chooses (uid); or virtual, which the engine may keep in registers; or one number that the host passes. Each
// operation names its result, and returns it for the next one. Only the operations of causal attention are here.
//
// The engine is the first that cuDNN's heuristics offer and that works: the same in every run on one kind of GPU, since
// nothing is timed. Not thread-safe.
#ifndef FSDP_NN_CUDNN_CUDNN_GRAPH_H_
#define FSDP_NN_CUDNN_CUDNN_GRAPH_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/nn/cudnn/cudnn_descriptor.h"
#include "fsdp/nn/cudnn/cudnn_library.h"

namespace fsdp {

// Sizes [batch, heads, rows, columns] and the distances between neighbours in each, in elements.
struct CudnnLayout {
  using Dims = std::array<int64_t, 4>;

  // Without gaps, columns innermost.
  static CudnnLayout Packed(const Dims& dims);

  // Rows and columns change places; the memory is the same.
  CudnnLayout Transposed() const;

  Dims dims;
  Dims strides;
};

// An engine for a graph, and its requirements.
struct CudnnPlan {
  CudnnDescriptor plan;
  int64_t workspace_bytes = 0;
  std::vector<CudnnDescriptor> parts;  // what the plan was made of
};

class CudnnGraph {
 public:
  // A tensor of this graph.
  struct Tensor {
    size_t index = 0;
  };

  // `library` must outlive the graph and its plan.
  explicit CudnnGraph(const CudnnLibrary& library) : library_(library) {}

  // Aligned to 16 bytes.
  Tensor InMemory(int64_t uid, cudnn::DataType dtype, const CudnnLayout& layout);
  Tensor Virtual(cudnn::DataType dtype, const CudnnLayout& layout);
  // One float32 number; executions pass its address in the host's memory.
  Tensor ByValue(int64_t uid);

  // In float32, whatever the operands are: out = a b; out = mode(x...), elementwise; out = the sum or maximum over
  // each dimension in which `out` has 1 or, of heads, fewer elements than `x`.
  Tensor Matmul(Tensor a, Tensor b, Tensor out);
  Tensor Pointwise(cudnn::PointwiseMode mode, std::initializer_list<Tensor> operands, Tensor out);
  Tensor Reduce(cudnn::ReductionOperator op, Tensor x, Tensor out);
  // out = for each element of x its index in dimension `axis`.
  Tensor Index(int64_t axis, Tensor x, Tensor out);
  // out = whether a >= b.
  Tensor GreaterOrEqual(Tensor a, Tensor b, Tensor out);
  // The elements of x, cast to the dtype of `out`, in its layout.
  Tensor Reshape(Tensor x, Tensor out);

  // An engine on the GPU of `handle`. kUnimplemented, naming `what`, if cuDNN has no engine for the graph, or only
  // engines whose results, according to cuDNN, may differ from run to run. The graph is used up.
  absl::StatusOr<CudnnPlan> Plan(void* handle, const std::string& what);

  // The number of such engines that the heuristics offer for the GPU that `device` describes; needs no GPU.
  absl::StatusOr<int> CountEngines(const CudnnDescriptor& device, const std::string& what);

 private:
  // The GPU that an engine must support: given by a handle, or by a description.
  struct Target {
    void* handle = nullptr;
    const CudnnDescriptor* device = nullptr;
  };

  Tensor AddTensor(CudnnDescriptorBuilder& builder, cudnn::DataType dtype, const CudnnLayout& layout);
  // Keeps a descriptor for as long as the plan; returns null, and the graph fails, if `made` is an error.
  const CudnnDescriptor* Keep(absl::StatusOr<CudnnDescriptor> made);
  void AddOperation(absl::StatusOr<CudnnDescriptor> made);
  Tensor AddPointwise(absl::StatusOr<CudnnDescriptor> made, std::initializer_list<Tensor> operands, Tensor out);
  const CudnnDescriptor& descriptor(Tensor tensor) const { return tensors_[tensor.index]; }

  // Engine configurations in the order in which cuDNN prefers them, without those that are not deterministic.
  absl::StatusOr<std::vector<CudnnDescriptor>> Engines(const Target& target, const std::string& what);

  const CudnnLibrary& library_;
  absl::Status status_;  // the first failure
  int64_t next_virtual_ = kFirstVirtual;
  std::vector<CudnnDescriptor> tensors_;
  std::vector<CudnnDescriptor> operations_;
  std::vector<CudnnDescriptor> parts_;  // what operations are made of, and the graph

  // Uids of virtual tensors begin here; the caller's are smaller.
  static constexpr int64_t kFirstVirtual = 1000;
};

}  // namespace fsdp

#endif  // FSDP_NN_CUDNN_CUDNN_GRAPH_H_
