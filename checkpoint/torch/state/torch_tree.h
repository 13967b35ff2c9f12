// SPDX-License-Identifier: Apache-2.0
//
// TorchTree: what torch.save or DCP stored, as nested dicts and lists whose leaves are tensors and plain values: the
// form in which torch_state.h finds model and optimizer, wherever it came from.
#ifndef FSDP_CHECKPOINT_TORCH_STATE_TORCH_TREE_H_
#define FSDP_CHECKPOINT_TORCH_STATE_TORCH_TREE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/torch/pickle/pickle.h"
#include "fsdp/checkpoint/torch/state/python_json.h"
#include "fsdp/checkpoint/torch/state/torch_tensor.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

// What is to be known of a tensor to say what it is in a state dict.
struct TorchLeafType {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::string identity;  // equal for tensors that are one tensor under two names; empty: never
};

// The elements of tensor `index`, for tensors that become a part of a value.
using TorchTensorReader = std::function<absl::StatusOr<std::string>(int index, const Interval& interval)>;

class TorchNode {
 public:
  enum class Kind : uint8_t { kBranch, kTensor, kValue };

  // A branch: a dict, or a list whose names are "0", "1", ...
  TorchNode() = default;
  static TorchNode Tensor(int index);
  static TorchNode Value(PythonJson value);

  Kind kind() const { return kind_; }
  bool is_branch() const { return kind_ == Kind::kBranch; }
  int tensor() const { return tensor_; }              // its index, of kTensor
  const PythonJson& value() const { return value_; }  // of kValue
  bool is_list = false;                               // of a branch
  const std::vector<std::pair<std::string, TorchNode>>& members() const { return members_; }

  // Null when there is none. Pointers live until the next Add.
  const TorchNode* Find(const std::string& name) const;
  TorchNode* Find(const std::string& name);

  // The new member; null when the name is taken.
  TorchNode* Add(const std::string& name, TorchNode node);

  // This branch as one value; kInvalidArgument when there is a tensor in it.
  absl::StatusOr<PythonJson> ToJson() const;

  // The same with the tensors of a few elements in it, as JsonOfTensor gives them. kInvalidArgument for larger ones.
  absl::StatusOr<PythonJson> ToJson(const std::vector<TorchLeafType>& tensors, const TorchTensorReader& read) const;

 private:
  Kind kind_ = Kind::kBranch;
  int tensor_ = -1;
  PythonJson value_;
  std::vector<std::pair<std::string, TorchNode>> members_;
  absl::flat_hash_map<std::string, size_t> index_;  // into members_
};

// Deeper nesting is refused.
inline constexpr int kMaxTorchDepth = 48;

struct TorchTree {
  TorchNode root;
  std::vector<TorchTensor> tensors;  // by the index of their node
};

// What `root` holds. Values without a tensor in them stay one value. Errors as ReadTorchTensor's and JsonOfPickle's;
// kDataLoss also for a name that a dict has twice.
absl::StatusOr<TorchTree> TreeOfPickle(PickleValue root);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_STATE_TORCH_TREE_H_
