// SPDX-License-Identifier: Apache-2.0
//
// The rules are the reference library's, so that both accept the same files: a header that one program accepts and
// another rejects, or reads differently, could hide data (bytes outside all tensors) or show two programs two models
// (overlapping tensors, a name twice).
//
// Reading is one pass over the text (json_events.h) that stores entries and never a JSON tree, in at most four times
// the text and 64 MiB (decode_budget.h): a header can have 100 MB. HeaderVisitor holds the tensor whose object is open;
// EndObject checks it and appends it. Then CheckPayloadCover sorts the entries by offset, which reduces "covers
// exactly" to comparing neighbours.
//
// Writing puts entries in the reference library's order and produces the same text, so equal models give equal files.
#include "fsdp/checkpoint/foreign/safetensors/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_dtype.h"
#include "fsdp/checkpoint/source/decode_budget.h"
#include "fsdp/checkpoint/source/json_events.h"
#include "fsdp/checkpoint/source/json_token.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

constexpr char kMetadata[] = "__metadata__";

// `status` with the tensor's name in front.
absl::Status OfTensor(std::string_view name, const absl::Status& status) {
  if (status.ok()) return status;
  return Annotate(status, absl::StrCat("tensor ", Quote(name)));
}

// All errors about types have one form: the member, the type found, the type expected.
absl::Status WrongType(const std::string& what, const std::string& expected, const std::string& found) {
  return absl::DataLossError(absl::StrCat(what, " is ", found, ", expected ", expected));
}

// Collects entries, in the order of the text. Names have at most two levels: a tensor and its member.
class HeaderVisitor final : public JsonVisitor {
 public:
  explicit HeaderVisitor(DecodeBudget& budget) : budget_(budget) {}

  // `place` is the parser's position in the header; the header itself has no names, a tensor one, its members two.
  absl::Status StartObject(const JsonPlace& place) override {
    if (place.arrays == 0 && place.names.size() < 2) {
      if (place.names.size() == 1) current_.Clear();
      return absl::OkStatus();
    }
    return Unexpected(place, "an object");
  }

  // The members of a tensor come in any order, so it is checked when its object ends.
  absl::Status EndObject(const JsonPlace& place) override {
    if (place.names.size() != 1 || place.arrays != 0 || place.names[0] == kMetadata) return absl::OkStatus();
    return OfTensor(place.names[0], Finish(place.names[0]));
  }

  absl::Status StartArray(const JsonPlace& place) override {
    Numbers* const list = place.arrays == 0 ? ListAt(place) : nullptr;
    if (list == nullptr) return Unexpected(place, "an array");
    list->is_given = true;
    return absl::OkStatus();
  }

  absl::Status String(const JsonPlace& place, std::string_view value) override {
    if (place.names.size() == 2 && place.arrays == 0) {
      if (place.names[0] == kMetadata) {
        const auto added = header.metadata.emplace(place.names[1], value).first;
        return budget_.Take(kNodeBytes + HeapBytes(added->first) + HeapBytes(added->second));
      }
      if (place.names[1] == "dtype") {
        current_.dtype.emplace(value);
        return absl::OkStatus();
      }
    }
    return Unexpected(place, "a string");
  }

  absl::Status Unsigned(const JsonPlace& place, uint64_t value) override {
    Numbers* const list = place.arrays == 1 ? ListAt(place) : nullptr;
    if (list == nullptr) return Unexpected(place, "a number");
    if (list->values.size() == kMaxNumbers) {
      return OfTensor(place.names[0],
                      absl::DataLossError(absl::StrCat(place.names[1], " has more than ", kMaxNumbers, " numbers")));
    }
    list->values.push_back(value);
    return absl::OkStatus();
  }

  absl::Status Other(const JsonPlace& place, std::string_view what, const nlohmann::json&) override {
    return Unexpected(place, std::string(what));
  }

  SafetensorsHeader header;

 private:
  static constexpr size_t kMaxNumbers = 64;  // of a shape: PyTorch's and NumPy's most dimensions
  static constexpr size_t kNodeBytes = 112;  // of a map of strings

  struct Numbers {
    bool is_given = false;
    std::vector<uint64_t> values;
  };

  // The members of the current tensor.
  struct Members {
    std::optional<std::string> dtype;
    Numbers shape;
    Numbers data_offsets;

