// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/keras/keras_names.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace fsdp {
namespace {

using namespace std::string_view_literals;  // NOLINT: literals

// The variables of a class, in its order, when it has that many. "-" before a name: not trained.
struct ClassRule {
  std::string_view name;  // in the file: the class in snake case; or an attribute of other classes
  std::array<std::string_view, 4> variables;
};

constexpr std::array kRules = {
    ClassRule{"embedding"sv, {"embeddings"sv}},
    ClassRule{"layer_normalization"sv, {"gamma"sv, "beta"sv}},
    ClassRule{"group_normalization"sv, {"gamma"sv, "beta"sv}},
    ClassRule{"rms_normalization"sv, {"scale"sv}},
    ClassRule{"batch_normalization"sv, {"gamma"sv, "beta"sv, "-moving_mean"sv, "-moving_variance"sv}},
    ClassRule{"batch_normalization"sv, {"-moving_mean"sv, "-moving_variance"sv}},
    ClassRule{"p_re_lu"sv, {"alpha"sv}},
    ClassRule{"separable_conv1d"sv, {"depthwise_kernel"sv, "pointwise_kernel"sv}},
    ClassRule{"separable_conv1d"sv, {"depthwise_kernel"sv, "pointwise_kernel"sv, "bias"sv}},
    ClassRule{"separable_conv2d"sv, {"depthwise_kernel"sv, "pointwise_kernel"sv}},
    ClassRule{"separable_conv2d"sv, {"depthwise_kernel"sv, "pointwise_kernel"sv, "bias"sv}},
    ClassRule{"cell"sv, {"kernel"sv, "recurrent_kernel"sv}},
    ClassRule{"cell"sv, {"kernel"sv, "recurrent_kernel"sv, "bias"sv}},
    ClassRule{"seed_generator"sv, {"-seed_generator_state"sv}},
};

// kernel, and bias unless use_bias is false.
constexpr std::array kDense = {"dense"sv,
                               "einsum_dense"sv,
                               "conv1d"sv,
                               "conv2d"sv,
                               "conv3d"sv,
                               "conv1d_transpose"sv,
                               "conv2d_transpose"sv,
                               "conv3d_transpose"sv,
                               "depthwise_conv1d"sv,
                               "depthwise_conv2d"sv,
                               "query_dense"sv,
                               "key_dense"sv,
                               "value_dense"sv,
                               "output_dense"sv};

// "kernel" is variable 0 of 2 of "dense"; nullopt if that is not known.
std::optional<std::string_view> VariableName(std::string_view owner, int number, int count) {
  if (std::find(kDense.begin(), kDense.end(), owner) != kDense.end() && count <= 2)
    return number == 0 ? "kernel" : "bias";
  for (const ClassRule& rule : kRules) {
    const auto known = std::count_if(rule.variables.begin(), rule.variables.end(),
                                     [](std::string_view name) { return !name.empty(); });
    if (rule.name == owner && known == count) return rule.variables[number];
  }
  return std::nullopt;
}

bool IsContainer(const std::string& element) {
  return element == "layers" || element == "_layer_checkpoint_dependencies";
}

// "dense_1" of a container is the second of class "dense".
std::string ClassOf(const std::string& element) {
  const size_t line = element.find_last_not_of("0123456789");
  if (line == element.npos || line + 1 == element.size() || element[line] != '_') return element;
  return element.substr(0, line);
}

// Keras 3 stores variables as numbers in the groups of layers (/layers/dense_1/vars/0), and the name of a layer only as
// an attribute of its group. The namer walks the path of each dataset, collects the names of the layers on it and adds
// the name of the variable if the class is known; otherwise the path itself is the name. Legacy files have names
// already.
class Namer {
 public:
  explicit Namer(const Hdf5Listing& listing) : listing_(listing) {
    for (const Hdf5Group& group : listing.groups) {
      names_[group.path] = group.name;
      const size_t input = group.path.find("/layers/input_layer");
      if (input != group.path.npos) functional_[group.path.substr(0, input)] = true;
    }
    for (const Hdf5Dataset& dataset : listing.datasets) {
      const size_t slash = dataset.path.rfind('/');
      ++counts_[dataset.path.substr(0, slash)];
    }
  }

  // The optimizer's variables are numbered through; their meaning follows from the numbers and the config
  // (keras_optimizer.h).
  KerasNames Names() {
    for (size_t i = 0; i < listing_.datasets.size(); ++i) Add(i);
    MakeUnique();
    if (const auto name = names_.find("/optimizer/vars"); name != names_.end()) result_.optimizer_name = name->second;
    for (const auto& [number, dataset] : optimizer_) result_.optimizer.push_back(dataset);
    // A gap leaves no number its meaning.
    if (!optimizer_.empty() && optimizer_.rbegin()->first != static_cast<int>(optimizer_.size()) - 1) {
      result_.others.insert(result_.others.end(), result_.optimizer.begin(), result_.optimizer.end());
      result_.optimizer.clear();
    }
    return std::move(result_);
  }

