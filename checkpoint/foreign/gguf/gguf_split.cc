// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/gguf_split.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

constexpr std::string_view kSuffix = ".gguf";
constexpr size_t kDigits = 5;  // of each number in a name

// The keys of one part; count 1 without them.
struct Place {
  int64_t number = 0;  // from 0
  int64_t count = 1;
  std::optional<int64_t> tensors = {};
};

absl::StatusOr<Place> PlaceOf(const GgufHeader& header) {
  Place place;
  const auto get = [&](const char* key, int64_t& number) {
    const GgufValue* const value = header.Find(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->integer || *value->integer > uint64_t{1} << 32) {
      return absl::DataLossError(absl::StrCat(key, " is ", Quote(value->text), ", expected a number"));
    }
    number = static_cast<int64_t>(*value->integer);
    return absl::OkStatus();
  };
  FSDP_RETURN_IF_ERROR(get(kGgufSplitNumberKey, place.number));
  FSDP_RETURN_IF_ERROR(get(kGgufSplitCountKey, place.count));
  place.count = std::max<int64_t>(place.count, 1);  // 0: not split
  int64_t tensors = -1;
  FSDP_RETURN_IF_ERROR(get(kGgufSplitTensorsKey, tensors));
  if (tensors >= 0) place.tensors = tensors;
  if (place.number >= place.count) {
    return absl::DataLossError(absl::StrCat(kGgufSplitNumberKey, " is ", place.number, " of ", place.count));
  }
  return place;
}

// gguf-py aligns all parts as general.alignment of the first says, and leaves the key out of the others; llama.cpp
// aligns these by the default. Offsets and the size of the file fit only one of both, since the elements begin
// elsewhere.
absl::StatusOr<GgufPart> ReadPart(std::unique_ptr<File> file, int64_t alignment_of_first = kGgufAlignment) {
  GgufPart part;
  absl::StatusOr<GgufHeader> header = ReadGgufHeader(*file);
  if (absl::IsDataLoss(header.status()) && alignment_of_first != kGgufAlignment) {
    absl::StatusOr<GgufHeader> again = ReadGgufHeader(*file, alignment_of_first);
    if (again.ok()) header = std::move(again);
  }
  if (!header.ok()) {
    FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(*file));
    return Annotate(header.status(), file->path());
  }
  part.header = *std::move(header);
  part.file = std::move(file);
  return part;
}

absl::StatusOr<GgufPart> OpenPart(const std::string& path, int64_t alignment_of_first = kGgufAlignment) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, PosixFileSystem().Open(path));
  return ReadPart(std::move(file), alignment_of_first);
}

// Compares the keys of `part` with the place in which it was found, and with the keys of the other parts.
absl::Status CheckPlace(const GgufPart& part, int number, const Place& expected) {
  const absl::StatusOr<Place> place = PlaceOf(part.header);
  if (!place.ok()) return Annotate(place.status(), part.file->path());
  if (place->number == number && place->count == expected.count && place->tensors == expected.tensors) {
    return absl::OkStatus();
  }
  const auto text = [](int64_t at, const Place& of) {
    return absl::StrCat("part ", at + 1, " of ", of.count, ", of ", of.tensors ? absl::StrCat(*of.tensors) : "unknown",
                        " tensors");
  };
  return absl::DataLossError(absl::StrCat(part.file->path(), " is, by its keys, ", text(place->number, *place),
                                          ", but expected ", text(number, expected),
                                          ": it was renamed, or is part of another model"));
}

// The number of tensors, and that each is in one part.
absl::Status CheckTensors(const std::vector<GgufPart>& parts, const Place& place) {
  std::set<std::string_view> names;
  int64_t tensors = 0;
  for (const GgufPart& part : parts) {
    tensors += std::ssize(part.header.tensors);
    for (const GgufTensor& tensor : part.header.tensors) {
      if (names.insert(tensor.name).second) continue;
      return absl::DataLossError(
          absl::StrCat(part.file->path(), ": tensor ", Quote(tensor.name), " is in an earlier part too"));
    }
  }
  if (!place.tensors || *place.tensors == tensors) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(parts[0].file->path(), ": its ", parts.size(), " parts have ", tensors,
                                          " tensors, but ", kGgufSplitTensorsKey, " is ", *place.tensors));
}

absl::StatusOr<std::string> PathOfFile(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const std::filesystem::file_type type, TypeOfTarget(path));
  if (type != std::filesystem::file_type::directory) return path;
  FSDP_ASSIGN_OR_RETURN(const std::string name, GgufFileIn(path));
  if (!name.empty()) return JoinPath(path, name);
  return absl::InvalidArgumentError(absl::StrCat(path, " does not have the GGUF files of one model"));
}