    // Keeps the memory: there may be a million tensors.
    void Clear() {
      dtype.reset();
      for (Numbers* list : {&shape, &data_offsets}) {
        list->is_given = false;
        list->values.clear();
      }
    }
  };

  // The destination for the numbers of an array at `place`; null for an array that the format does not define.
  Numbers* ListAt(const JsonPlace& place) {
    if (place.names.size() != 2 || place.names[0] == kMetadata) return nullptr;
    if (place.names[1] == "shape") return &current_.shape;
    if (place.names[1] == "data_offsets") return &current_.data_offsets;
    return nullptr;
  }

  // The error for a value of the wrong type at `place`; OK for members of a tensor that the format does not define,
  // because the reference library ignores them.
  static absl::Status Unexpected(const JsonPlace& place, const std::string& found) {
    if (place.names.empty()) return WrongType("the header", "an object", found);
    const std::string& name = place.names[0];
    if (name == kMetadata) {
      if (place.names.size() == 1) return WrongType(kMetadata, "an object of strings", found);
      return WrongType(absl::StrCat(kMetadata, " member ", Quote(place.names[1])), "a string", found);
    }
    if (place.names.size() == 1) return OfTensor(name, WrongType("its description", "an object", found));
    const std::string& member = place.names[1];
    if (member == "dtype") return OfTensor(name, WrongType("dtype", "a string", found));
    if (member != "shape" && member != "data_offsets") return absl::OkStatus();
    // In an array the value is one of its numbers.
    const std::string what = absl::StrCat(place.arrays == 0 ? "" : "a number in ", member);
    return OfTensor(name, WrongType(what, place.arrays == 0 ? "an array" : "an unsigned integer", found));
  }

  // Checks the members of the tensor whose object ends here, and appends it. The sizes are compared as unsigned numbers
  // that are known to fit in int64: a hostile shape cannot wrap around to a small one (Shape::Create refuses it).
  absl::Status Finish(const std::string& name) {
    if (!current_.dtype) return absl::DataLossError("dtype is missing");
    if (!current_.shape.is_given) return absl::DataLossError("shape is missing");
    if (!current_.data_offsets.is_given) return absl::DataLossError("data_offsets is missing");
    FSDP_ASSIGN_OR_RETURN(DType dtype, ParseSafetensorsDType(*current_.dtype));
    if (IsPacked(dtype)) FSDP_RETURN_IF_ERROR(HalveLast(*current_.dtype, current_.shape.values));
    FSDP_ASSIGN_OR_RETURN(Shape shape, ToShape(current_.shape.values));
    const std::vector<uint64_t>& offsets = current_.data_offsets.values;
    if (offsets.size() != 2) {
      return absl::DataLossError(absl::StrCat("data_offsets has ", offsets.size(), " numbers, expected 2"));
    }
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    if (offsets[0] > offsets[1] || offsets[1] > kMax) {
      return absl::DataLossError(absl::StrCat("data_offsets [", offsets[0], ", ", offsets[1], "] is not a range"));
    }
    const uint64_t expected = static_cast<uint64_t>(shape.numel()) * SizeOf(dtype);
    if (offsets[1] - offsets[0] != expected) {
      return absl::DataLossError(absl::StrCat("data_offsets [", offsets[0], ", ", offsets[1], "] has ",
                                              offsets[1] - offsets[0], " bytes, expected ", expected, " for ",
                                              std::string(DTypeName(dtype)), " ", shape.ToString()));
    }
    const size_t dims_bytes = shape.rank() > 4 ? 2 * sizeof(int64_t) * shape.rank() : 0;
    FSDP_RETURN_IF_ERROR(budget_.Take(sizeof(SafetensorsEntry) + HeapBytes(name) + dims_bytes));
    header.entries.push_back(
        {name, dtype, std::move(shape), static_cast<int64_t>(offsets[0]), static_cast<int64_t>(offsets[1])});
    return absl::OkStatus();
  }

  // The format counts single numbers, and a packed dtype has two in an element. PyTorch has the same rule for the last
  // dimension.
  static absl::Status HalveLast(const std::string& name, std::vector<uint64_t>& dims) {
    if (!dims.empty() && dims.back() % 2 == 0) {
      dims.back() /= 2;
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat("shape [", absl::StrJoin(dims, ", "), "] of ", name,
                                            ", whose numbers are stored in pairs: expected an even last dimension"));
  }

