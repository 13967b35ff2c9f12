// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/keras/keras_optimizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/json_view.h"

namespace fsdp {
namespace {

using namespace std::string_view_literals;  // NOLINT: literals

// Slots carry no names in the file. Their order is the order of the trained variables, which is the order of the layers
// in the config; every step of this reasoning that is not certain ends with an error, and the caller then keeps the
// variables by their numbers. The shapes are compared as a last check.
constexpr size_t kFirstSlot = 2;  // after iteration and learning_rate

absl::Status Unknown(const std::string& why) { return absl::InvalidArgumentError(why); }

std::string TextOf(const std::optional<JsonView>& object, std::string_view name) {
  const std::optional<JsonView> member = object ? object->Find(name) : std::nullopt;
  return member ? member->string().value_or("") : "";
}

// Neither absent, null, false nor 0.
bool IsSet(const std::optional<JsonView>& object, std::string_view name) {
  const std::optional<JsonView> member = object ? object->Find(name) : std::nullopt;
  if (!member) return false;
  const std::string_view text = member->text();
  return text != "null" && text != "false" && text != "0" && text != "0.0";
}

// Slots that are made together follow each other for each variable; slots that are made later come after the earlier
// slots of all variables.
using Slots = std::vector<std::vector<std::string>>;

// From the build() of each class in keras/src/optimizers: what add_optimizer_variables creates together is interleaved
// by variable.
absl::StatusOr<Slots> SlotsOfClass(const std::string& name, const std::optional<JsonView>& config) {
  if (IsSet(config, "use_ema") || IsSet(config, "gradient_accumulation_steps")) {
    return Unknown("the optimizer also keeps averages or accumulated gradients");
  }
  if (name == "Adam" || name == "AdamW") {
    Slots slots = {{"momentum", "velocity"}};
    if (IsSet(config, "amsgrad")) slots.push_back({"velocity_hat"});
    return slots;
  }
  if (name == "SGD") return IsSet(config, "momentum") ? Slots{{"momentum"}} : Slots{};
  if (name == "Lion") return Slots{{"momentum"}};
  if (name == "Adagrad") return Slots{{"accumulator"}};
  if (name == "Adamax") return Slots{{"m", "u"}};
  if (name == "RMSprop") {
    Slots slots = {{"velocity"}};
    if (IsSet(config, "momentum")) slots.push_back({"momentum"});
    if (IsSet(config, "centered")) slots.push_back({"average_gradient"});
    return slots;
  }
  return Unknown(absl::StrCat("the order of the variables of the optimizer ", Quote(name), " is not known"));
}

// The parts of an attention layer, in the order in which it makes them.
constexpr std::array kAttention = {"query_dense"sv, "key_dense"sv, "value_dense"sv, "output_dense"sv};

// The trained variables of a layer, in its order.
absl::StatusOr<std::vector<const KerasVariable*>> TrainedOf(const std::string& layer,
                                                            std::vector<const KerasVariable*> variables) {
  const auto order = [](const KerasVariable& variable) {
    const auto at = std::find(kAttention.begin(), kAttention.end(), std::string_view(variable.owner));
    return variable.owner.empty() ? 0 : static_cast<int>(at - kAttention.begin()) + 1;
  };
  for (const KerasVariable* variable : variables) {
    if (!variable->is_known || order(*variable) > static_cast<int>(kAttention.size())) {
      return Unknown(absl::StrCat("the order of the variables of layer ", Quote(layer), " is not known"));
    }
  }
  std::sort(variables.begin(), variables.end(), [&](const KerasVariable* a, const KerasVariable* b) {
    return std::pair(order(*a), a->number) < std::pair(order(*b), b->number);
  });
  variables.erase(std::remove_if(variables.begin(), variables.end(),
                                 [](const KerasVariable* variable) { return !variable->is_trainable; }),
                  variables.end());
  return variables;
}

// The trained variables of the model, in the order of its layers.
absl::StatusOr<std::vector<const KerasVariable*>> TrainedOf(const JsonView& layers, const KerasNames& names) {
  std::map<std::string, std::vector<const KerasVariable*>> by_layer;
  for (const KerasVariable& variable : names.model) by_layer[variable.layer].push_back(&variable);
  std::vector<const KerasVariable*> trained;
  for (const JsonView layer : layers) {
    const std::optional<JsonView> config = layer.Find("config");
    if (!config) continue;
    const std::string name = TextOf(config, "name");
    const auto found = by_layer.find(name);
    if (found == by_layer.end()) continue;
    FSDP_ASSIGN_OR_RETURN(const std::vector<const KerasVariable*> own, TrainedOf(name, std::move(found->second)));
    by_layer.erase(found);
    // A frozen layer has no slots.
    const std::optional<JsonView> trainable = config->Find("trainable");
    if (!trainable || trainable->text() != "false") trained.insert(trained.end(), own.begin(), own.end());
  }
  if (by_layer.empty()) return trained;
  return Unknown(absl::StrCat("the config has no layer ", Quote(by_layer.begin()->first)));
}

}  // namespace

absl::StatusOr<std::vector<KerasSlot>> SlotsOfKeras(std::string_view config, const Hdf5Listing& listing,
                                                    const KerasNames& names) {
  FSDP_ASSIGN_OR_RETURN(const JsonView json, JsonView::Parse(config));
  const std::optional<JsonView> model = json.Find("config");
  const std::optional<JsonView> layers = model ? model->Find("layers") : std::nullopt;
  if (!layers || !layers->is_array()) return Unknown("the config of the model does not list its layers");
  const std::optional<JsonView> compiled = json.Find("compile_config");
  const std::optional<JsonView> optimizer = compiled ? compiled->Find("optimizer") : std::nullopt;
  const std::optional<JsonView> options = optimizer ? optimizer->Find("config") : std::nullopt;
  if (!options) return Unknown("the config does not have the optimizer");
  FSDP_ASSIGN_OR_RETURN(const Slots slots, SlotsOfClass(TextOf(optimizer, "class_name"), options));
  FSDP_ASSIGN_OR_RETURN(const std::vector<const KerasVariable*> trained, TrainedOf(*layers, names));
  if (names.optimizer.size() < kFirstSlot) return Unknown("the optimizer has no iteration and no learning rate");
  std::vector<KerasSlot> result;
  size_t next = kFirstSlot;
  for (const std::vector<std::string>& together : slots) {
    for (const KerasVariable* variable : trained) {
      for (const std::string& slot : together) {
        if (next == names.optimizer.size()) return Unknown("the optimizer has too few variables for the model");
        const size_t dataset = names.optimizer[next++];
        if (listing.datasets[dataset].dims != listing.datasets[variable->dataset].dims) {
          return Unknown(
              absl::StrCat("variable ", next - 1, " of the optimizer has another shape than ", Quote(variable->name)));
        }
        result.push_back({dataset, variable->name, slot});
      }
    }
  }
  if (next == names.optimizer.size()) return result;
  return Unknown("the optimizer has more variables than the model's trained ones have slots");
}

}  // namespace fsdp
