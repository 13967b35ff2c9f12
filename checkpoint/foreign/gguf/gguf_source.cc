// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/gguf_source.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_header.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_split.h"
#include "fsdp/checkpoint/source/block_types.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr size_t kMostNamed = 20;  // of the tensors that are left out

// The reason why a tensor is not read; empty if it is. `keeps_blocks`: they are carried as they are.
std::string WhyNotRead(const GgufHeader& header, const GgmlType& type, bool keeps_blocks) {
  if (!type.dtype && !keeps_blocks) return "a type that this release does not read";
  // gguf-py leaves blocks and bfloat16 little-endian in such a file, other programs do not.
  if (header.is_big_endian && (type.is_quantized() || type.dtype == DType::kBFloat16)) {
    return "in a big-endian file, where writers disagree on their byte order";
  }
  return "";
}

// Converts elements `interval` of whole blocks and parts of blocks. Reads at most kBufferBytes at a time.
absl::Status ReadBlocks(const File& file, const GgufTensor& tensor, const Interval& interval, float* out) {
  constexpr int64_t kBufferBytes = int64_t{1} << 20;
  const GgmlType& type = *tensor.type;
  const int64_t at_once = kBufferBytes / type.block_bytes;
  std::vector<std::byte> buffer;
  float edge[kMaxGgmlBlockNumel];
  for (int64_t begin = interval.begin; begin < interval.end;) {
    const int64_t first = begin / type.block_numel;
    const int64_t last = std::min((interval.end - 1) / type.block_numel + 1, first + at_once);
    buffer.resize((last - first) * type.block_bytes);
    FSDP_RETURN_IF_ERROR(file.Read(tensor.offset + first * type.block_bytes, absl::MakeSpan(buffer)));
    const std::byte* from = buffer.data();
    for (int64_t block = first; block < last;) {
      const int64_t block_begin = block * type.block_numel;
      const int64_t whole = std::min(last, interval.end / type.block_numel) - block;
      if (begin == block_begin && whole > 0) {
        type.dequantize(from, whole, out);
        out += whole * type.block_numel;
        begin += whole * type.block_numel;
        from += whole * type.block_bytes;
        block += whole;
        continue;
      }
      // A block of which only a part is wanted.
      type.dequantize(from, 1, edge);
      const int64_t end = std::min(interval.end, block_begin + type.block_numel);
      std::memcpy(out, edge + (begin - block_begin), (end - begin) * sizeof(float));
      out += end - begin;
      begin = end;
      from += type.block_bytes;
      ++block;
    }
  }
  return absl::OkStatus();
}

// The same to `out` of any alignment.
absl::Status ReadFloats(const File& file, const GgufTensor& tensor, const Interval& interval, std::byte* out) {
  constexpr int64_t kScratchNumel = int64_t{64} << 10;
  if (reinterpret_cast<uintptr_t>(out) % alignof(float) == 0) {
    return ReadBlocks(file, tensor, interval, reinterpret_cast<float*>(out));
  }
  std::vector<float> scratch(std::min(interval.size(), kScratchNumel));
  for (int64_t begin = interval.begin; begin < interval.end; begin += kScratchNumel) {
    const Interval part = {begin, std::min(interval.end, begin + kScratchNumel)};
    FSDP_RETURN_IF_ERROR(ReadBlocks(file, tensor, part, scratch.data()));
    std::memcpy(out + (begin - interval.begin) * sizeof(float), scratch.data(), part.size() * sizeof(float));
  }
  return absl::OkStatus();
}

// gguf-py's shape of the blocks: each row is its bytes.
Shape ShapeOfBlocks(const GgufTensor& tensor) {
  std::vector<int64_t> dims(tensor.shape.dims().begin(), tensor.shape.dims().end());
  dims.back() = dims.back() / tensor.type->block_numel * tensor.type->block_bytes;
  return *Shape::Create(dims);
}

class GgufSource final : public TensorSource {
 public:
  // `path`: what was given to the reader; the file itself, or a directory.
  GgufSource(std::string path, std::vector<GgufPart> parts, bool keeps_blocks)
      : path_(std::move(path)), parts_(std::move(parts)), keeps_blocks_(keeps_blocks) {
    size_t tensors = 0;
    for (const GgufPart& part : parts_) tensors += part.header.tensors.size();
    contents_.Reserve(tensors);
    places_.reserve(tensors);
    for (GgufPart& part : parts_) {
      AddEntries(part.header);
      for (const GgufTensor& tensor : part.header.tensors) AddTensor(part, tensor);
    }
    Describe();
  }

