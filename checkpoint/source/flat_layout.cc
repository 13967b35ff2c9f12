// SPDX-License-Identifier: Apache-2.0
//
// A flat parameter in a file of torch is a tensor of some number of elements, and nothing records the offsets of its
// parameters. FSDP1 has two layouts: packed, or, with use_orig_params, each parameter at a multiple of 16 bytes, of a
// dtype that the file does not name. PlaceParts tries each and takes the layout that gives the file's number of
// elements. If two different layouts do, it refuses: a wrong guess would load shifted weights without an error.
#include "fsdp/checkpoint/source/flat_layout.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/check.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/decode_budget.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {
namespace {

constexpr char kFlatName[] = "_flat_param";

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool Contains(const std::string& unit, const std::string& fqn) {
  return unit.empty() || absl::StartsWith(fqn, absl::StrCat(unit, "."));
}

// The offset of each part when it begins at a multiple of `alignment` elements, and the end of the last.
std::pair<std::vector<int64_t>, int64_t> Offsets(const FlatUnit& unit, int64_t alignment) {
  std::vector<int64_t> offsets;
  int64_t end = 0;
  for (const FlatUnit::Part& part : unit.parts) {
    offsets.push_back(RoundUp(end, alignment));
    end = offsets.back() + part.shape.numel();
  }
  return {offsets, end};
}

absl::Status Unusable(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("flat layout: ", what));
}

absl::Status WrongSize(const FlatUnit& unit, int64_t numel, int64_t packed, int world_size) {
  return Unusable(absl::StrCat("the flat parameter of unit ", Quote(unit.name), " has ", numel, " elements, which its ",
                               unit.parts.size(), " parameters of ", packed, " elements do not make for ",
                               Counted(world_size, "rank")));
}

void SetOffsets(const std::vector<int64_t>& offsets, FlatUnit& unit) {
  for (size_t i = 0; i < unit.parts.size(); ++i) unit.parts[i].offset = offsets[i];
}

absl::StatusOr<FlatLayout::Parameter> ParseParameter(const JsonView& json) {
  constexpr int64_t kMaxDims = 64;  // PyTorch's
  const std::optional<JsonView> shape = json.Find("shape");
  const std::optional<JsonView> name = json.Find("name");
  const std::optional<std::string> text = name ? name->string() : std::nullopt;
  if (!text || !shape || !shape->is_array()) {
    return Unusable(absl::StrCat("a parameter is ", Printable(json.text()), ", expected {\"name\", \"shape\"}"));
  }
  const int64_t rank = shape->size();
  if (rank > kMaxDims) {
    return Unusable(absl::StrCat("parameter ", Quote(*text), ": ", rank, " dimensions, expected at most ", kMaxDims));
  }
  std::vector<int64_t> dims;
  for (const JsonView dim : *shape) dims.push_back(dim.integer().value_or(-1));
  const absl::StatusOr<Shape> valid = Shape::Create(dims);
  if (valid.ok()) return FlatLayout::Parameter{*text, *valid};
  return Unusable(absl::StrCat("parameter ", Quote(*text), ": ", valid.status().message()));
}

absl::Status CheckParameters(const std::vector<FlatLayout::Parameter>& parameters) {
  constexpr int64_t kMaxNumel = int64_t{1} << 60;  // of all together, so that sums cannot overflow
  int64_t numel = 0;
  std::vector<std::string_view> names;
  names.reserve(parameters.size());
  for (const FlatLayout::Parameter& parameter : parameters) {
    names.push_back(parameter.fqn);
    if (parameter.shape.numel() > kMaxNumel - numel) {
      return Unusable(absl::StrCat("its parameters, up to ", Quote(parameter.fqn), ", have more than 2^60 elements"));
    }
    numel += parameter.shape.numel();
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return Unusable(absl::StrCat("parameter ", Quote(*twice), " is there twice"));
}

}  // namespace

absl::StatusOr<FlatLayout> ParseFlatLayout(const std::string& json) {
  const auto expected = [](const std::string& why) {
    return Unusable(
        absl::StrCat("expected a JSON object with an array \"parameters\" of {\"name\", \"shape\"}: ", why));
  };
  const absl::StatusOr<JsonView> parsed = JsonView::Parse(json);
  if (!parsed.ok()) return expected(std::string(parsed.status().message()));
  const std::optional<JsonView> parameters = parsed->Find("parameters");
  if (!parameters || !parameters->is_array()) return expected("the array is missing");
  DecodeBudget budget(json.size());
  const auto take = [&](size_t nbytes) -> absl::Status {
    const absl::Status taken = budget.Take(nbytes);
    return taken.ok() ? taken : Unusable(std::string(taken.message()));
  };
  FlatLayout layout;
  layout.parameters.reserve(MostElements(*parameters, R"({"name":"","shape":[]})"));
  for (const JsonView parameter : *parameters) {
    FSDP_ASSIGN_OR_RETURN(FlatLayout::Parameter parsed_parameter, ParseParameter(parameter));
    FSDP_RETURN_IF_ERROR(take(sizeof(parsed_parameter) + sizeof(std::string_view) + HeapBytes(parsed_parameter.fqn) +
                              2 * sizeof(int64_t) * parsed_parameter.shape.rank()));
    layout.parameters.push_back(std::move(parsed_parameter));
  }
  FSDP_RETURN_IF_ERROR(CheckParameters(layout.parameters));
  const std::optional<JsonView> units = parsed->Find("units");
  if (!units) return layout;
  if (!units->is_array()) return Unusable("\"units\" is not an array of module names");
  layout.units.reserve(MostElements(*units, "\"\""));
  for (const JsonView unit : *units) {
    std::optional<std::string> name = unit.string();
    if (!name) return Unusable("\"units\" is not an array of module names");
    FSDP_RETURN_IF_ERROR(take(sizeof(*name) + HeapBytes(*name)));
    layout.units.push_back(*std::move(name));
  }
  return layout;
}

