// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/gguf_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_split.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/weight_files.h"

namespace fsdp {
namespace {

constexpr char kFileTypeKey[] = "general.file_type";
constexpr char kQuantizationKey[] = "general.quantization_version";
constexpr size_t kMaxNameOfGgml = 63;

// `size` bytes, little-endian.
std::string Number(uint64_t value, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string Text(const std::string& text) { return Number(text.size(), 8) + text; }

// llama.cpp's number for a file that is mostly of one type.
uint32_t FileType(const GgmlType& type) {
  if (type.name == "F16") return 1;
  if (type.name == "Q8_0") return 7;
  if (type.name == "BF16") return 32;
  if (type.name == "MXFP4") return 38;
  return 0;  // F32
}

const ShardedTensor* ModelTensor(const StateDict& contents, const StateDict::Entry& entry) {
  const auto& [key, value] = entry;
  if (key.section != StateKey::Section::kModel || contents.aliases.count(key.fqn) != 0) return nullptr;
  return std::get_if<ShardedTensor>(&value);
}

// What floats may become on request.
bool IsTarget(const GgmlType& type) {
  return type.is_written() && IsFloatingPoint(*type.dtype) && type.dtype != DType::kFloat64;
}

// "F32, F16, Q8_0, BF16, MXFP4".
std::string TargetTypes() {
  std::vector<std::string> names;
  for (const GgmlType& type : GgmlTypes()) {
    if (IsTarget(type)) names.emplace_back(type.name);
  }
  return absl::StrJoin(names, ", ");
}

bool IsF32(const GgmlType& type) { return type.name == "F32"; }

}  // namespace

absl::StatusOr<const GgmlType*> ParseGgufType(std::string_view name) {
  const GgmlType* const type = FindGgmlType(name);
  if (type != nullptr && IsTarget(*type)) return type;
  return absl::InvalidArgumentError(absl::StrCat(Quote(name), ", expected ", TargetTypes()));
}

absl::StatusOr<GgufPlan> GgufPlan::Create(const GgufPlanOptions& options, const StateDict& contents,
                                          const std::map<std::string, std::string>& metadata) {
  GgufPlan plan;
  if (!options.type.empty()) {
    const absl::StatusOr<const GgmlType*> type = ParseGgufType(options.type);
    if (!type.ok()) return Annotate(type.status(), "type to write");
    plan.type_ = *type;
  }
  FSDP_ASSIGN_OR_RETURN(plan.block_types_, BlockTypesOf(metadata));
  if (options.template_path.empty()) {
    if (!options.keys_path.empty()) FSDP_RETURN_IF_ERROR(plan.ReadKeys(options.keys_path));
    FSDP_RETURN_IF_ERROR(plan.AddContents(contents));
  } else {
    FSDP_RETURN_IF_ERROR(plan.ReadTemplate(options.template_path));
    const absl::Status matched = plan.MatchTemplate(contents);
    if (!matched.ok()) return Annotate(matched, absl::StrCat("template ", options.template_path));
  }
  plan.AddKeys(metadata);
  plan.Place();
  return plan;
}

absl::Status GgufPlan::ReadTemplate(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(std::vector<GgufPart> parts, OpenGgufParts(path));
  if (parts[0].header.is_big_endian) {
    return absl::InvalidArgumentError(
        absl::StrCat("template ", path, " is big-endian, and only little-endian files are written"));
  }
  alignment_ = parts[0].header.alignment;
  entries_ = std::move(parts[0].header.entries);
  for (GgufPart& part : parts) {
    listed_.insert(listed_.end(), std::make_move_iterator(part.header.tensors.begin()),
                   std::make_move_iterator(part.header.tensors.end()));
  }
  template_ = std::move(parts[0].file);
  return absl::OkStatus();
}

// The list of tensors only says whether their types still match the keys. The keys of a big-endian file are
// only texts in the metadata.
absl::Status GgufPlan::ReadKeys(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<GgufPart> parts, OpenGgufParts(path));
  return parts[0].header.is_big_endian ? absl::OkStatus() : ReadTemplate(path);
}

absl::Status GgufPlan::MatchTemplate(const StateDict& contents) {
  absl::flat_hash_set<std::string_view> wanted;
  std::vector<std::string> missing;
  for (const GgufTensor& listed : listed_) {
    wanted.insert(listed.name);
    if (contents.FindTensor(StateKey::Model(listed.name)) == nullptr) missing.push_back(listed.name);
  }
  std::vector<std::string> unknown;
  for (const StateDict::Entry& entry : contents.entries()) {
    if (ModelTensor(contents, entry) != nullptr && wanted.count(entry.first.fqn) == 0) {
      unknown.push_back(entry.first.fqn);
    }
  }
  if (!missing.empty() || !unknown.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("its tensors are not the model's: ", missing.size(), " of it the model lacks",
                     missing.empty() ? "" : absl::StrCat(" (", SomeOf(missing), ")"), ", ", unknown.size(),
                     " of the model it lacks", unknown.empty() ? "" : absl::StrCat(" (", SomeOf(unknown), ")"),
                     "; names must be llama.cpp's: rename them, and leave out those that it does not have"));
  }
  bool is_type_used = type_ == nullptr || IsF32(*type_);
  for (const GgufTensor& listed : listed_) {
    const ShardedTensor& tensor = *contents.FindTensor(StateKey::Model(listed.name));
    if (const auto blocks = block_types_.find(listed.name); blocks != block_types_.end()) {
      FSDP_RETURN_IF_ERROR(AddBlocks(listed.name, tensor, blocks->second));
      const GgufTensor& stored = tensors_.back().stored;
      if (stored.type == listed.type && stored.shape == listed.shape) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quote(listed.name), " is ", listed.shape.ToString(), " of ", std::string(listed.type->name),
          " in it, and ", stored.shape.ToString(), " of ", std::string(stored.type->name),
          " in the model, whose blocks are kept: convert it without keeping them"));
    }
    if (tensor.shape != listed.shape) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(listed.name), " has shape ",
                                                     listed.shape.ToString(), " in it, and ", tensor.shape.ToString(),
                                                     " in the model"));
    }
    const bool is_replaced = type_ != nullptr && !IsF32(*listed.type) &&
                             (listed.type->is_quantized() || IsFloatingPoint(*listed.type->dtype));
    is_type_used = is_type_used || is_replaced;
    FSDP_RETURN_IF_ERROR(Add(listed.name, tensor, is_replaced ? type_ : listed.type));
  }
  if (is_type_used) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("its tensors are all F32, so it does not show which of them may become ", std::string(type_->name),
                   ": take one in F16 or quantized, or write F32"));
}

