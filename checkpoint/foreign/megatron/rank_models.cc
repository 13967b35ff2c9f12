// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/rank_models.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

using absl::string_view;

constexpr string_view kExtraState = "_extra_state";

bool IsExtraState(string_view name) { return absl::EndsWith(name, kExtraState); }

std::set<std::string> NamesOf(const RankModel& model) {
  std::set<std::string> names;
  for (const auto& chunk : model.chunks) {
    for (const auto& [name, tensor] : chunk) names.insert(name);
  }
  return names;
}

// The place and the value of the number in `name` after the first `stack`; nullopt without one.
struct NumberInName {
  size_t begin = 0;
  size_t end = 0;
  int64_t value = 0;
};

std::optional<NumberInName> NumberAfter(string_view name, string_view stack) {
  const size_t at = name.find(stack);
  if (at == name.npos || (at > 0 && name[at - 1] != '.')) return std::nullopt;
  NumberInName number = {.begin = at + stack.size()};
  number.end = std::min(name.find('.', number.begin), name.size());
  constexpr size_t kMaxDigits = 9;
  const string_view digits = name.substr(number.begin, number.end - number.begin);
  if (digits.size() > kMaxDigits || digits.find_first_not_of("0123456789") != digits.npos) return std::nullopt;
  if (!absl::SimpleAtoi(digits, &number.value)) return std::nullopt;
  return number;
}

// The layers of the blocks that a pipeline divides. Layers of other blocks ("mtp.layers.0") are in one stage.
std::optional<NumberInName> LayerIn(string_view name) {
  if (!absl::StrContains(name, "decoder.layers.") && !absl::StrContains(name, "encoder.layers.")) return std::nullopt;
  return NumberAfter(name, "layers.");
}

// "experts.local_experts.3.linear_fc1.weight", or "experts.linear_fc1.weight3" of a module of all experts.
std::optional<NumberInName> ExpertIn(string_view name) {
  if (auto number = NumberAfter(name, "local_experts.")) return number;
  const size_t leaf = name.rfind('.') + 1;
  for (const string_view module : {".experts.linear_fc1.", ".experts.linear_fc2."}) {
    const size_t at = name.rfind(module);
    if (at == name.npos || at + module.size() != leaf) continue;
    const size_t begin = name.find_first_of("0123456789", leaf);
    NumberInName number = {.begin = begin, .end = name.size()};
    if (begin != name.npos && absl::SimpleAtoi(name.substr(begin), &number.value)) return number;
  }
  return std::nullopt;
}

std::string WithNumber(string_view name, const NumberInName& number, int64_t value) {
  return absl::StrCat(name.substr(0, number.begin), value, name.substr(number.end));
}

// Numbers of layers, by what is before their number: "decoder.layers.".
using LayerCounts = std::map<std::string, int64_t>;

// Joins along each kind of parallelism in turn. Tensor: the ranks of a stage have parts of the same names, divided by
// rules of names (tensor_partition.h). Expert: numbers of experts continue from rank to rank, and all other tensors
// must be equal. Pipeline: numbers of layers continue from stage to stage.
// Of one chunk of one pipeline stage.
class StageJoiner {
 public:
  using Names = absl::flat_hash_map<std::string, int>;

  StageJoiner(const RankGrid& grid, int stage, size_t chunk, RankModels& joined)
      : grid_(grid), stage_(stage), chunk_(chunk), joined_(joined) {}

  // `layers`: of the stages before this one, by block; the numbers of its own are added.
  absl::Status Join(LayerCounts& layers) {
    FSDP_RETURN_IF_ERROR(ReadNames());
    LayerCounts own;
    int64_t experts = 0;  // of one rank
    for (const auto& [name, tensor] : Chunk(grid_.At(0, stage_, 0))) {
      if (const auto layer = LayerIn(name)) {
        int64_t& count = own[name.substr(0, layer->begin)];
        count = std::max(count, layer->value + 1);
      }
      if (const auto expert = ExpertIn(name)) experts = std::max(experts, expert->value + 1);
    }
    for (const auto& [name, tensor] : Chunk(grid_.At(0, stage_, 0))) {
      if (IsExtraState(name)) {
        ++joined_.extra_states;
        continue;
      }
      const bool is_expert = ExpertIn(name).has_value();
      for (int e = 0; e < grid_.expert; ++e) {
        if (e > 0 && !is_expert) {
          FSDP_RETURN_IF_ERROR(CompareCopies(name, e));
        } else {
          FSDP_RETURN_IF_ERROR(JoinTensor(name, e, layers, e * experts));
        }
      }
    }
    for (const auto& [block, count] : own) layers[block] += count;
    return absl::OkStatus();
  }

