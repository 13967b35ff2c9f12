// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/recipe/recipe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/json_document.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;

struct NamedOp {
  std::string_view name;
  RecipeOp op;
};
constexpr NamedOp kOps[] = {
    {"source", RecipeOp::kSource},   {"stack", RecipeOp::kStack},           {"concat", RecipeOp::kConcat},
    {"chunk", RecipeOp::kChunk},     {"slice", RecipeOp::kSlice},           {"transpose", RecipeOp::kTranspose},
    {"reshape", RecipeOp::kReshape}, {"interleave", RecipeOp::kInterleave}, {"rope_permute", RecipeOp::kRopePermute},
    {"cast", RecipeOp::kCast},
};

absl::Status Wrong(const std::string& what) { return absl::DataLossError(what); }

absl::StatusOr<int64_t> Number(const json& expression, const char* name) {
  const auto at = expression.find(name);
  if (at != expression.end() && at->is_number_integer()) return at->get<int64_t>();
  return Wrong(absl::StrCat(Quote(name), " is missing or no whole number"));
}

absl::StatusOr<std::vector<int64_t>> Numbers(const json& expression, const char* name) {
  const auto at = expression.find(name);
  std::vector<int64_t> numbers;
  bool are_numbers = at != expression.end() && at->is_array();
  for (size_t i = 0; are_numbers && i < at->size(); ++i) {
    are_numbers = (*at)[i].is_number_integer();
    if (are_numbers) numbers.push_back((*at)[i].get<int64_t>());
  }
  if (are_numbers) return numbers;
  return Wrong(absl::StrCat(Quote(name), " is missing or no list of whole numbers"));
}

absl::StatusOr<std::string> Text(const json& expression, const char* name) {
  const auto at = expression.find(name);
  if (at != expression.end() && at->is_string()) return at->get<std::string>();
  return Wrong(absl::StrCat(Quote(name), " is missing or no text"));
}

absl::StatusOr<RecipeExpression> Parse(const json& value, int depth);

absl::Status ParseInputs(const json& value, int depth, RecipeExpression& expression) {
  const bool has_several = expression.op == RecipeOp::kStack || expression.op == RecipeOp::kConcat;
  const auto at = value.find(has_several ? "inputs" : "input");
  if (at == value.end() || (has_several && (!at->is_array() || at->empty()))) {
    return Wrong(has_several ? "\"inputs\" is missing or empty" : "\"input\" is missing");
  }
  if (!has_several) {
    FSDP_ASSIGN_OR_RETURN(expression.inputs.emplace_back(), Parse(*at, depth + 1));
    return absl::OkStatus();
  }
  for (const json& input : *at) {
    FSDP_ASSIGN_OR_RETURN(expression.inputs.emplace_back(), Parse(input, depth + 1));
  }
  return absl::OkStatus();
}

absl::Status ParseMembers(const json& value, RecipeExpression& expression) {
  switch (expression.op) {
    case RecipeOp::kSource: {
      FSDP_ASSIGN_OR_RETURN(expression.name, Text(value, "name"));
      return absl::OkStatus();
    }
    case RecipeOp::kTranspose: {
      FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> axes, Numbers(value, "axes"));
      if (axes.size() != 2) return Wrong("\"axes\" are not two");
      expression.axis = axes[0];
      expression.second_axis = axes[1];
      return absl::OkStatus();
    }
    case RecipeOp::kReshape: {
      FSDP_ASSIGN_OR_RETURN(expression.shape, Numbers(value, "shape"));
      return absl::OkStatus();
    }
    case RecipeOp::kCast: {
      FSDP_ASSIGN_OR_RETURN(const std::string dtype, Text(value, "dtype"));
      FSDP_ASSIGN_OR_RETURN(expression.dtype, ParseDType(dtype));
      return absl::OkStatus();
    }
    case RecipeOp::kRopePermute: {
      FSDP_ASSIGN_OR_RETURN(expression.heads, Number(value, "heads"));
      break;
    }
    case RecipeOp::kChunk: {
      FSDP_ASSIGN_OR_RETURN(expression.index, Number(value, "index"));
      FSDP_ASSIGN_OR_RETURN(expression.count, Number(value, "count"));
      break;
    }
    case RecipeOp::kSlice: {
      FSDP_ASSIGN_OR_RETURN(expression.begin, Number(value, "begin"));
      FSDP_ASSIGN_OR_RETURN(expression.end, Number(value, "end"));
      break;
    }
    default:
      break;
  }
  const auto inverse = value.find("inverse");
  if (inverse != value.end() && !inverse->is_boolean()) return Wrong("\"inverse\" is neither true nor false");
  expression.is_inverse = inverse != value.end() && inverse->get<bool>();
  if (expression.op == RecipeOp::kRopePermute) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(expression.axis, Number(value, "axis"));
  return absl::OkStatus();
}

absl::StatusOr<RecipeExpression> Parse(const json& value, int depth) {
  if (depth == kMaxDepth) return Wrong(absl::StrCat("it has more than ", kMaxDepth, " operations in one another"));
  if (!value.is_object()) return Wrong("an expression is no object");
  FSDP_ASSIGN_OR_RETURN(const std::string name, Text(value, "op"));
  const auto* const named =
      std::find_if(std::begin(kOps), std::end(kOps), [&](const NamedOp& known) { return known.name == name; });
  if (named == std::end(kOps)) return Wrong(absl::StrCat("there is no operation ", Quote(name)));
  RecipeExpression expression = {.op = named->op};
  const absl::Status members = ParseMembers(value, expression);
  if (!members.ok()) return Annotate(members, name);
  if (expression.op == RecipeOp::kSource) return expression;
  const absl::Status inputs = ParseInputs(value, depth, expression);
  if (!inputs.ok()) return Annotate(inputs, name);
  return expression;
}

}  // namespace

absl::StatusOr<Recipe> ParseRecipe(std::string_view text) {
  FSDP_ASSIGN_OR_RETURN(const json document, ParseJson(text));
  const auto targets = document.find("targets");
  if (targets == document.end() || !targets->is_object() || targets->empty()) {
    return Wrong("it has no \"targets\": expected {\"targets\": {NAME: {\"op\": ...}, ...}}");
  }
  Recipe recipe;
  for (const auto& [name, value] : targets->items()) {
    absl::StatusOr<RecipeExpression> expression = Parse(value, 0);
    if (!expression.ok()) return Annotate(expression.status(), absl::StrCat("target ", Quote(name)));
    recipe.targets.emplace_back(name, *std::move(expression));
  }
  return recipe;
}

absl::StatusOr<Recipe> ReadRecipe(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), path, kMaxRecipeBytes));
  absl::StatusOr<Recipe> recipe = ParseRecipe(text);
  if (!recipe.ok()) return Annotate(recipe.status(), absl::StrCat("recipe ", path));
  return recipe;
}

}  // namespace fsdp
