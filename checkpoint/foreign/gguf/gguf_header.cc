// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/gguf_header.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/utf8.h"
#include "fsdp/checkpoint/foreign/gguf/gguf_cursor.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxKeyBytes = 65535;  // of the specification
constexpr int64_t kMaxAlignment = int64_t{1} << 20;

// The memory that the values of the header may take besides the bytes of the file: texts first, then tensors in source
// and state. Keys and texts are counted with their copies in a source's metadata and in a description of it.
constexpr int64_t kTextAllowance = int64_t{24} << 20;
constexpr int64_t kTensorAllowance = int64_t{48} << 20;
constexpr int64_t kBytesOfEntry = 480;
constexpr int64_t kBytesOfTensor = 600;

// The prelude has the counts, then come keys with values, then infos of tensors, then, aligned, the elements in the
// same order without gaps. The reader demands exactly that, since any gap or overlap means that the header or the file
// is damaged.
class HeaderReader {
 public:
  HeaderReader(const File& file, int64_t nbytes, int64_t alignment) : cursor_(file, nbytes), file_bytes_(nbytes) {
    header_.alignment = alignment;
  }

  absl::StatusOr<GgufHeader> Read() {
    FSDP_RETURN_IF_ERROR(ReadPrelude());
    for (uint64_t i = 0; i < entries_; ++i) FSDP_RETURN_IF_ERROR(ReadEntry());
    FSDP_RETURN_IF_ERROR(SetAlignment());
    names_.clear();
    for (uint64_t i = 0; i < tensors_; ++i) FSDP_RETURN_IF_ERROR(ReadTensor());
    FSDP_RETURN_IF_ERROR(PlaceTensors());
    return std::move(header_);
  }

 private:
  absl::Status ReadPrelude() {
    std::byte magic[4];
    FSDP_RETURN_IF_ERROR(cursor_.Read(absl::MakeSpan(magic)));
    if (std::string_view(reinterpret_cast<const char*>(magic), 4) != kGgufMagic) {
      return absl::DataLossError("it does not begin with \"GGUF\"");
    }
    FSDP_ASSIGN_OR_RETURN(uint32_t version, cursor_.U32());
    // Only the version tells the byte order of the file. The magic is never swapped.
    if (version != 0 && (version & 0xFFFF) == 0) {
      version = __builtin_bswap32(version);
      header_.is_big_endian = true;
      cursor_.SetBigEndian();
    }
    if (version == 1) {
      return absl::InvalidArgumentError(
          "it is GGUF version 1, of August 2023, and versions 2 and 3 are read: convert it with llama.cpp, or get a "
          "newer file");
    }
    if (version != 2 && version != kGgufVersion) {
      return absl::InvalidArgumentError(
          absl::StrCat("it is GGUF version ", version, ", and versions 2 and 3 are read"));
    }
    FSDP_ASSIGN_OR_RETURN(tensors_, cursor_.U64());
    FSDP_ASSIGN_OR_RETURN(entries_, cursor_.U64());
    // The shortest info has 24 bytes, the shortest key with its value 13.
    const auto left = static_cast<uint64_t>(cursor_.remaining());
    if (tensors_ > left / 24 || entries_ > left / 13) {
      return absl::DataLossError(absl::StrCat("it states ", tensors_, " tensors and ", entries_,
                                              " keys, more than fit in the file's ", file_bytes_,
                                              " bytes: it is truncated or damaged"));
    }
    return absl::OkStatus();
  }

  // A key that is there twice would mean one thing to this reader and another to the next.
  absl::Status ReadEntry() {
    GgufEntry entry;
    entry.range.offset = cursor_.position();
    FSDP_ASSIGN_OR_RETURN(entry.key, cursor_.Text(kMaxKeyBytes));
    if (entry.key.empty() || !IsUtf8(entry.key)) {
      return absl::DataLossError(
          absl::StrCat("key ", header_.entries.size(), " is ", Quote(entry.key), ", expected a text of UTF-8"));
    }
    if (!names_.insert(entry.key).second) {
      return absl::DataLossError(absl::StrCat("key ", Quote(entry.key), " is there twice"));
    }
    FSDP_RETURN_IF_ERROR(Take(kBytesOfEntry + 3 * std::ssize(entry.key), kTensorAllowance));
    const int64_t room = kTextAllowance + 2 * cursor_.position() - text_bytes_;
    absl::StatusOr<GgufValue> value = ReadGgufValue(cursor_, room);
    if (!value.ok()) return Annotate(value.status(), absl::StrCat("key ", Quote(entry.key)));
    entry.value = *std::move(value);
    text_bytes_ += std::ssize(entry.value.text);
    entry.range.nbytes = cursor_.position() - entry.range.offset;
    header_.entries.push_back(std::move(entry));
    return absl::OkStatus();
  }

  absl::Status SetAlignment() {
    const GgufValue* const value = header_.Find(kGgufAlignmentKey);
    if (value == nullptr) return absl::OkStatus();
    if (value->type != GgufType::kUInt32 || *value->integer > static_cast<uint64_t>(kMaxAlignment) ||
        !std::has_single_bit(*value->integer)) {
      return absl::DataLossError(absl::StrCat(kGgufAlignmentKey, " is ", Quote(value->text),
                                              ", expected a power of two, as uint32, up to ", kMaxAlignment));
    }
    header_.alignment = static_cast<int64_t>(*value->integer);
    return absl::OkStatus();
  }