absl::Status GgufPlan::AddContents(const StateDict& contents) {
  for (const StateDict::Entry& entry : contents.entries()) {
    const ShardedTensor* const tensor = ModelTensor(contents, entry);
    if (tensor == nullptr) continue;
    if (const auto blocks = block_types_.find(entry.first.fqn); blocks != block_types_.end()) {
      FSDP_RETURN_IF_ERROR(AddBlocks(entry.first.fqn, *tensor, blocks->second));
      continue;
    }
    const bool is_matrix = IsFloatingPoint(tensor->dtype) && tensor->shape.rank() >= 2;
    const GgmlType* const type = type_ != nullptr && is_matrix ? type_ : FindGgmlType(tensor->dtype);
    if (type == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(entry.first), ": GGUF does not have ", std::string(DTypeName(tensor->dtype))));
    }
    FSDP_RETURN_IF_ERROR(Add(entry.first.fqn, *tensor, type));
  }
  return absl::OkStatus();
}

absl::Status GgufPlan::Add(const std::string& name, const ShardedTensor& tensor, const GgmlType* type) {
  const Shape& shape = tensor.shape;
  const auto refused = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(name), ": ", what));
  };
  if (shape.rank() > kMaxGgufDims) {
    return refused(absl::StrCat("it has ", shape.rank(), " dimensions, and GGUF at most ", kMaxGgufDims));
  }
  if (!type->is_written()) {
    return refused(
        absl::StrCat("its type ", std::string(type->name), " is read, and not written: choose one of ", TargetTypes()));
  }
  const bool are_both_floats = IsFloatingPoint(tensor.dtype) && IsFloatingPoint(*type->dtype);
  if (tensor.dtype != *type->dtype && !are_both_floats) {
    return refused(absl::StrCat(std::string(DTypeName(tensor.dtype)), " cannot become ", std::string(type->name)));
  }
  const int64_t row = shape.rank() == 0 ? 1 : shape.dim(shape.rank() - 1);
  if (row % type->block_numel != 0) {
    type = FindGgmlType("F16");
    kept_wider_.push_back(name);
  }
  GgufPlannedTensor planned = {.name = name, .dtype = tensor.dtype, .stored = {}};
  planned.stored.type = type;
  planned.stored.shape = shape;
  Append(std::move(planned));
  return absl::OkStatus();
}

