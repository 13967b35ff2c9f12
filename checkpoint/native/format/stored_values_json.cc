// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/format/stored_values_json.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxDimensions = 32;  // HDF5's

// The shortest valid elements (MostElements).
constexpr std::string_view kShortestTensor = R"({"name":"model/a","dtype":"bool","shape":[],"intervals":[]})";
constexpr std::string_view kShortestInterval = R"({"begin":0,"end":0,"file":"a","offset":0})";
constexpr std::string_view kShortestText = R"({"name":"extra/a","file":"a","offset":0,"bytes":0})";
constexpr std::string_view kShortestUnit = R"({"name":"","unsharded_numel":0,"parameters":[]})";
constexpr std::string_view kShortestParameter = R"({"fqn":"a","offset":0,"numel":0})";

absl::Status Broken(const std::string& what) { return absl::DataLossError(what); }

// `status`, with `what` as the place.
absl::Status In(const std::string& what, const absl::Status& status) { return Annotate(status, what); }

size_t HeapBytesOf(const StateKey& key) { return HeapBytes(key.fqn) + HeapBytes(key.state); }

// The memory of a tensor and of its pointer in CheckNames. The objects of its aliases are counted before.
size_t MemoryOf(const StoredTensor& tensor) {
  constexpr int kInlineDimensions = 4;
  constexpr size_t kMallocBytes = 16;
  size_t nbytes = sizeof(tensor) + sizeof(void*) + HeapBytesOf(tensor.key) + HeapBytes(tensor.unknown);
  for (const std::string& alias : tensor.aliases) nbytes += HeapBytes(alias);
  if (tensor.shape.rank() > kInlineDimensions) nbytes += 2 * sizeof(int64_t) * tensor.shape.rank();
  return nbytes + kMallocBytes + tensor.intervals.size() * sizeof(StoredInterval);
}

absl::StatusOr<int> FileMember(const JsonView& object, const FileIndex& index) {
  FSDP_ASSIGN_OR_RETURN(const std::string name, StringMember(object, "file"));
  return FindFile(name, index);
}

// OK when `range` is inside one extent of the file.
absl::Status CheckInExtent(const StoredFile& file, const ByteRange& range) {
  const auto after =
      std::upper_bound(file.extents.begin(), file.extents.end(), range.offset,
                       [](int64_t offset, const StoredExtent& extent) { return offset < extent.range.offset; });
  const bool inside = after != file.extents.begin() && range.end() <= std::prev(after)->range.end();
  if (inside) return absl::OkStatus();
  return Broken(absl::StrCat(Describe(range), " of ", file.name, " are not inside an extent"));
}

absl::StatusOr<StateKey> DecodeKey(const JsonView& object) {
  FSDP_ASSIGN_OR_RETURN(std::string name, StringMember(object, "name"));
  StateKey key;
  if (name == "optim/param_groups") {
    key = StateKey::ParamGroups();
  } else if (absl::StartsWith(name, "model/")) {
    key = StateKey::Model(std::move(name.erase(0, 6)));
  } else if (absl::StartsWith(name, "extra/")) {
    key = StateKey::Extra(std::move(name.erase(0, 6)));
  } else if (absl::StartsWith(name, "optim/state/")) {
    FSDP_ASSIGN_OR_RETURN(const std::string state, StringMember(object, "state"));
    // Both the FQN and the state may contain slashes, so only the separate "state" member tells how to cut the name.
    const std::string fqn_and_slash = name.substr(12, name.size() - 12 - std::min(name.size() - 12, state.size()));
    if (fqn_and_slash.empty() || fqn_and_slash.back() != '/' || !absl::EndsWith(name, state)) {
      return Broken(absl::StrCat("the name does not end with its state ", Quote(state)));
    }
    key = StateKey::OptimState(fqn_and_slash.substr(0, fqn_and_slash.size() - 1), state);
  } else {
    return Broken("the name has no known section");
  }
  const absl::Status valid = CheckStateKey(key);
  return valid.ok() ? absl::StatusOr<StateKey>(std::move(key)) : Broken(std::string(valid.message()));
}

