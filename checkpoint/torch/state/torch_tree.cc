// SPDX-License-Identifier: Apache-2.0
//
// A pickle is a graph, a tree is not: a value with many references becomes as many nodes. Two bounds keep a small
// hostile pickle from becoming a large tree: depth (kMaxTorchDepth), and tensors (kMaxTensors), since a branch is only
// made for a value that holds one. A value without tensors becomes one node, and JsonOfPickle bounds its size.
#include "fsdp/checkpoint/torch/state/torch_tree.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/torch/state/literal_tensor.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

constexpr int64_t kMaxTensors = 10'000'000;  // counted with repetition

class TreeBuilder {
 public:
  absl::StatusOr<TorchNode> Build(PickleValue value, int depth) {
    if (IsTorchTensor(value)) return AddTensor(value);
    FSDP_ASSIGN_OR_RETURN(const bool holds_tensor, HoldsTensor(value, depth));
    if (!holds_tensor) {
      FSDP_ASSIGN_OR_RETURN(PythonJson json, JsonOfPickle(value));
      return TorchNode::Value(std::move(json));
    }
    return value.is(Kind::kDict) ? BuildDict(value, depth) : BuildList(value, depth);
  }

  std::vector<TorchTensor> TakeTensors() { return std::move(tensors_); }

 private:
  absl::StatusOr<TorchNode> AddTensor(PickleValue value) {
    if (static_cast<int64_t>(tensors_.size()) == kMaxTensors) {
      return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxTensors, " tensors"));
    }
    FSDP_ASSIGN_OR_RETURN(tensors_.emplace_back(), ReadTorchTensor(value));
    return TorchNode::Tensor(static_cast<int>(tensors_.size() - 1));
  }

  // True if a tensor is reachable from `value`. Memoized, so each value is walked once and not once for each reference.
  // The entry is false while its own items are walked, which ends a cycle; Build refuses a cycle with a tensor by its
  // depth.
  absl::StatusOr<bool> HoldsTensor(PickleValue value, int depth) {
    if (IsTorchTensor(value)) return true;
    if (!value.is(Kind::kDict) && !value.is_sequence()) return false;
    if (depth > kMaxTorchDepth) {
      return absl::ResourceExhaustedError(absl::StrCat("byte ", value.place(), " of the pickle: more than ",
                                                       kMaxTorchDepth, " values inside each other"));
    }
    const auto [at, is_new] = holds_tensor_.try_emplace(value.id(), false);
    if (!is_new) return at->second;
    const bool is_dict = value.is(Kind::kDict);
    for (int64_t i = 0; i < value.size(); ++i) {
      FSDP_ASSIGN_OR_RETURN(const bool holds, HoldsTensor(is_dict ? value.member(i).second : value.at(i), depth + 1));
      if (holds) return holds_tensor_[value.id()] = true;
    }
    return false;
  }

  absl::StatusOr<TorchNode> BuildDict(PickleValue value, int depth) {
    TorchNode node;
    for (int64_t i = 0; i < value.size(); ++i) {
      const auto [key, member] = value.member(i);
      if (!key.is(Kind::kString) && !key.is(Kind::kInt)) {
        return absl::InvalidArgumentError(absl::StrCat("byte ", value.place(),
                                                       " of the pickle: a dict of tensors with ",
                                                       std::string(PickleKindName(key.kind())), " for a name"));
      }
      FSDP_ASSIGN_OR_RETURN(TorchNode child, Build(member, depth + 1));
      const std::string name = key.is(Kind::kString) ? std::string(key.text()) : absl::StrCat(key.integer());
      if (node.Add(name, std::move(child)) != nullptr) continue;
      return absl::DataLossError(
          absl::StrCat("byte ", value.place(), " of the pickle: a dict has the key ", Quote(name), " twice"));
    }
    return node;
  }

  absl::StatusOr<TorchNode> BuildList(PickleValue value, int depth) {
    TorchNode node;
    node.is_list = true;
    for (int64_t i = 0; i < value.size(); ++i) {
      FSDP_ASSIGN_OR_RETURN(TorchNode child, Build(value.at(i), depth + 1));
      node.Add(absl::StrCat(i), std::move(child));
    }
    return node;
  }

  std::vector<TorchTensor> tensors_;
  absl::flat_hash_map<uint32_t, bool> holds_tensor_;  // by id of the value
};

}  // namespace

absl::StatusOr<std::string> ReadBytes(const TorchTensorReader& read, int tensor, DType dtype,
                                      const Interval& interval) {
  std::string bytes(interval.size() * SizeOf(dtype), '\0');
  FSDP_RETURN_IF_ERROR(read(tensor, interval, reinterpret_cast<std::byte*>(bytes.data())));
  return bytes;
}

TorchNode TorchNode::Tensor(int index) {
  TorchNode node;
  node.kind_ = Kind::kTensor;
  node.tensor_ = index;
  return node;
}

TorchNode TorchNode::Value(PythonJson value) {
  TorchNode node;
  node.kind_ = Kind::kValue;
  node.value_ = std::move(value);
  return node;
}

const TorchNode* TorchNode::Find(const std::string& name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &members_[at->second].second;
}

TorchNode* TorchNode::Find(const std::string& name) {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &members_[at->second].second;
}

TorchNode* TorchNode::Add(const std::string& name, TorchNode node) {
  if (!index_.try_emplace(name, members_.size()).second) return nullptr;
  return &members_.emplace_back(name, std::move(node)).second;
}

// A null reader refuses every tensor, and the table of types is not asked.
absl::StatusOr<PythonJson> TorchNode::ToJson() const { return ToJson({}, nullptr); }

absl::StatusOr<PythonJson> TorchNode::ToJson(const std::vector<TorchLeafType>& tensors,
                                             const TorchTensorReader& read) const {
  if (kind_ == Kind::kValue) return value_;
  if (kind_ == Kind::kTensor) {
    if (read == nullptr) return absl::InvalidArgumentError("a tensor stands where a plain value is expected");
    const TorchLeafType& type = tensors[tensor_];
    if (type.shape.numel() > kMaxLiteralBytes / SizeOf(type.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("a tensor of shape ", type.shape.ToString(),
                                                     " stands where a plain value is expected, or a small tensor"));
    }
    FSDP_ASSIGN_OR_RETURN(std::string bytes, ReadBytes(read, tensor_, type.dtype, {0, type.shape.numel()}));
    return JsonOfTensor({type.dtype, type.shape, std::move(bytes)});
  }
  PythonJson json = is_list ? PythonJson::array() : PythonJson::object();
  for (const auto& [name, member] : members_) {
    FSDP_ASSIGN_OR_RETURN(PythonJson value, member.ToJson(tensors, read));
    if (is_list) {
      json.push_back(std::move(value));
    } else {
      AppendMember(json, name, std::move(value));
    }
  }
  return json;
}

absl::StatusOr<TorchTree> TreeOfPickle(PickleValue root) {
  TreeBuilder builder;
  TorchTree tree;
  FSDP_ASSIGN_OR_RETURN(tree.root, builder.Build(root, 0));
  tree.tensors = builder.TakeTensors();
  return tree;
}

}  // namespace fsdp