// The contents are uint8, with the bytes of a row in the last dimension.
absl::Status GgufPlan::AddBlocks(const std::string& name, const ShardedTensor& tensor, const std::string& type_name) {
  const GgmlType* const type = FindGgmlType(type_name);
  const int rank = tensor.shape.rank();
  const int64_t row = rank == 0 ? 0 : tensor.shape.dim(rank - 1);
  if (type == nullptr || !type->is_quantized() || tensor.dtype != DType::kUInt8 || rank == 0 || rank > kMaxGgufDims ||
      row % type->block_bytes != 0) {
    return absl::DataLossError(absl::StrCat("tensor ", Quote(name), ": ", tensor.shape.ToString(), " ",
                                            std::string(DTypeName(tensor.dtype)), " are no blocks of ",
                                            Quote(type_name), ", which metadata \"", kBlockTypesKey, "\" has for it"));
  }
  std::vector<int64_t> dims(tensor.shape.dims().begin(), tensor.shape.dims().end());
  dims.back() = row / type->block_bytes * type->block_numel;
  GgufPlannedTensor planned = {.name = name, .dtype = tensor.dtype, .is_carried = true, .stored = {}};
  planned.stored.type = type;
  FSDP_ASSIGN_OR_RETURN(planned.stored.shape, Shape::Create(dims));
  Append(std::move(planned));
  return absl::OkStatus();
}

void GgufPlan::Append(GgufPlannedTensor planned) {
  GgufTensor& stored = planned.stored;
  stored.nbytes = stored.shape.numel() / stored.type->block_numel * stored.type->block_bytes;
  tensors_.push_back(std::move(planned));
}

void GgufPlan::AddKey(const std::string& key, uint32_t type, const std::string& value) {
  pieces_.push_back({absl::StrCat(Text(key), Number(type, 4), value), {}});
  ++keys_;
}

// True if general.file_type, which describes the types of the template, describes the file's, too.
bool GgufPlan::HasTypesOfTemplate() const {
  if (type_ != nullptr) return false;
  absl::flat_hash_map<std::string_view, const GgmlType*> types;
  for (const GgufTensor& listed : listed_) types[listed.name] = listed.type;
  return std::all_of(tensors_.begin(), tensors_.end(), [&](const GgufPlannedTensor& tensor) {
    const auto at = types.find(tensor.name);
    return at != types.end() && at->second == tensor.stored.type;
  });
}

void GgufPlan::AddTemplateKeys() {
  const bool is_file_type_known = HasTypesOfTemplate();
  for (const GgufEntry& entry : entries_) {
    const bool is_of_split = IsGgufFileKey(entry.key) && entry.key != kGgufAlignmentKey;
    if (is_of_split || (!is_file_type_known && entry.key == kFileTypeKey)) continue;
    pieces_.push_back({"", entry.range});
    ++keys_;
  }
}