  const FormatTraits& traits() const override { return GgufTraits(); }
  const StateDict& contents() const override { return contents_; }
  const SourceLayout& layout() const override { return layout_; }
  int64_t step() const override { return -1; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    for (const GgufPart& part : parts_) paths.push_back(part.file->path());
    return paths;
  }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> all = not_read();
    all.insert(all.end(), lost_keys_.begin(), lost_keys_.end());
    for (std::string& beside : WeightsBesideGiven(path_, files())) all.push_back(std::move(beside));
    return all;
  }

  // `"blk.0.ffn_up.weight" (IQ2_XS, a type that this release does not read)`.
  std::vector<std::string> not_read() const {
    std::vector<std::string> named = not_read_;
    if (unnamed_ > 0) named.push_back(absl::StrCat(unnamed_, " more"));
    return named;
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const Place place, Find(key));
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, contents_.FindTensor(key)->shape.numel()));
    const absl::Status status = ReadElements(place, interval, static_cast<std::byte*>(out));
    if (status.ok()) return status;
    return Annotate(status, absl::StrCat("tensor ", Quote(key.ToString()), " of ", place.part->file->path()));
  }

  // Cut between blocks, which are read whole.
  std::vector<Interval> Pieces(const StateKey& key, const Interval& interval) const override {
    const absl::StatusOr<Place> place = Find(key);
    if (!place.ok() || !IsConverted(*place->tensor->type)) return TensorSource::Pieces(key, interval);
    constexpr int64_t kPieceNumel = int64_t{1} << 20;
    static_assert(kPieceNumel % kMaxGgmlBlockNumel == 0);
    std::vector<Interval> pieces;
    for (int64_t begin = interval.begin; begin < interval.end;) {
      const int64_t end = std::min(interval.end, (begin / kPieceNumel + 1) * kPieceNumel);
      pieces.push_back({begin, end});
      begin = end;
    }
    return pieces;
  }

  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const Place place, Find(key));
    const GgufTensor& tensor = *place.tensor;
    if (IsConverted(*tensor.type)) {
      return absl::UnimplementedError(absl::StrCat("it is quantized (", std::string(tensor.type->name), ")"));
    }
    if (place.part->header.is_big_endian) return absl::UnimplementedError("its elements are big-endian");
    const Shape& shape = contents_.FindTensor(key)->shape;
    Box whole = {std::vector<int64_t>(shape.rank(), 0), {shape.dims().begin(), shape.dims().end()}};
    return std::vector<TensorPlace>{{place.part->file->path(), tensor.offset, std::move(whole)}};
  }

 private:
  struct Place {
    const GgufPart* part;
    const GgufTensor* tensor;
  };

  bool IsConverted(const GgmlType& type) const { return type.is_quantized() && !keeps_blocks_; }

  // The values are not needed any more.
  void AddEntries(GgufHeader& header) {
    for (GgufEntry& entry : header.entries) {
      if (entry.key == "general.architecture" && architecture_.empty()) architecture_ = entry.value.text;
      if (entry.key.rfind("split.", 0) == 0) continue;  // they describe files, not the model
      if (entry.value.why_not.empty()) {
        metadata_.try_emplace(std::move(entry.key), std::move(entry.value.text));
      } else if (lost_keys_.size() < kMostNamed) {
        lost_keys_.push_back(absl::StrCat("the value of key ", Quote(entry.key), ", which ", entry.value.why_not));
      }
    }
    header.entries = std::vector<GgufEntry>();
  }

  void AddTensor(const GgufPart& part, const GgufTensor& tensor) {
    const bool is_carried = tensor.type->is_quantized() && keeps_blocks_;
    const std::string why_not = WhyNotRead(part.header, *tensor.type, is_carried);
    if (!why_not.empty()) {
      if (not_read_.size() == kMostNamed) {
        ++unnamed_;
      } else {
        not_read_.push_back(absl::StrCat(Quote(tensor.name), " (", std::string(tensor.type->name), ", ", why_not, ")"));
      }
      return;
    }
    ShardedTensor described;
    described.dtype = is_carried ? DType::kUInt8 : *tensor.type->dtype;
    described.shape = is_carried ? ShapeOfBlocks(tensor) : tensor.shape;
    if (is_carried) block_types_[tensor.name] = std::string(tensor.type->name);
    contents_.Set(StateKey::Model(tensor.name), std::move(described));
    places_.emplace(tensor.name, Place{&part, &tensor});
    if (tensor.type->is_quantized()) ++quantized_[tensor.type->name];
  }

  void Describe() {
    int64_t count = 0;
    std::vector<std::string> types;
    for (const auto& [name, tensors] : quantized_) {
      count += tensors;
      types.push_back(absl::StrCat(tensors, " of ", std::string(name)));
    }
    if (count > 0) {
      layout_.notes.push_back(absl::StrCat(count, count == 1 ? " tensor is" : " tensors are", " quantized (",
                                           absl::StrJoin(types, ", "),
                                           keeps_blocks_ ? ") and carried as blocks" : ") and read as float32"));
    }
    // Any name will do, so it is no choice that the names of the others explain.
    if (!WeightsBesideGiven(path_, files()).empty()) {
      layout_.notes.push_back(absl::StrCat("of the weights in the directory, only the model in GGUF is read, ",
                                           Printable(SplitPath(parts_[0].file->path()).name)));
    }
    if (!block_types_.empty()) metadata_[kBlockTypesKey] = EncodeBlockTypes(block_types_);
    if (architecture_ == "llama") {
      layout_.notes.emplace_back(
          "rows of attn_q and attn_k are in llama.cpp's order, the pairs of a rotation next to each other; Hugging "
          "Face's Llama has them in halves");
    }
  }

  absl::StatusOr<Place> Find(const StateKey& key) const {
    const auto at = key.section == StateKey::Section::kModel ? places_.find(key.fqn) : places_.end();
    if (at != places_.end()) return at->second;
    return absl::NotFoundError(absl::StrCat(Quote(key.ToString()), " is not in ", parts_[0].file->path()));
  }

  absl::Status ReadElements(const Place& place, const Interval& interval, std::byte* out) const {
    const GgufTensor& tensor = *place.tensor;
    if (interval.empty()) return absl::OkStatus();
    if (IsConverted(*tensor.type)) return ReadFloats(*place.part->file, tensor, interval, out);
    const int64_t size = tensor.type->is_quantized() ? 1 : tensor.type->block_bytes;
    const absl::Span<std::byte> bytes(out, interval.size() * size);
    FSDP_RETURN_IF_ERROR(place.part->file->Read(tensor.offset + interval.begin * size, bytes));
    if (!place.part->header.is_big_endian || size == 1) return absl::OkStatus();
    for (auto at = bytes.begin(); at != bytes.end(); at += size) std::reverse(at, at + size);
    return absl::OkStatus();
  }

  const std::string path_;
  std::vector<GgufPart> parts_;
  const bool keeps_blocks_;
  absl::flat_hash_map<std::string_view, Place> places_;  // by names in the headers of parts_
  StateDict contents_;
  SourceLayout layout_;
  std::map<std::string, std::string> metadata_;
  std::string architecture_;
  std::map<std::string_view, int64_t> quantized_;  // tensors by type
  BlockTypes block_types_;                         // of the tensors that are carried
  std::vector<std::string> not_read_;
  int64_t unnamed_ = 0;  // tensors that are not read and not in not_read_
  std::vector<std::string> lost_keys_;
};