absl::StatusOr<StoredInterval> DecodeInterval(const JsonView& object, const StoredTensor& tensor,
                                              const StoredValues& values, const FileIndex& index) {
  StoredInterval stored;
  FSDP_ASSIGN_OR_RETURN(stored.interval.begin, IntegerMember(object, "begin"));
  FSDP_ASSIGN_OR_RETURN(stored.interval.end, IntegerMember(object, "end"));
  FSDP_ASSIGN_OR_RETURN(stored.file, FileMember(object, index));
  FSDP_ASSIGN_OR_RETURN(stored.offset, IntegerMember(object, "offset"));
  if (stored.interval.begin > stored.interval.end || stored.interval.end > tensor.shape.numel()) {
    return Broken(absl::StrCat("interval ", stored.interval.ToString(), " of ", tensor.shape.numel(), " elements"));
  }
  // An empty interval has no bytes, so its offset needs no extent. Neither multiplication nor sum below may wrap: a
  // negative size would pass CheckInExtent.
  if (stored.interval.empty()) return stored;
  ByteRange range = {stored.offset, 0};
  if (__builtin_mul_overflow(stored.interval.size(), SizeOf(tensor.dtype), &range.nbytes) ||
      range.nbytes > std::numeric_limits<int64_t>::max() - range.offset) {
    return Broken("the offset overflows");
  }
  FSDP_RETURN_IF_ERROR(CheckInExtent(values.files[stored.file], range));
  return stored;
}

// Intervals are sorted here, so that readers can bisect; whether they cover the tensor is left to CheckCovered, since a
// record has only some of them.
absl::StatusOr<StoredTensor> DecodeTensor(const JsonView& object, const StoredValues& values, const FileIndex& index,
                                          DecodeBudget& budget) {
  StoredTensor tensor;
  FSDP_ASSIGN_OR_RETURN(tensor.key, DecodeKey(object));
  FSDP_ASSIGN_OR_RETURN(const std::string dtype, StringMember(object, "dtype"));
  if (tensor.key.section == StateKey::Section::kParamGroups) return Broken("param_groups are a text");
  const absl::StatusOr<DType> known = ParseDType(dtype);
  if (!known.ok()) return Broken(absl::StrCat("unknown dtype ", Quote(dtype)));
  tensor.dtype = *known;
  FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, IntegerArrayMember(object, "shape", kMaxDimensions));
  const absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) return Broken(std::string(shape.status().message()));
  tensor.shape = *shape;
  if (const auto aliases = object.Find("aliases")) {
    // CheckNames has a view of each. An alias takes more memory than text, so the budget comes first.
    const int64_t count = aliases->size();
    FSDP_RETURN_IF_ERROR(budget.Take(count * (sizeof(std::string) + sizeof(std::string_view))));
    FSDP_ASSIGN_OR_RETURN(tensor.aliases, StringArrayMember(object, "aliases", count));
  }
  FSDP_ASSIGN_OR_RETURN(const JsonView intervals, ArrayMember(object, "intervals"));
  tensor.intervals.reserve(MostElements(intervals, kShortestInterval));
  for (const JsonView value : intervals) {
    FSDP_ASSIGN_OR_RETURN(const StoredInterval stored, DecodeInterval(value, tensor, values, index));
    tensor.intervals.push_back(stored);
  }
  std::sort(tensor.intervals.begin(), tensor.intervals.end(),
            [](const StoredInterval& a, const StoredInterval& b) { return a.interval.begin < b.interval.begin; });
  tensor.unknown = UnknownMembers(object, {"name", "state", "dtype", "shape", "aliases", "intervals"});
  FSDP_RETURN_IF_ERROR(budget.Take(MemoryOf(tensor)));
  return tensor;
}

absl::StatusOr<StoredText> DecodeText(const JsonView& object, const StoredValues& values, const FileIndex& index) {
  StoredText text;
  FSDP_ASSIGN_OR_RETURN(text.key, DecodeKey(object));
  FSDP_ASSIGN_OR_RETURN(text.file, FileMember(object, index));
  FSDP_ASSIGN_OR_RETURN(text.range, DecodeRange(object));
  if (text.range.nbytes > kMaxTextBytes) return Broken(absl::StrCat("a text of ", text.range.nbytes, " bytes"));
  if (text.range.nbytes > 0) FSDP_RETURN_IF_ERROR(CheckInExtent(values.files[text.file], text.range));
  return text;
}