 private:
  void Add(size_t i) {
    const std::string& path = listing_.datasets[i].path;
    const std::vector<std::string> elements = absl::StrSplit(KerasPath(listing_.datasets[i]), '/');
    if (absl::StartsWith(path, "/model_weights/")) return AddLegacy(i, elements, 1);
    const bool is_optimizers = elements[0] == "optimizer" || elements[0] == "optimizer_weights";
    if (elements.size() < 2 || (is_optimizers && elements[1] != "vars")) return result_.others.push_back(i);
    int number = -1;
    const bool has_number =
        absl::SimpleAtoi(elements.back(), &number) && number >= 0 && absl::StrCat(number) == elements.back();
    if (elements[elements.size() - 2] != "vars") return AddLegacy(i, elements, 0);
    if (path == absl::StrCat("/optimizer/vars/", number)) {
      if (!optimizer_.emplace(number, i).second) result_.others.push_back(i);
    } else if (is_optimizers || !has_number) {
      result_.others.push_back(i);
    } else {
      AddVariable(i, {elements.begin(), elements.end() - 2}, number);
    }
  }

  // /LAYER/NAME or /model_weights/LAYER/NAME, where NAME is Keras's and may have a ":0" of TensorFlow.
  void AddLegacy(size_t i, const std::vector<std::string>& elements, size_t first) {
    if (elements.size() < first + 2) return result_.others.push_back(i);
    const std::vector<std::string> name(elements.begin() + static_cast<int64_t>(first) + 1, elements.end());
    std::string text = absl::StrJoin(name, "/");
    text = std::string(absl::StripSuffix(text, ":0"));
    result_.model.push_back({.dataset = i, .name = std::move(text), .is_known = true, .layer = elements[first]});
  }

  void AddVariable(size_t i, const std::vector<std::string>& owner, int number) {
    KerasVariable variable = {.dataset = i, .name = KerasPath(listing_.datasets[i]), .number = number};
    std::vector<std::string> names;
    bool has_names = true;
    std::string prefix;
    const bool is_functional = functional_.contains(prefix);
    if (!is_functional) has_names = TakeName(prefix, names);
    for (size_t k = 0; k < owner.size(); ++k) {
      absl::StrAppend(&prefix, "/", owner[k]);
      if (IsContainer(owner[k])) continue;
      has_names &= TakeName(prefix, names);
      if (variable.layer.empty() && !names.empty()) {
        variable.layer = names.back();
        variable.owner = absl::StrJoin(owner.begin() + static_cast<int64_t>(k) + 1, owner.end(), "/");
      }
      if (functional_.contains(prefix)) names.clear();  // its layers were made before it
    }
    const bool is_in_container = owner.size() > 1 && IsContainer(owner[owner.size() - 2]);
    const std::string rule = owner.empty() ? "" : is_in_container ? ClassOf(owner.back()) : owner.back();
    const std::string group = listing_.datasets[i].path.substr(0, listing_.datasets[i].path.rfind('/'));
    const int count = counts_[group];
    std::optional<std::string_view> name;
    if (number < count) name = VariableName(rule, number, count);
    if (name) variable.is_trainable = (*name)[0] != '-';
    if (name && has_names) {
      names.emplace_back(name->substr(variable.is_trainable ? 0 : 1));
      variable.name = absl::StrJoin(names, "/");
      variable.is_known = true;
    }
    result_.model.push_back(std::move(variable));
  }

  // The name of the layer whose group is `prefix`.
  bool TakeName(const std::string& prefix, std::vector<std::string>& names) const {
    const auto name = names_.find(absl::StrCat(prefix, "/vars"));
    if (name == names_.end()) return false;
    names.push_back(name->second);
    return true;
  }

  // Two layers with one name fall back to paths, both of them, so that the result does not depend on their order.
  void MakeUnique() {
    absl::flat_hash_map<std::string, int> uses;
    for (const KerasVariable& variable : result_.model) ++uses[variable.name];
    for (KerasVariable& variable : result_.model) {
      if (uses[variable.name] > 1) variable.name = KerasPath(listing_.datasets[variable.dataset]);
    }
  }

  const Hdf5Listing& listing_;
  absl::flat_hash_map<std::string, std::string> names_;  // by path of a group
  absl::flat_hash_map<std::string, bool> functional_;    // by path of a model
  absl::flat_hash_map<std::string, int> counts_;         // datasets, by path of a group
  std::map<int, size_t> optimizer_;                      // datasets by number
  KerasNames result_;
};

}  // namespace

std::string KerasPath(const Hdf5Dataset& dataset) { return std::string(absl::StripPrefix(dataset.path, "/")); }

KerasNames NamesOfKeras(const Hdf5Listing& listing) { return Namer(listing).Names(); }

}  // namespace fsdp
