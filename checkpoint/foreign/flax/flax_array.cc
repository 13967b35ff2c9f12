// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/flax/flax_array.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxDims = 64;
constexpr int64_t kMaxNameBytes = 64;  // of a dtype, and of a key in a map of chunks

absl::Status Damaged(const std::string& what) { return absl::DataLossError(what); }

// The dtype that NumPy and ml_dtypes give this name. Their float4 takes a byte for each number.
std::optional<DType> DTypeOfName(const std::string& name) {
  if (const std::optional<NarrowInteger> narrow = NarrowIntegerOfName(name)) return narrow->dtype;
  const absl::StatusOr<DType> dtype = ParseDType(name);
  if (!dtype.ok() || IsPacked(*dtype) || *dtype == DType::kComplex32) return std::nullopt;
  return *dtype;
}

absl::StatusOr<Shape> ShapeOf(const std::vector<int64_t>& dims) {
  absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) return Damaged(std::string(shape.status().message()));
  return shape;
}

absl::StatusOr<int64_t> ReadDim(MsgpackCursor& cursor) {
  FSDP_ASSIGN_OR_RETURN(const MsgpackToken dim, cursor.Expect(MsgpackType::kInteger, "a dimension"));
  return static_cast<int64_t>(dim.integer);  // Shape refuses a negative number
}

absl::Status CheckRank(int64_t rank) {
  if (rank <= kMaxDims) return absl::OkStatus();
  return Damaged(absl::StrCat("it has ", rank, " dimensions, expected at most ", kMaxDims));
}

absl::StatusOr<std::string> ReadShortText(MsgpackCursor& cursor, const char* what) {
  FSDP_ASSIGN_OR_RETURN(const MsgpackToken text, cursor.Expect(MsgpackType::kText, what));
  return cursor.Bytes(text, kMaxNameBytes);
}

// Reads the key "`number`".
absl::Status ReadNumber(MsgpackCursor& cursor, int64_t number) {
  FSDP_ASSIGN_OR_RETURN(const std::string key, ReadShortText(cursor, "the number of a part"));
  if (key == absl::StrCat(number)) return absl::OkStatus();
  return Damaged(absl::StrCat("part ", Quote(key), " is where ", number, " is expected"));
}

// {"0": dim, "1": dim}
absl::StatusOr<Shape> ReadShapeMap(MsgpackCursor& cursor, int64_t rank) {
  FSDP_RETURN_IF_ERROR(CheckRank(rank));
  std::vector<int64_t> dims(rank);
  for (int64_t d = 0; d < rank; ++d) {
    FSDP_RETURN_IF_ERROR(ReadNumber(cursor, d));
    FSDP_ASSIGN_OR_RETURN(dims[d], ReadDim(cursor));
  }
  return ShapeOf(dims);
}

// {"0": array, "1": array}, joined to one array of one dimension.
absl::StatusOr<StoredArray> ReadChunks(MsgpackCursor& cursor, int64_t count) {
  StoredArray joined;
  int64_t numel = 0;
  for (int64_t i = 0; i < count; ++i) {
    FSDP_RETURN_IF_ERROR(ReadNumber(cursor, i));
    FSDP_ASSIGN_OR_RETURN(const MsgpackToken token, cursor.Expect(MsgpackType::kExtension, "a chunk"));
    if (token.extension != kFlaxArray) return Damaged(absl::StrCat("chunk ", i, " is not an array"));
    const int64_t end = cursor.position() + token.length;
    FSDP_ASSIGN_OR_RETURN(StoredArray chunk, ReadStoredArray(cursor));
    FSDP_RETURN_IF_ERROR(CheckExtensionEnd(cursor, end));
    if (chunk.shape.rank() != 1) return Damaged(absl::StrCat("chunk ", i, " has shape ", chunk.shape.ToString()));
    if (i > 0 && chunk.dtype_name != joined.dtype_name) {
      return Damaged(absl::StrCat("chunk ", i, " has dtype ", Printable(chunk.dtype_name), ", the first ",
                                  Printable(joined.dtype_name)));
    }
    numel += chunk.shape.numel();
    joined.dtype_name = std::move(chunk.dtype_name);
    joined.dtype = chunk.dtype;
    joined.narrow = chunk.narrow;
    joined.pieces.push_back(chunk.pieces[0]);
  }
  FSDP_ASSIGN_OR_RETURN(joined.shape, ShapeOf({numel}));
  return joined;
}

}  // namespace