void GgufPlan::AddKeys(const std::map<std::string, std::string>& metadata) {
  const auto is_in_template = [&](const std::string& key) {
    return std::any_of(entries_.begin(), entries_.end(), [&](const GgufEntry& entry) { return entry.key == key; });
  };
  int64_t left_out = 0;
  if (template_ != nullptr) {
    AddTemplateKeys();
    left_out = std::count_if(metadata.begin(), metadata.end(), [&](const auto& text) {
      return text.first != kBlockTypesKey && !is_in_template(text.first);
    });
  } else {
    for (const auto& [key, text] : metadata) {
      if (key.empty() || key == kBlockTypesKey || IsGgufFileKey(key)) continue;
      AddKey(key, static_cast<uint32_t>(GgufType::kString), Text(text));
    }
    notes_.emplace_back(
        "without a template the file has no keys by which llama.cpp knows a model, its metadata are texts");
  }
  if (left_out > 0) {
    notes_.push_back(absl::StrCat(left_out, left_out == 1 ? " metadata text is" : " metadata texts are",
                                  " left out: the keys are the template's"));
  }
  // Blocks that are carried with the keys of their file need no other keys.
  const bool has_quantized = std::any_of(tensors_.begin(), tensors_.end(), [&](const GgufPlannedTensor& tensor) {
    return tensor.stored.type->is_quantized() && (!tensor.is_carried || template_ == nullptr);
  });
  const auto type_of_number = static_cast<uint32_t>(GgufType::kUInt32);
  if (type_ != nullptr) AddKey(kFileTypeKey, type_of_number, Number(FileType(*type_), 4));
  const bool has_version =
      template_ == nullptr ? metadata.count(kQuantizationKey) != 0 : is_in_template(kQuantizationKey);
  if (has_quantized && !has_version) AddKey(kQuantizationKey, type_of_number, Number(2, 4));
}

void GgufPlan::Place() {
  std::string infos;
  int64_t end = 0;
  std::vector<std::string> long_names;
  for (GgufPlannedTensor& tensor : tensors_) {
    const Shape& shape = tensor.stored.shape;
    absl::StrAppend(&infos, Text(tensor.name), Number(shape.rank(), 4));
    for (int d = shape.rank() - 1; d >= 0; --d) absl::StrAppend(&infos, Number(shape.dim(d), 8));
    absl::StrAppend(&infos, Number(tensor.stored.type->id, 4), Number(end, 8));
    tensor.stored.offset = end;
    end = AlignGguf(end + tensor.stored.nbytes, alignment_);
    if (tensor.name.size() > kMaxNameOfGgml) long_names.push_back(tensor.name);
  }
  pieces_.insert(pieces_.begin(), {absl::StrCat(std::string(kGgufMagic), Number(kGgufVersion, 4),
                                                Number(tensors_.size(), 8), Number(keys_, 8)),
                                   {}});
  pieces_.push_back({std::move(infos), {}});
  for (const Piece& piece : pieces_) header_bytes_ += piece.nbytes();
  const int64_t begin = AlignGguf(header_bytes_, alignment_);
  for (GgufPlannedTensor& tensor : tensors_) tensor.stored.offset += begin;
  nbytes_ = begin + end;
  const auto quantized = std::count_if(tensors_.begin(), tensors_.end(), [](const GgufPlannedTensor& tensor) {
    return tensor.stored.type->is_quantized();
  });
  if (quantized > 0) {
    notes_.push_back(absl::StrCat(quantized, quantized == 1 ? " tensor is" : " tensors are",
                                  " written quantized; all elements take ", end, " bytes"));
  }
  if (!kept_wider_.empty()) {
    notes_.push_back(absl::StrCat(kept_wider_.size(), kept_wider_.size() == 1 ? " tensor is" : " tensors are",
                                  " F16, because rows are no multiple of a block: ", SomeOf(kept_wider_)));
  }
  if (!long_names.empty()) {
    notes_.push_back(
        absl::StrCat("llama.cpp refuses names of more than ", kMaxNameOfGgml, " bytes: ", SomeOf(long_names)));
  }
}

absl::Status GgufPlan::ReadHeader(int64_t begin, absl::Span<std::byte> out) const {
  int64_t at = 0;
  for (const Piece& piece : pieces_) {
    const int64_t from = std::max(begin, at);
    const int64_t to = std::min(begin + std::ssize(out), at + piece.nbytes());
    if (from < to) {
      const absl::Span<std::byte> part = out.subspan(from - begin, to - from);
      if (piece.range.nbytes == 0) {
        std::memcpy(part.data(), piece.text.data() + (from - at), part.size());
      } else {
        FSDP_RETURN_IF_ERROR(template_->Read(piece.range.offset + (from - at), part));
      }
    }
    at += piece.nbytes();
  }
  return absl::OkStatus();
}

}  // namespace fsdp
