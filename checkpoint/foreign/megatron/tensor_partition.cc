// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/tensor_partition.h"

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace fsdp {
namespace {

using absl::string_view;

// By the name of the module: Megatron-Core's, then Megatron-LM's before it.
constexpr std::array<string_view, 15> kColumnModules = {
    "word_embeddings", "output_layer",  "linear_qkv",       "linear_q",          "linear_kv",
    "linear_fc1",      "linear_q_proj", "linear_q_up_proj", "linear_kv_up_proj", "query_key_value",
    "query",           "key_value",     "dense_h_to_4h",    "lm_head",           "word_embeddings_for_head"};
constexpr std::array<string_view, 3> kRowModules = {"linear_proj", "linear_fc2", "dense_4h_to_h"};
constexpr std::array<string_view, 4> kReplicatedModules = {"position_embeddings", "tokentype_embeddings", "router",
                                                           "pooler.dense"};

template <typename List>
bool Contains(const List& list, string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// "weight12" is expert 12's weight in a module of all experts of a rank: without the number.
string_view WithoutNumber(string_view leaf) {
  while (!leaf.empty() && absl::ascii_isdigit(static_cast<unsigned char>(leaf.back()))) leaf.remove_suffix(1);
  return leaf;
}

struct SplitName {
  string_view module;  // "decoder.layers.0.mlp.linear_fc1"
  string_view last;    // "linear_fc1"
  string_view leaf;    // "weight"
};

SplitName Split(string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return {"", "", name};
  const string_view module = name.substr(0, dot);
  const size_t before = module.rfind('.');
  return {module, before == module.npos ? module : module.substr(before + 1), name.substr(dot + 1)};
}

}  // namespace

std::optional<TensorPartition> PartitionOfName(std::string_view text) {
  const string_view name(text.data(), text.size());
  const SplitName split = Split(name);
  const string_view leaf = WithoutNumber(split.leaf);
  const bool is_weight = leaf == "weight";
  const bool is_bias = leaf == "bias";
  if (leaf == "layer_norm_weight" || leaf == "layer_norm_bias" || leaf == "inv_freq")
    return TensorPartition::kReplicated;
  // The old attention's output layer is called "dense".
  const bool is_rows = Contains(kRowModules, split.last) || absl::EndsWith(split.module, "attention.dense");
  if (is_rows && is_weight) return TensorPartition::kRows;
  if (is_rows && is_bias) return TensorPartition::kReplicated;
  if (Contains(kColumnModules, split.last) && (is_weight || is_bias)) return TensorPartition::kColumns;
  const bool is_norm = absl::EndsWith(split.last, "norm") || absl::EndsWith(split.last, "layernorm");
  if (is_norm && (is_weight || is_bias)) return TensorPartition::kReplicated;
  for (const string_view module : kReplicatedModules) {
    if (split.module == module || absl::EndsWith(split.module, absl::StrCat(".", module))) {
      return TensorPartition::kReplicated;
    }
  }
  const bool is_gate = split.last == "shared_experts" && split.leaf == "gate_weight";
  return is_gate ? std::make_optional(TensorPartition::kReplicated) : std::nullopt;
}

std::string SecondLinearOf(std::string_view text) {
  const string_view name(text.data(), text.size());
  const SplitName split = Split(name);
  string_view leaf = split.leaf;
  std::string weight = absl::ConsumePrefix(&leaf, "bias") ? absl::StrCat("weight", leaf) : std::string(leaf);
  string_view module = split.module;
  if (absl::ConsumeSuffix(&module, "linear_fc1")) return absl::StrCat(module, "linear_fc2.", weight);
  if (absl::ConsumeSuffix(&module, "dense_h_to_4h")) return absl::StrCat(module, "dense_4h_to_h.", weight);
  return "";
}

absl::StatusOr<Shape> JoinedShape(TensorPartition partition, const Shape& part, int ranks) {
  if (partition == TensorPartition::kReplicated) return part;
  const int axis = partition == TensorPartition::kRows ? 1 : 0;
  const bool halves = partition == TensorPartition::kGated;
  if (part.rank() <= axis || (halves && part.dim(0) % 2 != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("shape ", part.ToString(), " has no axis that ", ranks,
                                                   " tensor parallel ranks can have divided"));
  }
  std::vector<int64_t> dims(part.dims().begin(), part.dims().end());
  constexpr int64_t kMaxDim = int64_t{1} << 60;  // as of a shape (shape.h)
  if (dims[axis] > kMaxDim / ranks) return absl::InvalidArgumentError(absl::StrCat(part.ToString(), " is too large"));
  dims[axis] *= ranks;
  return Shape::Create(dims);
}

std::vector<JoinedPiece> PiecesOf(TensorPartition partition, const Shape& part, int ranks) {
  const std::vector<int64_t> count(part.dims().begin(), part.dims().end());
  const std::vector<int64_t> zeros(part.rank(), 0);
  if (partition == TensorPartition::kReplicated) return {{.box = {zeros, count}}};
  std::vector<JoinedPiece> pieces;
  const int axis = partition == TensorPartition::kRows ? 1 : 0;
  const int halves = partition == TensorPartition::kGated ? 2 : 1;
  const int64_t length = part.dim(axis) / halves;
  for (int half = 0; half < halves; ++half) {
    for (int rank = 0; rank < ranks; ++rank) {
      JoinedPiece piece = {.box = {zeros, count}, .part = rank, .first = half * (part.numel() / halves)};
      piece.box.start[axis] = (half * ranks + rank) * length;
      piece.box.count[axis] = length;
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

}  // namespace fsdp