 private:
  const std::vector<std::pair<std::string, int>>& Chunk(const RankModel& model) const { return model.chunks[chunk_]; }

  // Every rank of a stage has tensors of the same names.
  absl::Status ReadNames() {
    names_.resize(static_cast<size_t>(grid_.tensor) * grid_.expert);
    const RankModel& first = grid_.At(0, stage_, 0);
    for (int e = 0; e < grid_.expert; ++e) {
      for (int t = 0; t < grid_.tensor; ++t) {
        const RankModel& model = grid_.At(t, stage_, e);
        Names& names = names_[t + e * grid_.tensor];
        for (const auto& [name, tensor] : Chunk(model)) {
          if (IsExtraState(name)) continue;
          if (!names.try_emplace(name, tensor).second) {
            return absl::DataLossError(absl::StrCat(Quote(name), " is twice in ", model.name));
          }
          if (!names_[0].contains(name)) return Lacks(name, model, first);
        }
        for (const auto& [name, tensor] : names_[0]) {
          if (!names.contains(name)) return Lacks(name, first, model);
        }
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Lacks(const std::string& name, const RankModel& has, const RankModel& lacks) {
    return absl::DataLossError(absl::StrCat("tensor ", Quote(name), " is in ", has.name, " and not in ", lacks.name,
                                            ": the files of ranks were exchanged, or are of different runs"));
  }

  TensorRef RefOf(const std::string& name, int t, int e) const {
    return {grid_.At(t, stage_, e).file, names_[t + e * grid_.tensor].at(name)};
  }

  static const Shape ShapeOf(const TensorRef& ref) { return ref.tensors().shape(ref.index); }

  // Compares the tensor of each rank of expert rank `e` with the tensor of expert rank 0.
  absl::Status CompareCopies(const std::string& name, int e) {
    for (int t = 0; t < grid_.tensor; ++t) {
      const TensorRef copy = RefOf(name, t, e);
      FSDP_ASSIGN_OR_RETURN(const bool is_equal, AreEqual(RefOf(name, t, 0), copy));
      if (!is_equal) return Differ(name, "expert", grid_.At(t, stage_, 0), grid_.At(t, stage_, e));
      joined_.copies.push_back(copy);
    }
    return absl::OkStatus();
  }

  static absl::Status Differ(const std::string& name, const char* kind, const RankModel& a, const RankModel& b) {
    return absl::DataLossError(absl::StrCat("tensor ", Quote(name), " should be equal in all ", kind,
                                            " parallel ranks, but differs between ", a.name, " and ", b.name));
  }

  // The first matrix of a gated unit holds two matrices, each divided by itself. Its name does not say so, but the
  // shape of the second one does.
  absl::StatusOr<TensorPartition> PartitionOf(const std::string& name, const TensorRefs& refs, int e) const {
    const std::optional<TensorPartition> partition = PartitionOfName(name);
    if (!partition) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quote(name), ": it is not known how ", grid_.tensor,
          " tensor parallel ranks divide it: convert the checkpoint with Megatron-Core to --ckpt-format torch_dist"));
    }
    const std::string second = SecondLinearOf(name);
    if (second.empty()) return *partition;
    const auto at = names_[e * grid_.tensor].find(second);
    const Shape shape = ShapeOf(refs[0]);
    const Shape of_second = at == names_[e * grid_.tensor].end() ? Shape() : ShapeOf(RefOf(second, 0, e));
    const int64_t columns = of_second.rank() == 2 ? of_second.dim(1) : 0;
    const int64_t rows = shape.rank() > 0 ? shape.dim(0) : 0;
    if (columns > 0 && rows == columns) return TensorPartition::kColumns;
    if (columns > 0 && rows == 2 * columns) return TensorPartition::kGated;
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(name), ": shape ", shape.ToString(),
                                                   " does not fit ", Quote(second), " ", of_second.ToString(),
                                                   ", so it is not known whether the unit is gated"));
  }

  absl::Status JoinTensor(const std::string& name, int e, const LayerCounts& layers, int64_t experts) {
    TensorRefs refs;
    for (int t = 0; t < grid_.tensor; ++t) {
      refs.push_back(RefOf(name, t, e));
      if (refs[t].dtype() != refs[0].dtype() || ShapeOf(refs[t]) != ShapeOf(refs[0])) {
        return absl::DataLossError(absl::StrCat("tensor ", Quote(name), " is ", ShapeOf(refs[0]).ToString(), " in ",
                                                grid_.At(0, stage_, e).name, " and ", ShapeOf(refs[t]).ToString(),
                                                " in ", grid_.At(t, stage_, e).name, ", or of another dtype"));
      }
    }
    JoinedRankTensor joined;
    joined.name = NameInModel(name, layers, experts);
    joined.part = ShapeOf(refs[0]);
    if (grid_.tensor > 1) {
      absl::StatusOr<TensorPartition> partition = PartitionOf(name, refs, e);
      if (!partition.ok()) return partition.status();
      joined.partition = *partition;
    }
    FSDP_RETURN_IF_ERROR(CheckCopies(name, e, joined.partition, refs));
    const absl::StatusOr<Shape> shape = JoinedShape(joined.partition, joined.part, grid_.tensor);
    if (!shape.ok()) return Annotate(shape.status(), absl::StrCat("tensor ", Quote(name)));
    joined.shape = *shape;
    if (joined.partition == TensorPartition::kReplicated) refs.resize(1);
    joined.refs = std::move(refs);
    joined_.tensors.push_back(std::move(joined));
    return absl::OkStatus();
  }

  // Replicated tensors must be equal. Matrices of experts must not: with --expert-tensor-parallel-size 1 each rank has
  // whole ones.
  absl::Status CheckCopies(const std::string& name, int e, TensorPartition partition, const TensorRefs& refs) {
    const bool is_replicated = partition == TensorPartition::kReplicated;
    const bool is_expert = ExpertIn(name).has_value() && ShapeOf(refs[0]).rank() == 2;
    if (refs.size() == 1 || (!is_replicated && !is_expert)) return absl::OkStatus();
    bool all_equal = true;
    for (int t = 1; t < grid_.tensor; ++t) {
      FSDP_ASSIGN_OR_RETURN(const bool is_equal, AreEqual(refs[0], refs[t]));
      all_equal = all_equal && is_equal;
      if (!is_replicated) continue;
      if (!is_equal) return Differ(name, "tensor", grid_.At(0, stage_, e), grid_.At(t, stage_, e));
      joined_.copies.push_back(refs[t]);
    }
    if (is_replicated || !all_equal) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", Quote(name),
        " of an expert is equal in all tensor parallel ranks, so it is whole in each, and not "
        "divided as the others are: convert the checkpoint with Megatron-Core to --ckpt-format torch_dist"));
  }

  static std::string NameInModel(const std::string& name, const LayerCounts& layers, int64_t experts) {
    std::string whole = name;
    // From the end of the name to its start, so that the second number is where it was found.
    if (const auto expert = ExpertIn(whole)) whole = WithNumber(whole, *expert, expert->value + experts);
    if (const auto layer = LayerIn(whole)) {
      const auto before = layers.find(whole.substr(0, layer->begin));
      if (before != layers.end()) whole = WithNumber(whole, *layer, layer->value + before->second);
    }
    return whole;
  }

  const RankGrid& grid_;
  const int stage_;
  const size_t chunk_;
  RankModels& joined_;
  std::vector<Names> names_;  // the number of a tensor by its name; of tensor rank t and expert rank e
};

