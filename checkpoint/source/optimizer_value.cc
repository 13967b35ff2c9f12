// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/optimizer_value.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace fsdp {
namespace {

constexpr std::string_view kExtra = "optim/state/";
constexpr std::string_view kStep = "step";

template <typename T>
ScalarOfText Scalar(DType dtype, T value) {
  return {dtype, std::string(reinterpret_cast<const char*>(&value), sizeof(value))};
}

// SimpleAtoi and SimpleAtod also take blanks, a plus sign, "inf" and "nan", which JSON does not have.
bool HasOnly(const std::string& text, const char* characters) {
  return !text.empty() && text.find_first_not_of(characters) == text.npos;
}

}  // namespace

StateKey ExtraOfState(const std::string& fqn, const std::string& path) {
  return StateKey::Extra(
      absl::StrCat(std::string(kExtra), fqn, "/", absl::StrReplaceAll(path, {{"%", "%25"}, {"/", "%2F"}})));
}

std::optional<StateName> StateOfKey(const StateKey& key) {
  if (key.section == StateKey::Section::kOptimState) return StateName{key.fqn, key.state};
  std::string_view name = key.fqn;
  if (key.section != StateKey::Section::kExtra || name.substr(0, kExtra.size()) != kExtra) return std::nullopt;
  name.remove_prefix(kExtra.size());
  const size_t slash = name.rfind('/');
  if (slash == name.npos || slash == 0 || slash + 1 == name.size()) return std::nullopt;
  const std::string path(name.substr(slash + 1));
  return StateName{name.substr(0, slash), absl::StrReplaceAll(path, {{"%25", "%"}, {"%2F", "/"}})};
}

std::optional<ScalarOfText> ScalarOfState(std::string_view path, const std::string& text) {
  if (text == "true" || text == "false") return Scalar(DType::kBool, static_cast<uint8_t>(text == "true"));
  if (int64_t value = 0; HasOnly(text, "-0123456789") && absl::SimpleAtoi(text, &value)) {
    // 2^24 is the first integer whose successor float32 cannot hold.
    constexpr int64_t kExact = int64_t{1} << 24;
    if (path == kStep && value >= 0 && value <= kExact) return Scalar(DType::kFloat32, static_cast<float>(value));
    return Scalar(DType::kInt64, value);
  }
  // An integer beyond 64 bits is no tensor.
  const bool may_be_float = HasOnly(text, "+-.0123456789eE") && text.find_first_of(".eE") != text.npos;
  double value = 0;
  if (!may_be_float || text[0] == '+' || !absl::SimpleAtod(text, &value) || !std::isfinite(value)) return std::nullopt;
  if (path == kStep && static_cast<double>(static_cast<float>(value)) == value) {
    return Scalar(DType::kFloat32, static_cast<float>(value));
  }
  return Scalar(DType::kFloat64, value);
}

std::optional<ScalarOfText> FindScalarOfState(const StateDict& state, const std::string& fqn, const std::string& path) {
  const std::string* const text = state.FindText(ExtraOfState(fqn, path));
  return text == nullptr ? std::nullopt : ScalarOfState(path, *text);
}

StateDict WithValuesInPlace(StateDict state) {
  struct Parameter {
    std::vector<size_t> steps, others;  // texts, by entry
    size_t last_tensor = 0;
  };
  const std::vector<StateDict::Entry>& entries = state.entries();
  std::map<std::string_view, Parameter> parameters;  // with texts
  const auto is_text = [&](size_t i) { return std::holds_alternative<std::string>(entries[i].second); };
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::optional<StateName> name = is_text(i) ? StateOfKey(entries[i].first) : std::nullopt;
    if (!name) continue;
    Parameter& parameter = parameters[name->fqn];
    (name->path == kStep ? parameter.steps : parameter.others).push_back(i);
  }
  if (parameters.empty()) return state;
  const auto parameter_of = [&](size_t i) {
    const StateKey& key = entries[i].first;
    return key.section == StateKey::Section::kOptimState ? parameters.find(key.fqn) : parameters.end();
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    if (const auto at = parameter_of(i); at != parameters.end()) at->second.last_tensor = i + 1;
  }
  StateDict ordered;
  ordered.Reserve(entries.size());
  const auto add = [&](std::vector<size_t>& texts) {
    for (const size_t i : std::exchange(texts, {})) ordered.Set(entries[i].first, entries[i].second);
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto at = parameter_of(i);
    if (at != parameters.end()) add(at->second.steps);
    const std::optional<StateName> name = is_text(i) ? StateOfKey(entries[i].first) : std::nullopt;
    // The text of a parameter with tensors is added with them.
    if (!name || parameters[name->fqn].last_tensor == 0) ordered.Set(entries[i].first, entries[i].second);
    if (at != parameters.end() && at->second.last_tensor == i + 1) add(at->second.others);
  }
  ordered.type = state.type;
  ordered.aliases = std::move(state.aliases);
  ordered.units = std::move(state.units);
  ordered.attributes = std::move(state.attributes);
  return ordered;
}

}  // namespace fsdp