absl::StatusOr<std::unique_ptr<TensorSource>> SourceOf(const std::string& given, std::vector<GgufPart> parts,
                                                       const TensorSourceOptions& options) {
  const std::string path = parts[0].file->path();
  auto source = std::make_unique<GgufSource>(given, std::move(parts), options.keep_quantized);
  const std::vector<std::string> not_read = source->not_read();
  if (not_read.empty() || (options.skip_links && !source->contents().empty())) return source;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": these tensors would be left out: ", absl::StrJoin(not_read, ", "),
                   source->contents().empty() ? "; there is nothing else in it"
                                              : "; set TensorSourceOptions::skip_links to go without them"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenGgufSource(const std::string& path,
                                                             const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(std::vector<GgufPart> parts, OpenGgufParts(path));
  return SourceOf(path, std::move(parts), options);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenGgufFile(std::unique_ptr<File> file,
                                                           const TensorSourceOptions& options) {
  const std::string path = file->path();
  FSDP_ASSIGN_OR_RETURN(std::vector<GgufPart> parts, OpenGgufPart(std::move(file)));
  return SourceOf(path, std::move(parts), options);
}

const FormatTraits& GgufTraits() {
  static const auto* traits = new FormatTraits{.name = "gguf",
                                               .headline = "a model in GGUF",
                                               .in_directory = "the GGUF files of one model",
                                               .file = "a GGUF file",
                                               .suffixes = {".gguf"},
                                               .model_only = true,
                                               .keeps_metadata = true,
                                               .has_blocks = true,
                                               .is_plain = true};
  return *traits;
}

}  // namespace fsdp