  // Dimensions are unsigned in the format, and signed here.
  absl::StatusOr<Shape> ToShape(const std::vector<uint64_t>& dims) {
    signed_dims_.clear();
    for (uint64_t dim : dims) {
      if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return absl::DataLossError(absl::StrCat("shape has a dimension of ", dim, ", beyond 64-bit signed integers"));
      }
      signed_dims_.push_back(static_cast<int64_t>(dim));
    }
    absl::StatusOr<Shape> shape = Shape::Create(signed_dims_);
    if (!shape.ok()) return absl::DataLossError(shape.status().message());
    return shape;
  }

  DecodeBudget& budget_;
  Members current_;
  std::vector<int64_t> signed_dims_;  // keeps its memory, as the lists of Members do
};

// How many tensors `json` has at most, for a reservation: a vector that grows holds two copies.
size_t MostTensors(std::string_view json) {
  constexpr std::string_view kShortest = R"("":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)";
  return std::min<size_t>(std::count(json.begin(), json.end(), '{'), json.size() / kShortest.size() + 1);
}

// Sorts entries by offset and checks that they cover the payload without holes, overlap or trailing bytes.
absl::Status CheckPayloadCover(std::vector<SafetensorsEntry>& entries, int64_t payload_bytes) {
  const auto is_before = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  };
  // A header is mostly in the order of the payload.
  if (!std::is_sorted(entries.begin(), entries.end(), is_before)) {
    std::sort(entries.begin(), entries.end(), is_before);
  }
  int64_t end = 0;
  std::string_view previous;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin > end) {
      return OfTensor(entry.name, absl::DataLossError(absl::StrCat("begins at byte ", entry.begin,
                                                                   " of the payload, expected ", end, ": bytes [", end,
                                                                   ", ", entry.begin, ") belong to no tensor")));
    }
    if (entry.begin < end) {
      return OfTensor(entry.name, absl::DataLossError(absl::StrCat("begins at byte ", entry.begin,
                                                                   " of the payload, inside tensor ", Quote(previous),
                                                                   ", which ends at ", end)));
    }
    end = entry.end;
    previous = entry.name;
  }
  if (end < payload_bytes) {
    return absl::DataLossError(absl::StrCat("bytes [", end, ", ", payload_bytes,
                                            ") of the payload belong to no tensor, expected its end at ", end));
  }
  if (end > payload_bytes) {
    return OfTensor(previous, absl::DataLossError(absl::StrCat("ends at byte ", end, " of the payload, which has ",
                                                               payload_bytes, " bytes: the file is truncated")));
  }
  return absl::OkStatus();
}

// The format's own rules for names and dtypes, before anything is written.
absl::Status CheckWritable(const SafetensorsHeader& header) {
  std::vector<std::string_view> names;
  names.reserve(header.entries.size());
  for (const SafetensorsEntry& entry : header.entries) {
    names.push_back(entry.name);
    if (IsPacked(entry.dtype) && entry.shape.rank() == 0) {
      return OfTensor(
          entry.name,
          absl::InvalidArgumentError(absl::StrCat(
              "a scalar of ", std::string(DTypeName(entry.dtype)),
              " is two numbers, and safetensors has no shape for it; write another format, or leave it out")));
    }
    if (HasSafetensorsDType(entry.dtype)) continue;
    return OfTensor(entry.name, absl::InvalidArgumentError(
                                    absl::StrCat("safetensors has no dtype ", std::string(DTypeName(entry.dtype)),
                                                 "; write another format, or leave the tensor out")));
  }
  // Sorting a million names takes longer than all other checks, and a model of one dtype is in the order of its names.
  if (!std::is_sorted(names.begin(), names.end())) std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    return OfTensor(*twice, absl::InvalidArgumentError("two tensors have this name"));
  }
  if (std::binary_search(names.begin(), names.end(), kMetadata)) {
    return OfTensor(kMetadata, absl::InvalidArgumentError("safetensors keeps this name for itself"));
  }
  return absl::OkStatus();
}

// Escapes as the reference library does. nlohmann throws only for bytes that are not UTF-8; no exception leaves this
// function.
absl::Status AppendJsonString(std::string_view text, std::string& out) {
  if (IsPlainJson(text)) {
    out.append(1, '"').append(text).append(1, '"');
    return absl::OkStatus();
  }
  try {
    out += nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError(absl::StrCat(Quote(text), " is not UTF-8"));
  }
  return absl::OkStatus();
}

