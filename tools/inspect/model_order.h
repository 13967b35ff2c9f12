// SPDX-License-Identifier: Apache-2.0
//
// The order of a model's parts as data passes through them: embedding, blocks, norm, head. Checkpoints list them in the
// order of bytes.
#ifndef FSDP_TOOLS_INSPECT_MODEL_ORDER_H_
#define FSDP_TOOLS_INSPECT_MODEL_ORDER_H_

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// `layers`, names without repetitions, in the order of a model: of the parts with one prefix the embeddings first, then
// the numbered ones, then all others, then the head, each naturally. A guess by names, only for showing them. Pure.
std::vector<std::string> InModelOrder(const std::vector<std::string>& layers);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_MODEL_ORDER_H_
