// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/metrics_reader.h"

#include <cmath>
#include <fstream>
#include <iterator>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

bool IsMetrics(const nlohmann::json& line) {
  if (!line.is_object()) return false;
  for (const char* name : {"step", "loss", "grad_norm", "lr", "tokens_per_second", "step_seconds", "peak_bytes"}) {
    if (!line.contains(name) || !(line[name].is_number() || line[name].is_null())) return false;
  }
  return line["step"].is_number_integer() && line["peak_bytes"].is_number_integer();
}

double Number(const nlohmann::json& value) { return value.is_null() ? NAN : value.get<double>(); }

StepMetrics Decode(const nlohmann::json& line) {
  return {.step = line["step"].get<int64_t>(),
          .loss = Number(line["loss"]),
          .grad_norm = Number(line["grad_norm"]),
          .lr = Number(line["lr"]),
          .tokens_per_second = Number(line["tokens_per_second"]),
          .step_seconds = Number(line["step_seconds"]),
          .peak_bytes = line["peak_bytes"].get<int64_t>()};
}

}  // namespace

absl::StatusOr<std::vector<StepMetrics>> ReadMetrics(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::NotFoundError(absl::StrFormat("%s: cannot be opened", path));
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  std::vector<StepMetrics> steps;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    const nlohmann::json line =
        nlohmann::json::parse(text.begin() + begin, text.begin() + end, nullptr, /*allow_exceptions=*/false);
    if (!IsMetrics(line)) {
      return absl::InvalidArgumentError(absl::StrFormat("%s, line %d: is no JSON object with a step's metrics: %s",
                                                        path, steps.size() + 1, text.substr(begin, end - begin)));
    }
    steps.push_back(Decode(line));
    begin = end + 1;
  }
  return steps;
}

}  // namespace fsdp
