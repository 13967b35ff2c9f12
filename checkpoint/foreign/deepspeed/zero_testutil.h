// SPDX-License-Identifier: Apache-2.0
//
// ZeroCheckpoint: a small checkpoint of ZeRO for tests, as the values of its files, which a test may change before they
// are written. Element i of parameter p, counted over all groups, is 100 p + i; the state "exp_avg" has 0.5 more.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_ZERO_TESTUTIL_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_ZERO_TESTUTIL_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/checkpoint/foreign/torch/state/python_json.h"

namespace fsdp {

// Writes `value`, whose tensors are results of JsonOfTensor, to the file `path` as torch.save does.
void WriteTorchValue(const std::string& path, const PythonJson& value);

// A float32 tensor, and torch.Size.
PythonJson FloatTensor(const std::vector<float>& values, const std::vector<int64_t>& dims);
PythonJson TorchSize(const std::vector<int64_t>& dims);

using TestParameter = std::pair<std::string, std::vector<int64_t>>;

struct ZeroCheckpoint {
  int stage = 2;
  int world = 2;
  std::vector<std::vector<TestParameter>> groups;
  std::vector<PythonJson> model;  // of one rank, or of all ranks for stage 3
  std::vector<PythonJson> optim;  // of each rank

  ZeroCheckpoint(int zero_stage, int ranks, std::vector<std::vector<TestParameter>> parameters);

  // Writes the files into the new directory `directory`.
  void Write(const std::string& directory) const;

  std::string ModelName(int rank) const;
  std::string OptimName(int rank) const;

  // The elements of parameter `p`.
  std::vector<float> Elements(int p) const;

 private:
  // What rank `rank` has of group `group`: with `added` to each element, and its padding or not.
  std::vector<float> Part(int group, int rank, float added, bool is_padded) const;
  PythonJson Model() const;
  PythonJson Optim(int rank) const;
};

// Writes into the new directory `directory` what `ranks` ranks of ZeRO 3 save of a model of `parameters` parameters,
// each a vector of `numel` elements, with the state of AdamW. All elements are 0, and holes in the files: a large
// checkpoint takes no room.
void WriteSparseZero3(const std::string& directory, int ranks, int parameters, int64_t numel);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_ZERO_TESTUTIL_H_
