// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/zarr_metadata.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/zarr_dtype.h"
#include "fsdp/checkpoint/source/json_view.h"

namespace fsdp {
namespace {

// A chunk that is decoded as a whole. Blosc's and many readers' bound is 2 GiB.
constexpr int64_t kMaxChunkBytes = int64_t{1} << 40;

absl::Status Unread(const char* what, std::string_view found, const char* expected) {
  return absl::UnimplementedError(absl::StrCat(what, " ", Quote(found), " is not read, expected ", expected));
}

// The text of member `name`; "" if it is not there, or no text.
std::string TextMember(const JsonView& object, const char* name) {
  const std::optional<JsonView> member = object.Find(name);
  return member ? member->string().value_or("") : "";
}

// The member `name`, as an object; an object without members if it is not there.
JsonView MemberOrEmpty(const JsonView& object, const char* name) {
  static const auto* const kEmpty = new JsonView(*JsonView::Parse("{}"));
  const std::optional<JsonView> member = object.Find(name);
  return member && member->is_object() ? *member : *kEmpty;
}

absl::StatusOr<Shape> ShapeMember(const JsonView& object, const char* name) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, IntegerArrayMember(object, name, kMaxZarrRank));
  absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (shape.ok()) return shape;
  return absl::DataLossError(absl::StrCat("member \"", name, "\": ", std::string(shape.status().message())));
}

// The shape of chunks or shards: one dimension for each of the array's, none of them 0.
absl::StatusOr<Shape> PartMember(const JsonView& object, const char* name, const Shape& whole) {
  FSDP_ASSIGN_OR_RETURN(Shape part, ShapeMember(object, name));
  if (part.rank() == whole.rank() && part.numel() > 0) return part;
  return absl::DataLossError(
      absl::StrCat("member \"", name, "\" is ", part.ToString(), ", which cannot divide ", whole.ToString()));
}

absl::Status CheckFormat(const JsonView& json, int64_t expected) {
  FSDP_ASSIGN_OR_RETURN(const int64_t format, IntegerMember(json, "zarr_format"));
  if (format == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("zarr_format is ", format, ", expected ", expected));
}

// A chunk's size comes from the file and becomes the size of memory.
absl::Status CheckChunkBytes(const ZarrMetadata& array) {
  const int64_t size = array.dtype ? SizeOf(*array.dtype) : 1;
  if (array.chunk.numel() <= kMaxChunkBytes / size && array.stored().numel() <= kMaxChunkBytes / size) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("a chunk of it, ", array.stored().ToString(), ", has more than ", kMaxChunkBytes, " bytes"));
}

// The strides of the array's dimensions in a chunk whose dimensions were put into the order `order` and then stored
// row-major: order[0] is the slowest.
std::vector<int64_t> StridesOf(const Shape& chunk, const std::vector<int64_t>& order) {
  std::vector<int64_t> strides(chunk.rank(), 1);
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= chunk.dim(static_cast<int>(order[i]));
  }
  return strides;
}