absl::StatusOr<StoredArray> ReadStoredArray(MsgpackCursor& cursor) {
  FSDP_ASSIGN_OR_RETURN(const MsgpackToken parts, cursor.Expect(MsgpackType::kArray, "an array"));
  if (parts.length != 3) return Damaged(absl::StrCat("an array has ", parts.length, " parts, expected 3"));
  FSDP_ASSIGN_OR_RETURN(const MsgpackToken rank, cursor.Expect(MsgpackType::kArray, "a shape"));
  FSDP_RETURN_IF_ERROR(CheckRank(rank.length));
  std::vector<int64_t> dims(rank.length);
  for (int64_t& dim : dims) {
    FSDP_ASSIGN_OR_RETURN(dim, ReadDim(cursor));
  }
  StoredArray array;
  FSDP_ASSIGN_OR_RETURN(array.shape, ShapeOf(dims));
  FSDP_ASSIGN_OR_RETURN(array.dtype_name, ReadShortText(cursor, "a dtype"));
  array.dtype = DTypeOfName(array.dtype_name);
  array.narrow = NarrowIntegerOfName(array.dtype_name);
  FSDP_ASSIGN_OR_RETURN(const MsgpackToken bytes, cursor.Expect(MsgpackType::kBinary, "the elements"));
  array.pieces = {{cursor.position(), bytes.length}};
  FSDP_RETURN_IF_ERROR(cursor.Skip(bytes.length));
  if (!array.dtype) return array;
  // The division first: for a hostile shape the product could overflow.
  const int64_t size = SizeOf(*array.dtype);
  const int64_t numel = array.shape.numel();
  if (numel <= bytes.length / size && numel * size == bytes.length) return array;
  return Damaged(absl::StrCat("it has ", bytes.length, " bytes of elements, which is not the size of ",
                              array.shape.ToString(), " ", array.dtype_name));
}

absl::Status CheckExtensionEnd(const MsgpackCursor& cursor, int64_t end) {
  if (cursor.position() == end) return absl::OkStatus();
  return Damaged(
      absl::StrCat("its parts end at byte ", cursor.position(), ", but the whole states byte ", end, " as its end"));
}

absl::StatusOr<StoredArray> ReadChunkedArray(MsgpackCursor& cursor, int64_t pairs) {
  FSDP_ASSIGN_OR_RETURN(const MsgpackToken mark, cursor.Expect(MsgpackType::kBool, "the mark of chunks"));
  if (mark.integer != 1 || pairs != 3) return Damaged("expected true, a shape and chunks");
  std::optional<Shape> shape;
  std::optional<StoredArray> array;
  for (int i = 0; i < 2; ++i) {
    FSDP_ASSIGN_OR_RETURN(const std::string key, ReadShortText(cursor, "a key"));
    FSDP_ASSIGN_OR_RETURN(const MsgpackToken map, cursor.Expect(MsgpackType::kMap, "a part"));
    if (key == "shape" && !shape) {
      FSDP_ASSIGN_OR_RETURN(shape, ReadShapeMap(cursor, map.length));
    } else if (key == "chunks" && !array && map.length > 0) {
      FSDP_ASSIGN_OR_RETURN(array, ReadChunks(cursor, map.length));
    } else {
      return Damaged(absl::StrCat("unexpected part ", Quote(key)));
    }
  }
  // Two different keys were read, so both parts are there.
  if (array->shape.numel() != shape->numel()) {
    return Damaged(
        absl::StrCat("its chunks have ", array->shape.numel(), " elements, its shape is ", shape->ToString()));
  }
  array->shape = *std::move(shape);
  return *std::move(array);
}

}  // namespace fsdp
