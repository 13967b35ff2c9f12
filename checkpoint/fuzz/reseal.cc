// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/fuzz/reseal.h"

#include <utility>

#include "fsdp/checkpoint/native/format/sealed_json.h"

namespace fsdp {

std::string Resealed(std::string_view bytes) {
  // The last "digest": earlier members may have the word in a name. Without one the whole input is taken.
  std::string members(bytes.substr(0, bytes.rfind("\"digest\"")));
  while (!members.empty() && std::string_view(" \n,").find(members.back()) != std::string_view::npos) {
    members.pop_back();
  }
  return Seal(std::move(members));
}

}  // namespace fsdp