  absl::Status ReadTensor() {
    GgufTensor tensor;
    FSDP_ASSIGN_OR_RETURN(tensor.name, cursor_.Text(kMaxTensorNameBytes));
    if (const absl::Status named = CheckTensorName(tensor.name); !named.ok()) {
      return absl::DataLossError(absl::StrCat("tensor ", header_.tensors.size(), ": ", named.message()));
    }
    if (!names_.insert(tensor.name).second) {
      return absl::DataLossError(absl::StrCat("tensor ", Quote(tensor.name), " is there twice"));
    }
    FSDP_RETURN_IF_ERROR(Take(kBytesOfTensor + 4 * std::ssize(tensor.name), kTensorAllowance));
    const absl::Status status = ReadPlace(tensor);
    if (!status.ok()) return Annotate(status, absl::StrCat("tensor ", Quote(tensor.name)));
    header_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status ReadPlace(GgufTensor& tensor) {
    FSDP_ASSIGN_OR_RETURN(const uint32_t rank, cursor_.U32());
    if (rank > static_cast<uint32_t>(kMaxGgufDims)) {
      return absl::DataLossError(absl::StrCat("it has ", rank, " dimensions, expected at most ", kMaxGgufDims));
    }
    // GGUF has the fastest dimension first, PyTorch last.
    absl::InlinedVector<int64_t, kMaxGgufDims> dims(rank);
    for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
      FSDP_ASSIGN_OR_RETURN(const uint64_t stated, cursor_.U64());
      *dim = static_cast<int64_t>(stated);  // Shape refuses a negative number
    }
    absl::StatusOr<Shape> shape = Shape::Create(dims);
    if (!shape.ok()) return absl::DataLossError(shape.status().message());
    tensor.shape = *std::move(shape);
    FSDP_ASSIGN_OR_RETURN(const uint32_t type, cursor_.U32());
    tensor.type = FindGgmlType(type);
    if (tensor.type == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("its type is ", type, ", which is none that this release knows, nor its size"));
    }
    FSDP_ASSIGN_OR_RETURN(const uint64_t offset, cursor_.U64());
    return SetPlace(tensor, offset);
  }

  // Sets the offset from the beginning of all elements, and the size.
  absl::Status SetPlace(GgufTensor& tensor, uint64_t offset) {
    const GgmlType& type = *tensor.type;
    const int64_t row = tensor.shape.rank() == 0 ? 1 : tensor.shape.dim(tensor.shape.rank() - 1);
    if (row % type.block_numel != 0) {
      return absl::DataLossError(absl::StrCat("its rows have ", row, " elements, expected a multiple of ",
                                              type.block_numel, " for ", std::string(type.name)));
    }
    const int64_t blocks = tensor.shape.numel() / type.block_numel;
    if (blocks > file_bytes_ / type.block_bytes) {
      return absl::DataLossError(absl::StrCat(tensor.shape.ToString(), " of ", std::string(type.name),
                                              " is larger than the file's ", file_bytes_, " bytes"));
    }
    tensor.nbytes = blocks * type.block_bytes;
    if (offset != static_cast<uint64_t>(end_)) {
      return absl::DataLossError(
          absl::StrCat("its elements begin at ", offset, ", expected ", end_, ", where those before it end"));
    }
    tensor.offset = end_;
    end_ = AlignGguf(end_ + tensor.nbytes, header_.alignment);
    if (end_ - header_.alignment > file_bytes_) {
      return absl::DataLossError(absl::StrCat("its elements end behind the file's ", file_bytes_, " bytes"));
    }
    return absl::OkStatus();
  }

  // Makes the offsets those in the file. The zeros after the last tensor may be missing.
  absl::Status PlaceTensors() {
    const int64_t begin = AlignGguf(cursor_.position(), header_.alignment);
    for (GgufTensor& tensor : header_.tensors) tensor.offset += begin;
    const bool is_empty = header_.tensors.empty();
    const int64_t least = is_empty ? cursor_.position() : header_.tensors.back().offset + header_.tensors.back().nbytes;
    if (file_bytes_ == least || file_bytes_ == begin + end_) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("its tensors end at byte ", least, ", but the file has ", file_bytes_,
                                            " bytes: it is truncated, or not all of it is GGUF"));
  }

  // Counts memory that grows faster than the file.
  absl::Status Take(int64_t nbytes, int64_t allowance) {
    taken_ += nbytes;
    if (taken_ <= allowance + 3 * cursor_.position()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("it names more keys and tensors in ", cursor_.position(),
                                            " bytes than a model has: they would take ", taken_, " bytes of memory"));
  }

  GgufCursor cursor_;
  const int64_t file_bytes_;
  GgufHeader header_;
  uint64_t tensors_ = 0;
  uint64_t entries_ = 0;
  absl::flat_hash_set<std::string> names_;  // of keys, then of tensors
  int64_t text_bytes_ = 0;
  int64_t taken_ = 0;
  int64_t end_ = 0;  // of the elements so far, with the zeros after them, from their beginning
};

}  // namespace

bool IsGgufFileKey(std::string_view key) {
  return key == kGgufAlignmentKey || key == kGgufSplitNumberKey || key == kGgufSplitCountKey ||
         key == kGgufSplitTensorsKey;
}

const GgufValue* GgufHeader::Find(std::string_view key) const {
  const auto at =
      std::find_if(entries.begin(), entries.end(), [&](const GgufEntry& entry) { return entry.key == key; });
  return at == entries.end() ? nullptr : &at->value;
}

absl::StatusOr<GgufHeader> ReadGgufHeader(const File& file, int64_t alignment) {
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, file.Size());
  return HeaderReader(file, nbytes, alignment).Read();
}

}  // namespace fsdp