std::vector<int64_t> RowMajorOrder(int rank) {
  std::vector<int64_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// A dtype without a counterpart (float4, text) is no error here: the array is named as unreadable, and the others stay
// readable.
absl::Status SetDType(const std::string& name, const std::optional<JsonView>& fill, ZarrMetadata& array) {
  array.dtype_name = name;
  const std::optional<ZarrDType> dtype = ZarrDTypeOfName(name);
  if (!dtype) return absl::OkStatus();
  array.dtype = dtype->dtype;
  array.is_swapped = dtype->is_swapped;
  array.narrow = NarrowIntegerOfName(name);
  FSDP_ASSIGN_OR_RETURN(array.fill, FillBytes(*dtype, fill));
  return absl::OkStatus();
}

absl::StatusOr<Compressor> CompressorOf(const std::string& id) {
  if (id == "zstd") return Compressor::kZstd;
  if (id == "gzip" || id == "zlib") return Compressor::kZlib;
  if (id == "blosc") return Compressor::kBlosc;
  return Unread("compressor", id, "zstd, gzip, zlib or blosc");
}

// The codecs of version 3, in the order in which a writer applies them.
class Codecs {
 public:
  explicit Codecs(ZarrMetadata& array) : array_(array), order_(RowMajorOrder(array.shape.rank())) {}

  // Sets chunk, strides and codecs of the array.
  absl::Status ReadAll(const JsonView& list) {
    std::optional<JsonView> sharding;
    FSDP_RETURN_IF_ERROR(Read(list, /*is_index=*/false, array_.codec, sharding));
    if (!sharding) {
      array_.strides = StridesOf(array_.chunk, order_);
      return absl::OkStatus();
    }
    // The grid of chunks in a shard would be transposed, too.
    if (order_ != RowMajorOrder(array_.shape.rank())) return Unread("codec", "transpose", "no transposed shards");
    array_.shard = array_.chunk;
    FSDP_ASSIGN_OR_RETURN(array_.chunk, PartMember(*sharding, "chunk_shape", array_.shape));
    for (int d = 0; d < array_.chunk.rank(); ++d) {
      if (array_.shard->dim(d) % array_.chunk.dim(d) != 0) {
        return absl::DataLossError(absl::StrCat("a shard, ", array_.shard->ToString(), ", is no multiple of a chunk, ",
                                                array_.chunk.ToString()));
      }
    }
    std::optional<JsonView> inner;
    FSDP_ASSIGN_OR_RETURN(const JsonView codecs, ArrayMember(*sharding, "codecs"));
    FSDP_RETURN_IF_ERROR(Read(codecs, /*is_index=*/false, array_.codec, inner));
    if (inner) return Unread("codec", "sharding_indexed", "no shards in a shard");
    FSDP_ASSIGN_OR_RETURN(const JsonView index_codecs, ArrayMember(*sharding, "index_codecs"));
    FSDP_RETURN_IF_ERROR(Read(index_codecs, /*is_index=*/true, array_.index_codec, inner));
    array_.strides = StridesOf(array_.chunk, order_);
    const std::optional<JsonView> location = sharding->Find("index_location");
    const std::string where = location ? location->string().value_or("") : "end";
    if (where != "start" && where != "end") return Unread("index_location", where, "start or end");
    array_.is_index_first = where == "start";
    return absl::OkStatus();
  }

 private:
  // One list of codecs. One with sharding has nothing else but the transposition of the array.
  absl::Status Read(const JsonView& list, bool is_index, ChunkCodec& codec, std::optional<JsonView>& sharding) {
    bool has_bytes = false;
    for (const JsonView item : list) {
      const std::string name = NameOfCodec(item);
      const JsonView configuration = MemberOrEmpty(item, "configuration");
      if (name == "bytes" || name == "endian") {
        if (has_bytes) return absl::DataLossError("codec \"bytes\" is there twice");
        has_bytes = true;
        FSDP_RETURN_IF_ERROR(SetByteOrder(configuration, is_index));
      } else if (name == "transpose" && !has_bytes && !is_index) {
        FSDP_RETURN_IF_ERROR(Transpose(configuration));
      } else if (name == "sharding_indexed" && !has_bytes && !is_index) {
        sharding = configuration;
        has_bytes = true;
      } else if (name == "crc32c" && has_bytes && !sharding) {
        const bool is_before = codec.compressor == Compressor::kNone && !codec.crc_of_elements && !is_index;
        bool& crc = is_before ? codec.crc_of_elements : codec.crc_of_stored;
        if (crc) return Unread("codecs", list.text(), "one crc32c before and one after a compressor");
        crc = true;
      } else {
        if (!has_bytes || sharding || is_index || codec.compressor != Compressor::kNone || codec.crc_of_stored) {
          return Unread("codecs", list.text(), "bytes, crc32c, a compressor, crc32c, or only sharding_indexed");
        }
        FSDP_ASSIGN_OR_RETURN(codec.compressor, CompressorOf(name));
      }
    }
    if (!has_bytes) return absl::DataLossError("codec \"bytes\" is missing");
    // Without a compressor both are one: of the stored bytes.
    if (codec.compressor == Compressor::kNone && codec.crc_of_elements && !codec.crc_of_stored) {
      codec.crc_of_elements = false;
      codec.crc_of_stored = true;
    }
    return absl::OkStatus();
  }

  static std::string NameOfCodec(const JsonView& item) {
    if (const std::optional<std::string> name = item.string()) return *name;
    return TextMember(item, "name");
  }

  // "bytes" may be swapped on top of the dtype's own order only in version 3, whose dtypes have no order.
  absl::Status SetByteOrder(const JsonView& configuration, bool is_index) {
    const std::optional<JsonView> member = configuration.Find("endian");
    const std::string endian = member ? member->string().value_or("") : "little";
    if (endian == "little") return absl::OkStatus();
    if (endian != "big" || is_index) return Unread("endian", endian, is_index ? "little" : "little or big");
    const bool has_order = array_.dtype && SizeOf(PartOf(*array_.dtype)) > 1;
    if (!has_order) return absl::OkStatus();
    array_.is_swapped = true;
    const auto part = SizeOf(PartOf(*array_.dtype));
    for (auto at = array_.fill.begin(); at != array_.fill.end(); at += part) std::reverse(at, at + part);
    return absl::OkStatus();
  }

  // {"order": [1, 0]}; early writers have "C" or "F".
  absl::Status Transpose(const JsonView& configuration) {
    const std::optional<JsonView> member = configuration.Find("order");
    std::vector<int64_t> by = RowMajorOrder(array_.shape.rank());
    if (member && member->string() == "F") {
      std::reverse(by.begin(), by.end());
    } else if (!member || member->string() != "C") {
      FSDP_ASSIGN_OR_RETURN(by, IntegerArrayMember(configuration, "order", kMaxZarrRank));
    }
    std::vector<int64_t> sorted = by;
    std::sort(sorted.begin(), sorted.end());
    if (sorted != RowMajorOrder(array_.shape.rank())) {
      return absl::DataLossError("codec \"transpose\": its order is no permutation of the dimensions");
    }
    std::vector<int64_t> order;
    order.reserve(by.size());
    for (const int64_t d : by) order.push_back(order_[d]);
    order_ = std::move(order);
    return absl::OkStatus();
  }

  ZarrMetadata& array_;
  std::vector<int64_t> order_;
};

}  // namespace

