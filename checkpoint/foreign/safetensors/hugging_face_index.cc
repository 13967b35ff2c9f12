// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/decode_budget.h"
#include "fsdp/checkpoint/source/json_events.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// True for the name of a file in a directory, which cannot lead up, down or out. The index may come from an untrusted
// origin, and these names are opened.
bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

// Reads weight_map and ignores the other members, whatever their form: programs store their own metadata there.
class IndexVisitor final : public JsonVisitor {
 public:
  explicit IndexVisitor(DecodeBudget& budget) : budget_(budget) {}

  absl::Status StartObject(const JsonPlace& place) override {
    if (place.names.empty() && place.arrays == 0) return absl::OkStatus();
    if (place.names.size() == 1 && place.arrays == 0 && place.names[0] == "weight_map") {
      has_weight_map_ = true;
      return absl::OkStatus();
    }
    return Unexpected(place, "an object");
  }

  // Called for the index itself last: an empty weight_map is accepted, an absent one is not.
  absl::Status EndObject(const JsonPlace& place) override {
    if (!place.names.empty() || has_weight_map_) return absl::OkStatus();
    return absl::DataLossError("weight_map is missing");
  }

  absl::Status StartArray(const JsonPlace& place) override { return Unexpected(place, "an array"); }

  absl::Status String(const JsonPlace& place, std::string_view value) override {
    if (place.names.size() != 2 || place.arrays != 0 || place.names[0] != "weight_map")
      return Unexpected(place, "a string");
    if (!IsPlainFileName(value)) {
      return absl::DataLossError(absl::StrCat("tensor ", Quote(place.names[1]), ": weight_map names ", Quote(value),
                                              ", expected a file of the same directory"));
    }
    // VisitJson has refused a second member of the same name.
    const auto added = index.weight_map.emplace(place.names[1], value).first;
    return budget_.Take(kNodeBytes + HeapBytes(added->first) + HeapBytes(added->second));
  }

  absl::Status Unsigned(const JsonPlace& place, uint64_t) override { return Unexpected(place, "a number"); }

  absl::Status Other(const JsonPlace& place, std::string_view what, const nlohmann::json&) override {
    return Unexpected(place, what);
  }

  HuggingFaceIndex index;

 private:
  static constexpr size_t kNodeBytes = 112;  // of a map of strings

  // The error for a value of the wrong type in weight_map; OK anywhere else.
  static absl::Status Unexpected(const JsonPlace& place, std::string_view found) {
    if (place.names.empty())
      return absl::DataLossError(absl::StrCat("the index is ", std::string(found), ", expected an object"));
    if (place.names[0] != "weight_map") return absl::OkStatus();
    if (place.names.size() == 1) {
      return absl::DataLossError(absl::StrCat("weight_map is ", std::string(found), ", expected an object"));
    }
    return absl::DataLossError(absl::StrCat("tensor ", Quote(place.names[1]), ": weight_map names ", std::string(found),
                                            ", expected the name of a file"));
  }

  DecodeBudget& budget_;
  bool has_weight_map_ = false;
};

}  // namespace

absl::StatusOr<HuggingFaceIndex> ParseHuggingFaceIndex(std::string_view json) {
  DecodeBudget budget(json.size());
  IndexVisitor visitor(budget);
  FSDP_RETURN_IF_ERROR(VisitJson(json, visitor, budget));
  return std::move(visitor.index);
}

absl::StatusOr<std::string> EncodeHuggingFaceIndex(const HuggingFaceIndex& index) {
  nlohmann::json json;
  json["metadata"]["total_size"] = index.total_size;
  json["weight_map"] = index.weight_map;
  std::string text = json.dump(2) + "\n";
  if (static_cast<int64_t>(text.size()) <= kMaxHuggingFaceIndexBytes) return text;
  return absl::InvalidArgumentError(absl::StrCat(kHuggingFaceIndexName, " of ", index.weight_map.size(),
                                                 " tensors has ", text.size(), " bytes, more than the ",
                                                 kMaxHuggingFaceIndexBytes, " that are read; write fewer tensors"));
}

}  // namespace fsdp
