// SPDX-License-Identifier: Apache-2.0
//
// Causal attention as graphs for cuDNN, forward and backward. Engines recognise a whole graph by its operations and
// their order, as NVIDIA's cudnn-frontend writes them (node/scaled_dot_product_flash_attention.h), so the operations
// and their order must not change. Queries, keys and values are views of one tensor qkv: heads and tokens are strides.
#ifndef FSDP_NN_CUDNN_CUDNN_ATTENTION_GRAPHS_H_
#define FSDP_NN_CUDNN_CUDNN_ATTENTION_GRAPHS_H_

#include <cstdint>

#include "fsdp/nn/cudnn/cudnn_graph.h"
#include "fsdp/nn/cudnn/cudnn_library.h"

namespace fsdp {

// Identifiers of the tensors of both graphs.
enum CudnnAttentionUid : int64_t {
  kUidQ = 1,
  kUidK,
  kUidV,
  kUidOut,
  kUidStatistics,  // float32: the logarithm of the sum of the exponentials of each row's scores
  kUidScale,       // by value, of the scores
  kUidMasked,      // by value: minus infinity, the score of a key that a query does not see
  kUidGradOut,
  kUidGradQ,
  kUidGradK,
  kUidGradV,
  kUidRowSums,  // float32, for each row: the sum of grad_out * out
  kUidOne,      // by value: 1
};

// Sizes of one graph. The samples and heads may be a part of those in memory, whose distances are in the strides.
struct CudnnAttentionSizes {
  int64_t batch = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t seq_len = 0;
  int64_t head_dim = 0;
  int64_t qkv_width = 0;  // of a row of qkv in memory, and of grad_qkv
  int64_t out_width = 0;  // of a row of out, and of grad_out
  int64_t all_heads = 0;  // of a sample in statistics
  cudnn::DataType dtype = cudnn::DataType::kBFloat16;

  auto operator<=>(const CudnnAttentionSizes&) const = default;
};

// out and statistics for q, k and v.
void WriteAttentionForward(const CudnnAttentionSizes& sizes, CudnnGraph& graph);

// grad_q, grad_k and grad_v. grad_q is a product like the others, for which an engine keeps the gradients of all scores
// in its workspace. Graphs with a float32 tensor to which parts of grad_q are added atomically need less memory, but
// their results differ from run to run; cuDNN does not mark those engines.
void WriteAttentionBackward(const CudnnAttentionSizes& sizes, CudnnGraph& graph);

}  // namespace fsdp

#endif  // FSDP_NN_CUDNN_CUDNN_ATTENTION_GRAPHS_H_
