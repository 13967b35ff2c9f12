// SPDX-License-Identifier: Apache-2.0
//
// AdapterConfig: the adapter_config.json that PEFT writes next to an adapter's weights: what kind of adapter it is, and
// the numbers by which its weights change the base model. Members that say that a merge would need more than
// the weights and these numbers are named in `obstacles`; so are members that are not known here, unless they have an
// empty value: a later PEFT may have given them a meaning.
#ifndef FSDP_CHECKPOINT_SOURCE_ADAPTER_CONFIG_H_
#define FSDP_CHECKPOINT_SOURCE_ADAPTER_CONFIG_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

struct AdapterConfig {
  std::string peft_type;   // "LORA", "LOHA", "IA3", ...
  std::string base_model;  // the name or path that the training program gave; may be empty

  double rank = 0;   // "r"; 0 if it is not given, as for other kinds than LoRA
  double alpha = 0;  // "lora_alpha"
  bool use_rslora = false;
  bool fan_in_fan_out = false;
  bool use_dora = false;

  // The modules that the adapter changes: the ends of their names; or one regular expression.
  std::vector<std::string> target_modules;
  std::string target_pattern;

  // Only some of the modules that target_modules names, by number or name, are changed.
  bool selects_layers = false;

  std::vector<std::string> modules_to_save;  // of which the adapter has the whole weights

  // Other ranks and alphas of modules, by regular expression, in the order of the file: the first that matches counts.
  std::vector<std::pair<std::string, double>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;

  // Why the adapter cannot be merged, if it cannot: `"use_dora" is true`.
  std::vector<std::string> obstacles;

  // "LoRA, rank 8 and alpha 16, of q_proj and v_proj, for the base model meta-llama/Llama-3.1-8B"; printable.
  std::string ToString() const;
};

// kDataLoss names a member of the wrong type.
absl::StatusOr<AdapterConfig> ParseAdapterConfig(std::string_view text);

// The config of the adapter at `path`, its directory or its file of weights. Errors name the file.
absl::StatusOr<AdapterConfig> ReadAdapterConfig(const std::string& path);

// SourceLayout's note about an adapter whose file of weights is `file`: that it is one, and what its config says.
std::string AdapterNote(const std::string& file);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_ADAPTER_CONFIG_H_
