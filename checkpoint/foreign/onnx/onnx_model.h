// SPDX-License-Identifier: Apache-2.0
//
// OnnxModel: the tensors of a ModelProto: the initializers of its graph, and of the graphs in attributes of nodes (If,
// Loop), in functions and in training info, whose names get the path to their graph in front:
//
//   "fc.weight"                          an initializer of the main graph
//   "if_1.then_branch.fc.weight"         of the graph `then_branch` of the node `if_1`
//
// Nodes are walked, and not kept. Pure of files besides its own: external data is only named.
#ifndef FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_MODEL_H_
#define FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_MODEL_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/onnx/onnx_tensor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The fields of a ModelProto by which it is recognised.
inline constexpr int kOnnxIrVersion = 1;
inline constexpr int kOnnxProducerName = 2;
inline constexpr int kOnnxGraph = 7;

struct OnnxModel {
  int64_t ir_version = 0;
  std::string graph_name;
  std::string producer;                         // "pytorch 2.5.0"; empty if the file does not say
  std::map<std::string, std::string> metadata;  // metadata_props
  std::vector<OnnxTensor> tensors;
  int64_t nodes = 0;
  int64_t node_tensors = 0;           // in attributes of nodes: constants
  std::vector<std::string> left_out;  // sparse initializers, by name; the first ones
  int64_t left_out_count = 0;
};

// Reads all but the elements. kDataLoss states what is damaged, and where: a message that ends elsewhere than stated,
// two initializers of one name, graphs in more than 32 graphs, a file of more than 2 GiB, more values than a model has;
// kInvalidArgument as ReadOnnxTensor, and for a file without a graph. Memory is at most 4 times the bytes that are no
// elements and 64 MiB.
absl::StatusOr<OnnxModel> ReadOnnxModel(const File& file);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ONNX_ONNX_MODEL_H_
