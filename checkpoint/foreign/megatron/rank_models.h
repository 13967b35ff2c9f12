// SPDX-License-Identifier: Apache-2.0
//
// RankModels: the tensors in the files of a run's tensor, pipeline and expert parallel ranks, as the tensors of one
// model. Layers are counted from 0 in each pipeline stage, experts in each expert parallel rank; here they are counted
// through. Copies on several ranks are compared byte by byte, and a name whose partition is not known is
// refused.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_RANK_MODELS_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_RANK_MODELS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/megatron/tensor_partition.h"
#include "fsdp/checkpoint/foreign/torch/pt/tensor_list.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// The local tensors of a rank's file, by name, in the order of the file: one list for each model chunk of an
// interleaved pipeline ("model0", "model1"), else one ("model").
struct RankModel {
  std::string name;  // "mp_rank_01_000", for messages
  const TorchFile* file = nullptr;
  std::vector<std::vector<std::pair<std::string, int>>> chunks;
};

// The ranks, with tensor rank t, pipeline stage p and expert rank e at [t + tensor * (p + pipeline * e)].
struct RankGrid {
  int tensor = 1;
  int pipeline = 1;
  int expert = 1;
  std::vector<RankModel> models;

  const RankModel& At(int t, int p, int e) const { return models[t + tensor * (p + pipeline * e)]; }
};

// Puts `models`, with the numbers of their directories' names, into a grid. Two numbers are tensor and pipeline, or
// tensor and expert: experts if the first and the last rank have the same names of tensors. kDataLoss names a rank that
// is missing.
absl::StatusOr<RankGrid> MakeRankGrid(std::vector<std::pair<std::vector<int>, RankModel>> models);

// A tensor of the whole model.
struct JoinedRankTensor {
  std::string name;
  Shape shape;
  Shape part;  // of each of `refs`
  TensorPartition partition = TensorPartition::kReplicated;
  TensorRefs refs;  // of the tensor parallel ranks; one if it is replicated
};

struct RankModels {
  std::vector<JoinedRankTensor> tensors;
  std::map<std::string, std::string> aliases;  // the tied output layer that the last pipeline stage has
  std::vector<TensorRef> copies;               // compared with a tensor above, by their CRC if there is one
  int64_t extra_states = 0;                    // tensors that are an _extra_state, which are left out
};

// kDataLoss if ranks contradict each other; kInvalidArgument for a name of which it is not known how ranks divide it.
absl::StatusOr<RankModels> JoinRankModels(const RankGrid& grid);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_RANK_MODELS_H_
