// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/sha256_testutil.h"
#include "fsdp/checkpoint/source/optimizer_value.h"

namespace fsdp {
namespace {

using Json = nlohmann::json;

// Collects differences instead of stopping at the first one: a single run then shows whether a reader lost one tensor
// or mixed up all. Remembers the compared tensors, so that an extra tensor is a difference as well.
class Comparison {
 public:
  Comparison(const TensorSource& source, const Json& expected) : source_(source), expected_(expected) {}

  // expected.json has a tied weight under each of its names; the source has it once, with an alias.
  void CompareModel() {
    for (const auto& [name, tensor] : expected_["model"].items()) {
      const auto alias = source_.contents().aliases.find(name);
      const std::string stored = alias == source_.contents().aliases.end() ? name : alias->second;
      Compare(StateKey::Model(stored), tensor);
    }
  }

  void CompareOptimizer() {
    if (!expected_.contains("optim")) return;
    for (const auto& [name, states] : expected_["optim"].items()) {
      for (const auto& [state, tensor] : states.items()) Compare(StateKey::OptimState(name, state), tensor);
    }
    // Compared as JSON and not as text: the order of the options is not part of the contract.
    if (!expected_.contains("param_groups")) return;
    const std::string* groups = source_.contents().FindText(StateKey::ParamGroups());
    if (groups == nullptr || Json::parse(*groups, nullptr, false) != expected_["param_groups"]) {
      problems_.push_back(absl::StrCat("param_groups: ", groups == nullptr ? "" : *groups));
    }
  }

  absl::Status Finish(GoldenParts parts) {
    for (const auto& [key, value] : source_.contents().entries()) {
      const bool counts = key.section == StateKey::Section::kModel ||
                          (key.section == StateKey::Section::kOptimState && parts == GoldenParts::kAll);
      if (counts && seen_.count(key) == 0) problems_.push_back(absl::StrCat(key.ToString(), ": not expected"));
    }
    return problems_.empty() ? absl::OkStatus() : absl::DataLossError(absl::StrJoin(problems_, "\n"));
  }

 private:
  void Compare(const StateKey& key, const Json& expected) {
    seen_.insert(key);
    const ShardedTensor* tensor = source_.contents().FindTensor(key);
    const std::optional<ScalarOfText> number = FindScalarOfState(source_.contents(), key.fqn, key.state);
    if (tensor == nullptr && number) return CompareNumber(key, *number, expected);
    if (tensor == nullptr) return problems_.push_back(absl::StrCat(key.ToString(), ": missing"));
    const std::vector<int64_t> dims(tensor->shape.dims().begin(), tensor->shape.dims().end());
    const absl::StatusOr<std::string> bytes = ReadWhole(source_, key);
    if (DTypeName(tensor->dtype) != expected["dtype"].get<std::string>() || Json(dims) != expected["shape"]) {
      // The type first: bytes of another dtype or shape would only repeat the same difference.
      problems_.push_back(absl::StrCat(key.ToString(), ": ", std::string(DTypeName(tensor->dtype)), " ",
                                       tensor->shape.ToString(), ", expected ", expected.dump()));
    } else if (!bytes.ok()) {
      problems_.push_back(bytes.status().ToString());
    } else if (Sha256(*bytes) != expected["sha256"].get<std::string>()) {
      problems_.push_back(absl::StrCat(key.ToString(), ": other bytes"));
    }
  }

  // A number of Python, of which the expected tensor was made.
  void CompareNumber(const StateKey& key, const ScalarOfText& number, const Json& expected) {
    const bool is_equal = DTypeName(number.dtype) == expected["dtype"].get<std::string>() &&
                          expected["shape"].empty() && Sha256(number.bytes) == expected["sha256"].get<std::string>();
    if (!is_equal) problems_.push_back(absl::StrCat(key.ToString(), ": another number than ", expected.dump()));
  }

  const TensorSource& source_;
  const Json& expected_;
  std::set<StateKey> seen_;
  std::vector<std::string> problems_;
};

}  // namespace

std::string TorchTestData(const std::string& name) {
  return std::filesystem::absolute("checkpoint/foreign/torch/testdata/" + name);
}

// Parsed once in each test program, and never freed.
const nlohmann::json& ExpectedOfAll() {
  static const auto* const expected = [] {
    std::ifstream file(TorchTestData("expected.json"));
    return new Json(Json::parse(file));
  }();
  return *expected;
}

absl::StatusOr<std::string> ReadWhole(const TensorSource& source, const StateKey& key) {
  const ShardedTensor* tensor = source.contents().FindTensor(key);
  if (tensor == nullptr) return absl::NotFoundError(key.ToString());
  // Filled with 0x55, so that elements that Read leaves out differ from zeros.
  std::string bytes(tensor->shape.numel() * SizeOf(tensor->dtype), '\x55');
  FSDP_RETURN_IF_ERROR(source.Read(key, {0, tensor->shape.numel()}, bytes.data()));
  return bytes;
}

absl::Status CheckGolden(const TensorSource& source, const std::string& name, GoldenParts parts) {
  Comparison comparison(source, ExpectedOfAll().at(name));
  comparison.CompareModel();
  if (parts == GoldenParts::kAll) comparison.CompareOptimizer();
  return comparison.Finish(parts);
}

}  // namespace fsdp