// "0.1" or "0/1" in version 2, "c/0/1" in version 3; an array without dimensions has one chunk, "0" or "c".
std::string ZarrMetadata::KeyOf(absl::Span<const int64_t> index) const {
  const std::string between(1, separator);
  std::string numbers = absl::StrJoin(index, between);
  if (key_prefix.empty()) return index.empty() ? "0" : numbers;
  return index.empty() ? key_prefix : absl::StrCat(key_prefix, between, numbers);
}

// The reverse of KeyOf. Numbers with leading zeros or beyond the grid are not the array's: other files may be next to
// its chunks.
std::optional<std::vector<int64_t>> ZarrMetadata::IndexOfKey(std::string_view rest) const {
  if (shape.rank() == 0) {
    return rest == KeyOf({}) ? std::make_optional(std::vector<int64_t>()) : std::nullopt;
  }
  std::vector<absl::string_view> parts = absl::StrSplit(absl::string_view(rest.data(), rest.size()), separator);
  if (!key_prefix.empty()) {
    if (parts[0] != key_prefix) return std::nullopt;
    parts.erase(parts.begin());
  }
  std::vector<int64_t> index;
  for (const absl::string_view part : parts) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(part, &number) || absl::StrCat(number) != part) return std::nullopt;
    index.push_back(number);
  }
  const std::vector<int64_t> grid = GridOf(shape, stored());
  if (index.size() != grid.size()) return std::nullopt;
  for (size_t d = 0; d < grid.size(); ++d) {
    if (index[d] < 0 || index[d] >= grid[d]) return std::nullopt;
  }
  return index;
}

std::vector<int64_t> GridOf(const Shape& shape, const Shape& part) {
  std::vector<int64_t> grid;
  for (int d = 0; d < shape.rank(); ++d) {
    grid.push_back(shape.dim(d) / part.dim(d) + (shape.dim(d) % part.dim(d) == 0 ? 0 : 1));
  }
  return grid;
}