std::string PartName(const std::string& stem, int64_t number, int64_t count) {
  return absl::StrFormat("%s-%05d-of-%05d%s", stem, number, count, kSuffix);
}

}  // namespace

std::optional<GgufPartName> ParseGgufPartName(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  constexpr size_t kTail = 1 + kDigits + kOf.size() + kDigits + kSuffix.size();
  if (name.size() <= kTail) return std::nullopt;
  const std::string_view tail = name.substr(name.size() - kTail);
  const std::string_view number = tail.substr(1, kDigits);
  const std::string_view count = tail.substr(1 + kDigits + kOf.size(), kDigits);
  const auto are_digits = [](std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  if (tail[0] != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf || !are_digits(number) || !are_digits(count) ||
      tail.substr(tail.size() - kSuffix.size()) != kSuffix) {
    return std::nullopt;
  }
  GgufPartName part;
  part.stem = std::string(name.substr(0, name.size() - kTail));
  if (!absl::SimpleAtoi(std::string(number), &part.number)) return std::nullopt;
  if (!absl::SimpleAtoi(std::string(count), &part.count)) return std::nullopt;
  return part;
}

absl::StatusOr<std::string> GgufFileIn(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(directory));
  std::string first;
  std::set<std::pair<std::string, int>> models;  // stem and number of parts; 0 of a whole file
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, absl::string_view(kSuffix.data(), kSuffix.size())) || name[0] == '.') continue;
    const std::optional<GgufPartName> part = ParseGgufPartName(name);
    models.insert(part ? std::pair(part->stem, part->count) : std::pair(name, 0));
    if (first.empty()) first = name;
  }
  return models.size() == 1 ? first : "";
}

absl::StatusOr<std::vector<GgufPart>> OpenGgufParts(const std::string& given_path) {
  FSDP_ASSIGN_OR_RETURN(std::string path, PathOfFile(given_path));
  const PathParts at = SplitPath(path);
  const std::optional<GgufPartName> name = ParseGgufPartName(at.name);
  const auto open = [&](int number, int64_t alignment) {
    const std::string file_path = JoinPath(at.directory, PartName(name->stem, number, name->count));
    absl::StatusOr<GgufPart> part = OpenPart(file_path, alignment);
    if (!absl::IsNotFound(part.status())) return part;
    return absl::StatusOr<GgufPart>(absl::NotFoundError(absl::StrCat(
        file_path, " does not exist: part ", number, " of ", name->count, " of the model is missing; get it again")));
  };
  const bool is_named_part = name && name->count > 1;
  std::vector<GgufPart> parts;
  // The first part of a split has the keys that the others need.
  FSDP_ASSIGN_OR_RETURN(parts.emplace_back(), is_named_part ? open(1, kGgufAlignment) : OpenPart(path));
  path = parts[0].file->path();
  absl::StatusOr<Place> place = PlaceOf(parts[0].header);
  if (!place.ok()) return Annotate(place.status(), path);
  if (place->count == 1 && !is_named_part) {
    FSDP_RETURN_IF_ERROR(CheckTensors(parts, *place));
    return parts;
  }
  if (!is_named_part) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is part ", place->number + 1, " of ", place->count,
                                                   ", and the others are found by their names: give it its name back, ",
                                                   PartName("NAME", place->number + 1, place->count),
                                                   ", next to the others"));
  }
  if (place->count == 1) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has the name of part 1 of ", name->count, ", but no ",
                                                   kGgufSplitCountKey,
                                                   " that says so: if it is a whole model, rename it"));
  }
  if (place->count > kMaxGgufParts) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is one of ", place->count, " parts, expected at most ",
                                                   kMaxGgufParts, ": join them with llama-gguf-split --merge"));
  }
  FSDP_RETURN_IF_ERROR(CheckPlace(parts[0], 0, {.number = 0, .count = name->count, .tensors = place->tensors}));
  for (int i = 1; i < name->count; ++i) {
    FSDP_ASSIGN_OR_RETURN(parts.emplace_back(), open(i + 1, parts[0].header.alignment));
    FSDP_RETURN_IF_ERROR(CheckPlace(parts.back(), i, *place));
  }
  FSDP_RETURN_IF_ERROR(CheckTensors(parts, *place));
  return parts;
}

absl::StatusOr<std::vector<GgufPart>> OpenGgufPart(std::unique_ptr<File> file) {
  FSDP_ASSIGN_OR_RETURN(GgufPart part, ReadPart(std::move(file)));
  FSDP_ASSIGN_OR_RETURN(const Place place, PlaceOf(part.header));
  if (place.count != 1) return absl::InvalidArgumentError(absl::StrCat("it is one of ", place.count, " parts"));
  std::vector<GgufPart> parts;
  parts.push_back(std::move(part));
  FSDP_RETURN_IF_ERROR(CheckTensors(parts, place));
  return parts;
}

}  // namespace fsdp
