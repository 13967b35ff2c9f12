// SPDX-License-Identifier: Apache-2.0
//
// The pure half of hdf5_listing.h: it runs in the parent, on an answer that a hijacked child may have written. So
// decoding checks every field's type, sizes are recomputed from dtype and shape, and every place is checked against the
// size of the file and against the other places. Only after that may a reader use an offset.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/hdf5/hdf5_listing.h"
#include "fsdp/checkpoint/source/decode_budget.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxDims = 32;  // HDF5's

// The shortest dataset (MostElements).
constexpr std::string_view kShortestDataset =
    R"({"path":"","fqn":"","type":"","dims":[],"offset":0,"nbytes":0,"layout":""})";

absl::Status Wrong(const Hdf5Dataset& dataset, const std::string& what) {
  return absl::DataLossError(absl::StrCat("dataset ", Quote(dataset.path), ": ", what));
}

absl::Status Wrong(const std::string& attribute) {
  return absl::DataLossError(absl::StrCat("attribute ", Quote(attribute), ": expected a scalar"));
}

absl::StatusOr<Hdf5Dataset> DecodeDataset(const JsonView& json) {
  Hdf5Dataset dataset;
  FSDP_ASSIGN_OR_RETURN(dataset.path, StringMember(json, "path"));
  FSDP_ASSIGN_OR_RETURN(dataset.fqn, StringMember(json, "fqn"));
  FSDP_ASSIGN_OR_RETURN(dataset.type, StringMember(json, "type"));
  FSDP_ASSIGN_OR_RETURN(dataset.dims, IntegerArrayMember(json, "dims", kMaxDims));
  FSDP_ASSIGN_OR_RETURN(dataset.offset, IntegerMember(json, "offset"));
  FSDP_ASSIGN_OR_RETURN(dataset.nbytes, IntegerMember(json, "nbytes"));
  FSDP_ASSIGN_OR_RETURN(dataset.layout, StringMember(json, "layout"));
  return dataset;
}

// The memory of a dataset and of its pointer in CheckHdf5Listing.
size_t MemoryOf(const Hdf5Dataset& dataset) {
  constexpr size_t kMallocBytes = 16;
  return sizeof(dataset) + sizeof(void*) + HeapBytes(dataset.path) + HeapBytes(dataset.fqn) + HeapBytes(dataset.type) +
         HeapBytes(dataset.layout) + dataset.dims.size() * sizeof(int64_t) + kMallocBytes;
}

absl::StatusOr<Hdf5Alias> DecodeAlias(const JsonView& json) {
  Hdf5Alias alias;
  FSDP_ASSIGN_OR_RETURN(alias.path, StringMember(json, "path"));
  FSDP_ASSIGN_OR_RETURN(alias.target, StringMember(json, "target"));
  return alias;
}

// A JSON text within the text, since a JsonView reads no numbers but offsets.
std::string EncodeScalar(const AttributeValue& value) {
  Json json;
  if (const auto* const truth = std::get_if<bool>(&value)) json = *truth;
  if (const auto* const number = std::get_if<int64_t>(&value)) json = *number;
  if (const auto* const number = std::get_if<double>(&value)) json = *number;
  if (const auto* const text = std::get_if<std::string>(&value)) json = *text;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<AttributeValue> DecodeScalar(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_null()) return AttributeValue();
  if (json.is_boolean()) return AttributeValue(json.get<bool>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX}) return Wrong(text);
  if (json.is_number_integer()) return AttributeValue(json.get<int64_t>());
  if (json.is_number_float()) return AttributeValue(json.get<double>());
  if (json.is_string()) return AttributeValue(json.get<std::string>());
  return Wrong(text);
}