absl::Status AppendMetadata(const std::map<std::string, std::string>& metadata, std::string& json) {
  absl::StrAppend(&json, "\"", kMetadata, "\":{");
  std::string_view comma = "";
  for (const auto& [name, value] : metadata) {
    json += comma;
    FSDP_RETURN_IF_ERROR(AppendJsonString(name, json));
    json += ':';
    FSDP_RETURN_IF_ERROR(AppendJsonString(value, json));
    comma = ",";
  }
  json += '}';
  return absl::OkStatus();
}

}  // namespace

bool IsSafetensorsHead(std::string_view head) {
  uint64_t header_bytes = 0;  // little-endian, as this machine is
  if (head.size() <= sizeof(header_bytes) || !absl::StrContains("{ \t\r\n", head[sizeof(header_bytes)])) return false;
  std::memcpy(&header_bytes, head.data(), sizeof(header_bytes));
  return header_bytes <= static_cast<uint64_t>(kMaxSafetensorsHeaderBytes);
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t payload_bytes) {
  // The format requires '{' as the first byte; white space before it is harmless.
  const size_t first = json.find_first_not_of(" \t\r\n");
  if (first == json.npos || json[first] != '{') return absl::DataLossError("the header does not begin with '{'");
  DecodeBudget budget(json.size());
  HeaderVisitor visitor(budget);
  visitor.header.entries.reserve(MostTensors(json));
  FSDP_RETURN_IF_ERROR(VisitJson(json, visitor, budget));
  FSDP_RETURN_IF_ERROR(CheckPayloadCover(visitor.header.entries, payload_bytes));
  return std::move(visitor.header);
}

// Larger alignments first: every tensor then begins at a multiple of its element size, since sizes are powers of two.
void PlaceSafetensorsEntries(std::vector<SafetensorsEntry>& entries) {
  const auto is_before = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    const int order_a = SafetensorsDTypeOrder(a.dtype);
    const int order_b = a.dtype == b.dtype ? order_a : SafetensorsDTypeOrder(b.dtype);
    return order_a != order_b ? order_a > order_b : a.name < b.name;
  };
  // The entries of a file that is converted are in this order already.
  if (!std::is_sorted(entries.begin(), entries.end(), is_before)) {
    std::sort(entries.begin(), entries.end(), is_before);
  }
  int64_t offset = 0;
  for (SafetensorsEntry& entry : entries) {
    entry.begin = offset;
    offset += entry.shape.numel() * SizeOf(entry.dtype);
    entry.end = offset;
  }
}

absl::StatusOr<std::string> EncodeSafetensorsHeader(const SafetensorsHeader& header) {
  FSDP_RETURN_IF_ERROR(CheckWritable(header));
  std::string out(sizeof(uint64_t), '\0');
  out += '{';
  std::string_view comma = "";
  if (!header.metadata.empty()) {
    FSDP_RETURN_IF_ERROR(AppendMetadata(header.metadata, out));
    comma = ",";
  }
  for (const SafetensorsEntry& entry : header.entries) {
    out += comma;
    FSDP_RETURN_IF_ERROR(AppendJsonString(entry.name, out));
    absl::StrAppend(&out, ":{\"dtype\":\"", std::string(SafetensorsDTypeName(entry.dtype)), "\",\"shape\":[");
    for (int d = 0; d < entry.shape.rank(); ++d) {
      // The format counts single numbers.
      const bool is_halved = IsPacked(entry.dtype) && d + 1 == entry.shape.rank();
      absl::StrAppend(&out, d == 0 ? "" : ",", entry.shape.dim(d) * (is_halved ? 2 : 1));
    }
    absl::StrAppend(&out, "],\"data_offsets\":[", entry.begin, ",", entry.end, "]}");
    comma = ",";
  }
  out += '}';
  // Spaces are JSON, and the payload then begins at a multiple of 8, which aligns every dtype.
  out.append((8 - out.size() % 8) % 8, ' ');
  const uint64_t json_bytes = out.size() - sizeof(uint64_t);
  if (json_bytes > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the safetensors header of ", header.entries.size(), " tensors has ",
                                                   json_bytes, " bytes, more than the format's limit of ",
                                                   kMaxSafetensorsHeaderBytes, "; write a directory of several files"));
  }
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(json_bytes >> (8 * i));
  return out;
}

}  // namespace fsdp
