// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/peft/adapter_tensors.h"

#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// PEFT wraps the model in two objects, whose names come before the names in the model.
constexpr char kPrefix[] = "base_model.model.";
constexpr std::string_view kBaseLayer = ".base_layer.";

// A module's tensors as they are found.
struct Found {
  std::optional<StateKey> a, b, embedding_a, embedding_b, bias;
};

struct Role {
  std::string_view suffix;
  std::optional<StateKey> Found::*member;
};

constexpr std::array<Role, 5> kRoles = {{{".lora_A.weight", &Found::a},
                                         {".lora_B.weight", &Found::b},
                                         {".lora_embedding_A", &Found::embedding_a},
                                         {".lora_embedding_B", &Found::embedding_b},
                                         {".lora_B.bias", &Found::bias}}};

// Parts of names of PEFT's tensors that are no plain LoRA.
constexpr std::array<std::string_view, 12> kOthers = {"lora_magnitude_vector",
                                                      "lora_",
                                                      "hada_",
                                                      "lokr_",
                                                      "ia3_",
                                                      "oft_",
                                                      "boft_",
                                                      "vera_",
                                                      "randlora_",
                                                      "token_adapter.",
                                                      "trainable_tokens_",
                                                      "prompt_"};

// The name in the base: PEFT moves the layer that it wraps into a member of the wrapper.
std::string WithoutBaseLayer(const std::string& name) {
  const size_t at = name.rfind(std::string(kBaseLayer));
  return at == name.npos ? name : absl::StrCat(name.substr(0, at), ".", name.substr(at + kBaseLayer.size()));
}

absl::Status CheckIsWhole(const std::string& name, const StateKey& key) {
  if (absl::StrContains(name, "lora_magnitude_vector")) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quote(key.fqn), " is of DoRA, which is not merged: only LoRA is"));
  }
  // The last part of the name, and the one before it: "MODULE.lora_A.other.weight".
  for (std::string_view other : kOthers) {
    const size_t at = name.find(std::string(other));
    if (at == name.npos || (at > 0 && name[at - 1] != '.')) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(key.fqn),
                                                   " is none of LoRA's that can be merged: lora_A.weight, "
                                                   "lora_B.weight, lora_B.bias, lora_embedding_A, lora_embedding_B"));
  }
  return absl::OkStatus();
}

absl::Status Missing(const std::string& module, std::string_view has, std::string_view lacks) {
  return absl::DataLossError(absl::StrCat("module ", Quote(module), " has ", std::string(has), " and not ",
                                          std::string(lacks), ": the adapter is incomplete"));
}

// The names decide what a module is; half a pair means that the file is incomplete, since PEFT always saves both.
absl::StatusOr<LoraModule> Pair(const std::string& module, const Found& found) {
  if (found.a && !found.b) return Missing(module, "lora_A", "lora_B");
  if (found.b && !found.a) return Missing(module, "lora_B", "lora_A");
  if (found.embedding_a && !found.embedding_b) return Missing(module, "lora_embedding_A", "lora_embedding_B");
  if (found.embedding_b && !found.embedding_a) return Missing(module, "lora_embedding_B", "lora_embedding_A");
  if (found.a && found.embedding_a) {
    return absl::DataLossError(
        absl::StrCat("module ", Quote(module), " has lora_A and lora_embedding_A: it cannot be both"));
  }
  if (found.embedding_a) return LoraModule{*found.embedding_a, *found.embedding_b, true, found.bias};
  if (!found.a) return Missing(module, "lora_B.bias", "lora_B");
  return LoraModule{*found.a, *found.b, false, found.bias};
}

}  // namespace

// Each tensor is a part of a LoRA module, a whole tensor that replaces one of the base (modules_to_save), or a reason
// to refuse: another method's tensors would change the model if they were left out.
absl::StatusOr<AdapterTensors> SortAdapter(const StateDict& adapter) {
  AdapterTensors sorted;
  std::map<std::string, Found> modules;
  for (const auto& [key, value] : adapter.entries()) {
    if (key.section != StateKey::Section::kModel || !std::holds_alternative<ShardedTensor>(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quote(key.ToString()), " is no weight: an adapter of PEFT has only tensors of its model"));
    }
    if (key.fqn.size() > kMaxAdapterNameBytes) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(key.fqn), " has a name of ", key.fqn.size(),
                                                     " bytes, expected at most ", kMaxAdapterNameBytes));
    }
    std::string name = key.fqn;
    if (!absl::StartsWith(name, kPrefix)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(key.fqn), ": expected names that begin with ",
                                                     kPrefix, ", as PEFT's save_pretrained writes them"));
    }
    name = name.substr(sizeof(kPrefix) - 1);
    bool is_known = false;
    for (const Role& role : kRoles) {
      if (!absl::EndsWith(name, absl::string_view(role.suffix.data(), role.suffix.size()))) continue;
      modules[WithoutBaseLayer(name.substr(0, name.size() - role.suffix.size()))].*role.member = key;
      is_known = true;
    }
    if (is_known) continue;
    FSDP_RETURN_IF_ERROR(CheckIsWhole(name, key));
    name = WithoutBaseLayer(name);
    const auto [at, inserted] = sorted.whole.emplace(name, key);
    if (inserted) continue;
    return absl::DataLossError(
        absl::StrCat("tensors ", Quote(at->second.fqn), " and ", Quote(key.fqn), " both replace ", Quote(name)));
  }
  for (const auto& [module, found] : modules) {
    FSDP_ASSIGN_OR_RETURN(LoraModule pair, Pair(module, found));
    sorted.modules.emplace(module, std::move(pair));
  }
  return sorted;
}

}  // namespace fsdp
