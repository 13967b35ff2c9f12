// SPDX-License-Identifier: Apache-2.0
//
// Modules chosen by their dotted names, as NamedModules gives them. A pattern is a name in which * matches any
// characters but a dot, and ** any characters:
//
//   "transformer.h.*"      the blocks and not what is in them
//   "transformer.**.mlp"   the mlp of each block
//
// FullyShard wants inner modules first, which is the order of ModulesByName:
//
//   FSDP_ASSIGN_OR_RETURN(std::vector<Module*> blocks, ModulesByName(*model, {"transformer.h.*"}));
//   for (Module* block : blocks) FSDP_RETURN_IF_ERROR(FullyShard(*block, mesh).status());
#ifndef FSDP_NN_MODULE_NAMES_H_
#define FSDP_NN_MODULE_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// The whole name must match.
bool MatchesModuleName(std::string_view pattern, std::string_view name);

// The modules below `root`, without it, whose name matches one of `patterns`; children before their parents, each once.
// kNotFound for a pattern that no module matches: it names the pattern and the root's children.
absl::StatusOr<std::vector<Module*>> ModulesByName(Module& root, const std::vector<std::string>& patterns);

}  // namespace fsdp

#endif  // FSDP_NN_MODULE_NAMES_H_