absl::StatusOr<std::optional<FlatLayout>> ReadFlatLayout(const std::string& path) {
  if (path.empty()) return std::nullopt;
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  FSDP_ASSIGN_OR_RETURN(const std::string json, ReadFile(PosixFileSystem(), path, kMaxBytes));
  absl::StatusOr<FlatLayout> layout = ParseFlatLayout(json);
  if (layout.ok()) return std::make_optional(*std::move(layout));
  return absl::Status(layout.status().code(), absl::StrCat(std::string(layout.status().message()), " in ", path));
}

// FSDP1 wraps from the inside out, so a parameter belongs to the innermost unit around it, the unit with the longest
// name.
absl::StatusOr<std::vector<FlatUnit>> DivideIntoUnits(const std::vector<FlatLayout::Parameter>& parameters,
                                                      const std::vector<std::string>& units) {
  std::vector<FlatUnit> divided;
  for (const std::string& unit : units) divided.push_back({unit, {}});
  for (const FlatLayout::Parameter& parameter : parameters) {
    FlatUnit* innermost = nullptr;
    for (FlatUnit& unit : divided) {
      if (!Contains(unit.name, parameter.fqn)) continue;
      if (innermost == nullptr || unit.name.size() > innermost->name.size()) innermost = &unit;
    }
    if (innermost == nullptr) return Unusable(absl::StrCat("parameter ", Quote(parameter.fqn), " is in no unit"));
    innermost->parts.push_back({parameter.fqn, parameter.shape, 0});
  }
  for (const FlatUnit& unit : divided) {
    if (unit.parts.empty()) return Unusable(absl::StrCat("unit ", Quote(unit.name), " holds no parameter"));
  }
  return divided;
}

absl::Status PlacePacked(int64_t numel, int world_size, FlatUnit& unit) {
  const auto [offsets, end] = Offsets(unit, 1);
  // With or without FSDP1's padding to a multiple of the world size.
  if (numel != end && numel != RoundUp(end, world_size)) return WrongSize(unit, numel, end, world_size);
  SetOffsets(offsets, unit);
  return absl::OkStatus();
}

absl::Status PlaceParts(int64_t numel, int world_size, FlatUnit& unit) {
  const auto [packed, packed_end] = Offsets(unit, 1);
  std::set<std::vector<int64_t>> ways;
  if (numel == packed_end || numel == RoundUp(packed_end, world_size)) ways.insert(packed);
  for (const int64_t alignment : {4, 8}) {  // 16 bytes of float32, and of bfloat16 or float16
    const auto [offsets, end] = Offsets(unit, alignment);
    if (numel == RoundUp(end, world_size)) ways.insert(offsets);
  }
  // float64 only if nothing else fits: with few parameters, 2 elements would often give the same number as 4, and
  // refuse files of float32.
  const auto [of_doubles, end_of_doubles] = Offsets(unit, 2);
  if (ways.empty() && numel == RoundUp(end_of_doubles, world_size)) ways.insert(of_doubles);
  if (ways.empty()) return WrongSize(unit, numel, packed_end, world_size);
  if (ways.size() > 1) {
    return Unusable(absl::StrCat("the parameters of unit ", Quote(unit.name), " make ", numel,
                                 " elements with and without alignment, for ", world_size, " ranks"));
  }
  SetOffsets(*ways.begin(), unit);
  return absl::OkStatus();
}

// FSDP1 wraps each unit in a module, whose name "_fsdp_wrapped_module" is a component of every name below it.
std::string UnitOfFlatName(const std::string& name) {
  Check(IsFlatName(name), "no flat parameter");
  std::string unit = name.substr(0, name.size() - (sizeof(kFlatName) - 1));
  // Names in a layout are those before wrapping.
  unit = absl::StrReplaceAll(unit, {{"_fsdp_wrapped_module.", ""}});
  if (!unit.empty()) unit.pop_back();  // the dot
  return unit;
}

bool IsFlatName(const std::string& name) {
  return name == kFlatName || absl::EndsWith(name, absl::StrCat(".", kFlatName));
}

}  // namespace fsdp