// A name denotes one value: no two tensors, texts or aliases may share one.
absl::Status CheckNames(const StoredValues& values) {
  // Sorted pointers and views: sets would copy every name.
  std::vector<const StateKey*> keys;
  std::vector<std::string_view> aliases;
  keys.reserve(values.tensors.size() + values.texts.size());
  size_t alias_count = 0;
  for (const StoredTensor& tensor : values.tensors) alias_count += tensor.aliases.size();
  aliases.reserve(alias_count);
  for (const StoredTensor& tensor : values.tensors) {
    keys.push_back(&tensor.key);
    for (const std::string& alias : tensor.aliases) {
      if (const absl::Status valid = CheckTensorName(alias); !valid.ok()) return Broken(std::string(valid.message()));
    }
    aliases.insert(aliases.end(), tensor.aliases.begin(), tensor.aliases.end());
  }
  for (const StoredText& text : values.texts) keys.push_back(&text.key);
  const auto before = [](const StateKey* a, const StateKey* b) { return *a < *b; };
  std::sort(keys.begin(), keys.end(), before);
  const auto twice =
      std::adjacent_find(keys.begin(), keys.end(), [](const StateKey* a, const StateKey* b) { return *a == *b; });
  if (twice != keys.end()) return Broken(absl::StrCat(Describe(**twice), " is named twice"));
  std::sort(aliases.begin(), aliases.end());
  const auto alias_twice = std::adjacent_find(aliases.begin(), aliases.end());
  if (alias_twice != aliases.end()) return Broken(absl::StrCat("alias ", Quote(*alias_twice), " is named twice"));
  for (const std::string_view alias : aliases) {
    const StateKey key = StateKey::Model(std::string(alias));
    if (std::binary_search(keys.begin(), keys.end(), &key, before)) {
      return Broken(absl::StrCat(Quote(alias), " is a tensor and an alias"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<FlatUnitLayout::Entry> DecodeParameter(const JsonView& object, const FlatUnitLayout& unit) {
  FlatUnitLayout::Entry entry;
  FSDP_ASSIGN_OR_RETURN(entry.fqn, StringMember(object, "fqn"));
  if (const absl::Status valid = CheckTensorName(entry.fqn); !valid.ok()) {
    return Broken(absl::StrCat("unit ", Quote(unit.name), ": ", valid.message()));
  }
  FSDP_ASSIGN_OR_RETURN(entry.offset, IntegerMember(object, "offset"));
  FSDP_ASSIGN_OR_RETURN(entry.numel, IntegerMember(object, "numel"));
  if (entry.offset <= unit.unsharded_numel && entry.numel <= unit.unsharded_numel - entry.offset) return entry;
  return Broken(absl::StrCat("unit ", Quote(unit.name), ": parameter ", Quote(entry.fqn), " is outside of it"));
}

}  // namespace

// Readers add up the bytes of all tensors.
absl::Status DecodeValues(const JsonView& document, const FileIndex& index, DecodeBudget& budget,
                          StoredValues& values) {
  int64_t total = 0;
  FSDP_ASSIGN_OR_RETURN(const JsonView tensors, ArrayMember(document, "tensors"));
  values.tensors.reserve(MostElements(tensors, kShortestTensor));
  for (const JsonView value : tensors) {
    absl::StatusOr<StoredTensor> tensor = DecodeTensor(value, values, index, budget);
    if (!tensor.ok()) return In(absl::StrCat("tensor ", NameOf(value)), tensor.status());
    int64_t nbytes = 0;
    if (__builtin_mul_overflow(tensor->shape.numel(), SizeOf(tensor->dtype), &nbytes) ||
        __builtin_add_overflow(total, nbytes, &total)) {
      return Broken(absl::StrCat("the tensors up to ", NameOf(value), " have 2^63 bytes or more"));
    }
    values.tensors.push_back(*std::move(tensor));
  }
  FSDP_ASSIGN_OR_RETURN(const JsonView texts, ArrayMember(document, "texts"));
  values.texts.reserve(MostElements(texts, kShortestText));
  for (const JsonView value : texts) {
    absl::StatusOr<StoredText> text = DecodeText(value, values, index);
    if (!text.ok()) return In(absl::StrCat("text ", NameOf(value)), text.status());
    FSDP_RETURN_IF_ERROR(budget.Take(sizeof(*text) + sizeof(void*) + HeapBytesOf(text->key)));
    values.texts.push_back(*std::move(text));
  }
  return CheckNames(values);
}

// Parameters of a unit must be inside its flat parameter: views and loads compute offsets from them.
absl::Status DecodeUnits(const JsonView& document, DecodeBudget& budget, std::vector<FlatUnitLayout>& units) {
  FSDP_ASSIGN_OR_RETURN(const JsonView array, ArrayMember(document, "units"));
  units.reserve(MostElements(array, kShortestUnit));
  for (const JsonView value : array) {
    FlatUnitLayout unit;
    FSDP_ASSIGN_OR_RETURN(unit.name, StringMember(value, "name"));
    FSDP_ASSIGN_OR_RETURN(unit.unsharded_numel, IntegerMember(value, "unsharded_numel"));
    FSDP_ASSIGN_OR_RETURN(const JsonView parameters, ArrayMember(value, "parameters"));
    unit.parameters.reserve(MostElements(parameters, kShortestParameter));
    for (const JsonView parameter : parameters) {
      FSDP_ASSIGN_OR_RETURN(FlatUnitLayout::Entry entry, DecodeParameter(parameter, unit));
      FSDP_RETURN_IF_ERROR(budget.Take(sizeof(entry) + HeapBytes(entry.fqn)));
      unit.parameters.push_back(std::move(entry));
    }
    FSDP_RETURN_IF_ERROR(budget.Take(sizeof(unit) + HeapBytes(unit.name)));
    units.push_back(std::move(unit));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
