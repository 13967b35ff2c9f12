// SPDX-License-Identifier: Apache-2.0
//
// FakeCudnnGraph: what fake_cudnn computes. It does not recognise attention, as cuDNN's engines do: it evaluates each
// operation as it was written, on the sizes and strides of its tensors, so that a graph that is not attention does not
// give attention's numbers. Results are rounded to the dtype of each tensor.
#ifndef FSDP_NN_CUDNN_FAKE_CUDNN_GRAPH_H_
#define FSDP_NN_CUDNN_FAKE_CUDNN_GRAPH_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fsdp/nn/cudnn/cudnn_library.h"

namespace fsdp {

struct FakeCudnnTensor {
  // Elements from the first to the last in memory, both included.
  int64_t Extent() const;

  int64_t uid = 0;
  cudnn::DataType dtype = cudnn::DataType::kFloat;
  std::vector<int64_t> dims;     // four
  std::vector<int64_t> strides;  // likewise
  bool is_virtual = false;
  bool is_by_value = false;
};

struct FakeCudnnOperation {
  cudnn::DescriptorType type = cudnn::DescriptorType::kOperationPointwise;
  cudnn::PointwiseMode mode = cudnn::PointwiseMode::kAdd;               // of a pointwise operation
  int64_t axis = 0;                                                     // of kGenIndex
  cudnn::ReductionOperator reduction = cudnn::ReductionOperator::kAdd;  // of a reduction
  std::vector<FakeCudnnTensor> operands;
  FakeCudnnTensor result;
};

// Addresses of tensors in memory, as kernels see them, and numbers that were passed by value; by uid.
struct FakeCudnnBindings {
  std::map<int64_t, void*> addresses;
  std::map<int64_t, float> values;
};

struct FakeCudnnGraph {
  // The reason for which cuDNN would refuse the graph; empty if it would accept it.
  std::string Fault() const;

  // The tensors that an execution has to bind, by uid.
  std::map<int64_t, FakeCudnnTensor> Bound() const;

  // Columns of the first product's operand.
  int64_t HeadDim() const;

  // Workspace of Hopper's engines: for a graph with more than two products, which is backward, 2 bytes for each score.
  int64_t WorkspaceBytes() const;

  void Run(const FakeCudnnBindings& bindings) const;

  std::vector<FakeCudnnOperation> operations;
};

}  // namespace fsdp

#endif  // FSDP_NN_CUDNN_FAKE_CUDNN_GRAPH_H_