// Version 2: https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html
absl::StatusOr<ZarrMetadata> ParseZarray(std::string_view text) {
  FSDP_ASSIGN_OR_RETURN(const JsonView json, JsonView::Parse(text));
  FSDP_RETURN_IF_ERROR(CheckFormat(json, 2));
  ZarrMetadata array;
  FSDP_ASSIGN_OR_RETURN(array.shape, ShapeMember(json, "shape"));
  FSDP_ASSIGN_OR_RETURN(array.chunk, PartMember(json, "chunks", array.shape));
  const std::optional<JsonView> dtype = json.Find("dtype");
  if (!dtype) return absl::DataLossError("member \"dtype\" is missing");
  FSDP_RETURN_IF_ERROR(SetDType(dtype->string().value_or(std::string(dtype->text())), json.Find("fill_value"), array));
  const std::string order = TextMember(json, "order");
  if (order != "C" && order != "F") return absl::DataLossError(absl::StrCat("order is ", Quote(order)));
  std::vector<int64_t> dims = RowMajorOrder(array.shape.rank());
  if (order == "F") std::reverse(dims.begin(), dims.end());
  array.strides = StridesOf(array.chunk, dims);
  const std::optional<JsonView> filters = json.Find("filters");
  if (filters && filters->text() != "null" && filters->size() != 0) return Unread("filters", filters->text(), "null");
  const std::optional<JsonView> compressor = json.Find("compressor");
  if (!compressor) return absl::DataLossError("member \"compressor\" is missing");
  if (compressor->text() != "null") {
    FSDP_ASSIGN_OR_RETURN(array.codec.compressor, CompressorOf(TextMember(*compressor, "id")));
  }
  const std::optional<JsonView> separator = json.Find("dimension_separator");
  const std::string between = separator ? separator->string().value_or("") : ".";
  if (between != "." && between != "/") return Unread("dimension_separator", between, "\".\" or \"/\"");
  array.separator = between[0];
  FSDP_RETURN_IF_ERROR(CheckChunkBytes(array));
  return array;
}

// Version 3: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html. What it says must be understood wholly: an
// unknown codec, grid or transformer would make other elements.
absl::StatusOr<ZarrMetadata> ParseZarrJson(std::string_view text) {
  FSDP_ASSIGN_OR_RETURN(const JsonView json, JsonView::Parse(text));
  FSDP_RETURN_IF_ERROR(CheckFormat(json, 3));
  const std::string type = TextMember(json, "node_type");
  if (type != "array") return absl::DataLossError(absl::StrCat("node_type is ", Quote(type), ", expected \"array\""));
  ZarrMetadata array;
  FSDP_ASSIGN_OR_RETURN(array.shape, ShapeMember(json, "shape"));
  const std::optional<JsonView> dtype = json.Find("data_type");
  if (!dtype) return absl::DataLossError("member \"data_type\" is missing");
  FSDP_RETURN_IF_ERROR(SetDType(dtype->string().value_or(std::string(dtype->text())), json.Find("fill_value"), array));
  const JsonView grid = MemberOrEmpty(json, "chunk_grid");
  const std::string grid_name = TextMember(grid, "name");
  if (grid_name != "regular") return Unread("chunk_grid", grid_name, "\"regular\"");
  FSDP_ASSIGN_OR_RETURN(array.chunk, PartMember(MemberOrEmpty(grid, "configuration"), "chunk_shape", array.shape));
  const JsonView encoding = MemberOrEmpty(json, "chunk_key_encoding");
  const std::string encoding_name = TextMember(encoding, "name");
  if (encoding_name != "default" && encoding_name != "v2") {
    return Unread("chunk_key_encoding", encoding_name, "\"default\" or \"v2\"");
  }
  if (encoding_name == "default") array.key_prefix.push_back('c');
  const std::string usual = encoding_name == "default" ? "/" : ".";
  const std::string between = StringMember(MemberOrEmpty(encoding, "configuration"), "separator").value_or(usual);
  if (between != "." && between != "/") return Unread("separator", between, "\".\" or \"/\"");
  array.separator = between[0];
  const std::optional<JsonView> transformers = json.Find("storage_transformers");
  if (transformers && transformers->size() != 0) return Unread("storage_transformers", transformers->text(), "none");
  FSDP_ASSIGN_OR_RETURN(const JsonView codecs, ArrayMember(json, "codecs"));
  FSDP_RETURN_IF_ERROR(Codecs(array).ReadAll(codecs));
  FSDP_RETURN_IF_ERROR(CheckChunkBytes(array));
  return array;
}

}  // namespace fsdp