// Stages may hold copies of one tensor: the embedding that a later stage needs too, under its own name or as the tied
// output layer.
absl::Status JoinStages(RankModels& joined) {
  absl::flat_hash_map<std::string, size_t> first;
  std::vector<JoinedRankTensor> kept;
  for (JoinedRankTensor& tensor : joined.tensors) {
    const bool is_output =
        tensor.name == "output_layer.weight" || absl::EndsWith(tensor.name, "word_embeddings_for_head.weight");
    const std::string wanted = !is_output ? tensor.name
                               : tensor.name == "output_layer.weight"
                                   ? "embedding.word_embeddings.weight"
                                   : "language_model.embedding.word_embeddings.weight";
    const auto same = first.find(tensor.name);
    const auto at = same != first.end() ? same : first.find(wanted);
    bool is_copy = at != first.end() && tensor.shape == kept[at->second].shape;
    for (size_t t = 0; is_copy && t < tensor.refs.size(); ++t) {
      FSDP_ASSIGN_OR_RETURN(is_copy, AreEqual(kept[at->second].refs[t], tensor.refs[t]));
    }
    if (same != first.end() && !is_copy) {
      return absl::DataLossError(
          absl::StrCat("tensor ", Quote(tensor.name), " is in two pipeline stages, with different values"));
    }
    if (is_copy) {
      joined.copies.insert(joined.copies.end(), tensor.refs.begin(), tensor.refs.end());
      if (same == first.end()) joined.aliases[tensor.name] = wanted;
      continue;
    }
    first[tensor.name] = kept.size();
    kept.push_back(std::move(tensor));
  }
  joined.tensors = std::move(kept);
  return absl::OkStatus();
}

}  // namespace