// The child counts as here, so more can only come from a hijacked one.
absl::Status DecodeAttributes(const JsonView& array, RunMetadata& attributes) {
  size_t nbytes = 0;
  for (const JsonView item : array) {
    FSDP_ASSIGN_OR_RETURN(const std::string name, StringMember(item, "name"));
    FSDP_ASSIGN_OR_RETURN(const std::string value, StringMember(item, "value"));
    nbytes += name.size() + value.size();
    if (std::ssize(attributes) == kMaxHdf5Attributes || nbytes > 8 * kMaxHdf5AttributeBytes) {
      return absl::DataLossError("there are too many attributes");
    }
    FSDP_ASSIGN_OR_RETURN(attributes[name], DecodeScalar(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<Hdf5LeftOut> DecodeLeftOut(const JsonView& json) {
  Hdf5LeftOut left_out;
  FSDP_ASSIGN_OR_RETURN(left_out.path, StringMember(json, "path"));
  FSDP_ASSIGN_OR_RETURN(left_out.kind, StringMember(json, "kind"));
  FSDP_ASSIGN_OR_RETURN(left_out.target, StringMember(json, "target"));
  FSDP_ASSIGN_OR_RETURN(left_out.file, StringMember(json, "file"));
  return left_out;
}

// OK when the dataset has as many bytes as its type and dims require, recomputed from the shape: the listed size may
// have overflowed.
absl::Status CheckSize(const Hdf5Dataset& dataset) {
  const absl::StatusOr<Shape> shape = Shape::Create(dataset.dims);
  if (!shape.ok()) return Wrong(dataset, std::string(shape.status().message()));
  if (dataset.type.empty() || dataset.type == "text") return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const DType dtype, ParseDType(dataset.type));
  // A product that wraps could be any size, such as 0 for 2^64 bytes.
  int64_t expected = 0;
  const bool overflows = __builtin_mul_overflow(shape->numel(), SizeOf(dtype), &expected);
  if (!overflows && dataset.nbytes == expected) return absl::OkStatus();
  return Wrong(dataset, absl::StrCat("it has ", dataset.nbytes, " bytes, expected ",
                                     overflows ? "2^63 or more" : absl::StrCat(expected), " for ", shape->ToString(),
                                     " of ", dataset.type));
}

}  // namespace

std::string Describe(const Hdf5LeftOut& left_out) {
  const std::string to = left_out.target.empty() ? "" : absl::StrCat(" to ", Quote(left_out.target));
  const std::string in = left_out.file.empty() ? "" : absl::StrCat(" in file ", Quote(left_out.file));
  return absl::StrCat(Quote(left_out.path), " (", Printable(left_out.kind), to, in, ")");
}

std::string EncodeHdf5Listing(const Hdf5Listing& listing) {
  Json datasets = Json::array();
  for (const Hdf5Dataset& dataset : listing.datasets) {
    datasets.push_back({{"path", dataset.path},
                        {"fqn", dataset.fqn},
                        {"type", dataset.type},
                        {"dims", dataset.dims},
                        {"offset", dataset.offset},
                        {"nbytes", dataset.nbytes},
                        {"layout", dataset.layout}});
  }
  Json left_out = Json::array();
  for (const Hdf5LeftOut& other : listing.left_out) {
    left_out.push_back({{"path", other.path}, {"kind", other.kind}, {"target", other.target}, {"file", other.file}});
  }
  Json groups = Json::array();
  for (const Hdf5Group& group : listing.groups) groups.push_back({{"path", group.path}, {"name", group.name}});
  Json aliases = Json::array();
  for (const Hdf5Alias& alias : listing.aliases) aliases.push_back({{"path", alias.path}, {"target", alias.target}});
  Json attributes = Json::array();
  for (const auto& [name, value] : listing.attributes) {
    attributes.push_back({{"name", name}, {"value", EncodeScalar(value)}});
  }
  const Json json = {{"datasets", std::move(datasets)}, {"groups", std::move(groups)},
                     {"aliases", std::move(aliases)},   {"attributes", std::move(attributes)},
                     {"left_out", std::move(left_out)}, {"left_out_count", listing.left_out_count}};
  // HDF5 names need not be UTF-8. Ours always are, so replacing other bytes loses nothing.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<Hdf5Listing> DecodeHdf5Listing(std::string_view text) {
  FSDP_ASSIGN_OR_RETURN(const JsonView json, JsonView::Parse(text));
  FSDP_ASSIGN_OR_RETURN(const JsonView datasets, ArrayMember(json, "datasets"));
  FSDP_ASSIGN_OR_RETURN(const JsonView left_out, ArrayMember(json, "left_out"));
  FSDP_ASSIGN_OR_RETURN(const JsonView aliases, ArrayMember(json, "aliases"));
  FSDP_ASSIGN_OR_RETURN(const JsonView attributes, ArrayMember(json, "attributes"));
  Hdf5Listing listing;
  FSDP_RETURN_IF_ERROR(DecodeAttributes(attributes, listing.attributes));
  FSDP_ASSIGN_OR_RETURN(listing.left_out_count, IntegerMember(json, "left_out_count"));
  // A hijacked child must not hide links: the list has all of them, or is full.
  if (left_out.size() != std::min(kMaxHdf5LeftOut, listing.left_out_count)) {
    return absl::DataLossError(absl::StrCat(left_out.size(), " links are listed of ", listing.left_out_count));
  }
  DecodeBudget budget(text.size());
  listing.datasets.reserve(MostElements(datasets, kShortestDataset));
  for (const JsonView item : datasets) {
    if (!item.is_object()) return absl::DataLossError("a dataset is not an object");
    FSDP_ASSIGN_OR_RETURN(Hdf5Dataset dataset, DecodeDataset(item));
    FSDP_RETURN_IF_ERROR(budget.Take(MemoryOf(dataset)));
    listing.datasets.push_back(std::move(dataset));
  }
  if (const std::optional<JsonView> groups = json.Find("groups"); groups && groups->is_array()) {
    for (const JsonView item : *groups) {
      if (!item.is_object()) return absl::DataLossError("a group is not an object");
      Hdf5Group group;
      FSDP_ASSIGN_OR_RETURN(group.path, StringMember(item, "path"));
      FSDP_ASSIGN_OR_RETURN(group.name, StringMember(item, "name"));
      FSDP_RETURN_IF_ERROR(budget.Take(2 * sizeof(group) + HeapBytes(group.path) + HeapBytes(group.name)));
      listing.groups.push_back(std::move(group));
    }
  }
  for (const JsonView item : aliases) {
    if (!item.is_object()) return absl::DataLossError("an alias is not an object");
    FSDP_ASSIGN_OR_RETURN(Hdf5Alias alias, DecodeAlias(item));
    FSDP_RETURN_IF_ERROR(budget.Take(2 * sizeof(alias) + HeapBytes(alias.path) + HeapBytes(alias.target)));
    listing.aliases.push_back(std::move(alias));
  }
  for (const JsonView item : left_out) {
    if (!item.is_object()) return absl::DataLossError("a link is not an object");
    FSDP_ASSIGN_OR_RETURN(listing.left_out.emplace_back(), DecodeLeftOut(item));
  }
  return listing;
}

absl::Status CheckHdf5Listing(const std::vector<Hdf5Dataset>& datasets, int64_t file_bytes) {
  std::vector<const Hdf5Dataset*> placed;
  for (const Hdf5Dataset& dataset : datasets) {
    FSDP_RETURN_IF_ERROR(CheckSize(dataset));
    if (!dataset.layout.empty() || dataset.nbytes == 0) continue;
    // Written so that nothing overflows: `offset + nbytes` might.
    if (dataset.offset > file_bytes || dataset.nbytes > file_bytes - dataset.offset) {
      return Wrong(dataset, absl::StrCat("its ", dataset.nbytes, " bytes at ", dataset.offset,
                                         " reach behind the end of the file, which has ", file_bytes));
    }
    placed.push_back(&dataset);
  }
  // Overlap would show one dataset's bytes under two names. After sorting only neighbours can overlap.
  std::sort(placed.begin(), placed.end(),
            [](const Hdf5Dataset* a, const Hdf5Dataset* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < placed.size(); ++i) {
    const Hdf5Dataset& before = *placed[i - 1];
    if (before.offset + before.nbytes <= placed[i]->offset) continue;
    return Wrong(*placed[i], absl::StrCat("its bytes from ", placed[i]->offset, " on overlap ", Quote(before.path)));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
