// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/problem_json.h"

#include "nlohmann/json.hpp"

namespace fsdp {

std::string ProblemJson(absl::StatusCode code, std::string_view message) {
  const nlohmann::ordered_json json = {{"problem", message},
                                       {"problems", nlohmann::ordered_json::array({message})},
                                       {"code", absl::StatusCodeToString(code)}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace fsdp