// A directory's name has one to three numbers; with two it is open whether the second counts stages or experts. Ranks
// of one stage have the same names, stages do not.
absl::StatusOr<RankGrid> MakeRankGrid(std::vector<std::pair<std::vector<int>, RankModel>> models) {
  std::sort(models.begin(), models.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  RankGrid grid;
  std::vector<int> sizes(models.front().first.size(), 0);
  for (const auto& [numbers, model] : models) {
    if (numbers.size() != sizes.size()) {
      return absl::DataLossError(absl::StrCat(models.front().second.name, " and ", model.name,
                                              " are of different runs: the one has more numbers than the other"));
    }
    for (size_t i = 0; i < numbers.size(); ++i) sizes[i] = std::max(sizes[i], numbers[i] + 1);
  }
  size_t count = 1;
  for (const int size : sizes) count *= static_cast<size_t>(size);  // at most three numbers below a million
  // Sorted and distinct, so the first that is not at its place is missing.
  for (size_t i = 0; i < std::min(count, models.size() + 1); ++i) {
    std::vector<int> wanted(sizes.size());
    size_t rest = i;
    for (size_t d = sizes.size(); d-- > 0; rest /= sizes[d]) wanted[d] = static_cast<int>(rest % sizes[d]);
    if (i < models.size() && models[i].first == wanted) continue;
    std::string name = "mp_rank";
    for (const int number : wanted) absl::StrAppend(&name, "_", number);
    return absl::DataLossError(absl::StrCat("the directory of rank ", name, " is missing: there are directories up to ",
                                            models.back().second.name));
  }
  const size_t chunks = models.front().second.chunks.size();
  for (const auto& [numbers, model] : models) {
    if (model.chunks.size() == chunks) continue;
    return absl::DataLossError(absl::StrCat(models.front().second.name, " has ", chunks, " model chunks, and ",
                                            model.name, " has ", model.chunks.size()));
  }
  // Compared are the first and the last: they are of one stage only if all are.
  const bool has_two = sizes.size() == 2 && sizes[1] > 1;
  const bool is_expert = has_two && NamesOf(models[0].second) == NamesOf(models[sizes[1] - 1].second);
  grid.tensor = sizes[0];
  if (sizes.size() == 2) (is_expert ? grid.expert : grid.pipeline) = sizes[1];
  if (sizes.size() == 3) {
    grid.pipeline = sizes[1];
    grid.expert = sizes[2];
  }
  grid.models.resize(models.size());
  for (auto& [numbers, model] : models) {
    const int p = is_expert || numbers.size() < 2 ? 0 : numbers[1];
    const int e = is_expert ? numbers[1] : numbers.size() == 3 ? numbers[2] : 0;
    grid.models[numbers[0] + grid.tensor * (p + grid.pipeline * e)] = std::move(model);
  }
  return grid;
}

absl::StatusOr<RankModels> JoinRankModels(const RankGrid& grid) {
  RankModels joined;
  LayerCounts layers;
  // An interleaved pipeline has the first chunk of each stage before the second of any.
  for (size_t chunk = 0; chunk < grid.models[0].chunks.size(); ++chunk) {
    for (int stage = 0; stage < grid.pipeline; ++stage) {
      FSDP_RETURN_IF_ERROR(StageJoiner(grid, stage, chunk, joined).Join(layers));
    }
  }
  FSDP_RETURN_IF_ERROR(JoinStages(joined));
  if (grid.expert > 1) {
    const bool has_expert =
        std::any_of(joined.tensors.begin(), joined.tensors.end(),
                    [](const JoinedRankTensor& tensor) { return ExpertIn(tensor.name).has_value(); });
    if (!has_expert) return absl::DataLossError("its ranks have the same tensors, and no experts: they are copies");
  }
  return joined;
}

}  // namespace fsdp
