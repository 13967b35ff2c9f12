// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/flax/flax_tree.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/utf8.h"
#include "fsdp/checkpoint/foreign/flax/flax_array.h"
#include "fsdp/checkpoint/foreign/flax/msgpack_cursor.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxKeyBytes = 65'535;
constexpr int64_t kMaxValueBytes = int64_t{1} << 20;  // of a text
constexpr size_t kMostNamed = 20;

// Memory for a leaf in tree, source and state, besides its name, which is in each.
constexpr int64_t kBytesOfLeaf = 600;
constexpr int64_t kBytesOfKey = 96;
constexpr int64_t kAllowance = int64_t{48} << 20;

absl::Status Damaged(const std::string& what) { return absl::DataLossError(what); }

Json JsonOfNumber(double number) {
  if (std::isfinite(number)) return number;
  const char* const text = std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
  return {{"__python__", "float"}, {"value", text}};
}

class TreeReader {
 public:
  TreeReader(const File& file, int64_t nbytes) : cursor_(file, nbytes) {}

  absl::StatusOr<FlaxTree> Read() {
    FSDP_ASSIGN_OR_RETURN(const MsgpackToken root, cursor_.Next());
    if (root.type != MsgpackType::kMap) {
      return Damaged(absl::StrCat("it is ", MsgpackTypeName(root.type), ", expected a map of names"));
    }
    FSDP_RETURN_IF_ERROR(ReadMap("", root.length, 0));
    if (cursor_.remaining() != 0) {
      return Damaged(absl::StrCat(cursor_.remaining(), " bytes follow the tree, which ends at byte ",
                                  cursor_.position(), ": the file is damaged, or two files are joined"));
    }
    return std::move(tree_);
  }

 private:
  absl::Status ReadMap(const std::string& name, int64_t pairs, int depth) {
    if (depth == kMaxDepth) return Damaged(absl::StrCat("it has more than ", kMaxDepth, " levels"));
    if (pairs == 0) return AddEmpty(name);
    absl::flat_hash_set<std::string> keys;
    for (int64_t i = 0; i < pairs; ++i) {
      FSDP_ASSIGN_OR_RETURN(std::string key, ReadKey());
      const bool is_mark = std::string_view(key) == kFlaxChunkedKey;
      if (i == 0 && is_mark) return ReadChunked(name, pairs);
      if (is_mark) return Damaged(absl::StrCat(std::string(kFlaxChunkedKey), " is not the first key of its map"));
      const std::string child = name.empty() ? key : absl::StrCat(name, ".", key);
      FSDP_RETURN_IF_ERROR(Take(kBytesOfKey + std::ssize(key) + std::ssize(child)));
      FSDP_RETURN_IF_ERROR(ReadValue(child, depth + 1));
      if (!keys.insert(std::move(key)).second) return Damaged(absl::StrCat(Quote(child), " is there twice"));
    }
    Return(keys);
    return absl::OkStatus();
  }

  // Flax writes texts; msgpack_restore accepts integers, too.
  absl::StatusOr<std::string> ReadKey() {
    FSDP_ASSIGN_OR_RETURN(const MsgpackToken token, cursor_.Next());
    if (token.type == MsgpackType::kInteger && !token.is_negative) return absl::StrCat(token.integer);
    if (token.type != MsgpackType::kText) {
      return Damaged(absl::StrCat("a key before byte ", cursor_.position(), " is ", MsgpackTypeName(token.type),
                                  ", expected a text"));
    }
    FSDP_ASSIGN_OR_RETURN(std::string key, cursor_.Bytes(token, kMaxKeyBytes));
    if (IsUtf8(key)) return key;
    return Damaged(absl::StrCat("the key ", Quote(key), " is not UTF-8"));
  }

  // Adds the place to an error, once.
  absl::Status ReadValue(const std::string& name, int depth) {
    FSDP_ASSIGN_OR_RETURN(const MsgpackToken token, cursor_.Next());
    if (token.type == MsgpackType::kMap) return ReadMap(name, token.length, depth);
    if (token.type == MsgpackType::kArray) return ReadItems(name, token.length, depth);
    const absl::Status status =
        token.type == MsgpackType::kExtension ? ReadExtension(name, token) : ReadScalar(name, token);
    return status.ok() ? status : Annotate(status, Quote(name));
  }

  absl::Status ReadItems(const std::string& name, int64_t items, int depth) {
    if (depth == kMaxDepth) return Damaged(absl::StrCat("it has more than ", kMaxDepth, " levels"));
    if (items == 0) return AddEmpty(name);
    for (int64_t i = 0; i < items; ++i) FSDP_RETURN_IF_ERROR(ReadValue(absl::StrCat(name, ".", i), depth + 1));
    return absl::OkStatus();
  }

  absl::Status ReadScalar(const std::string& name, const MsgpackToken& token) {
    std::optional<int64_t> integer;
    Json json;
    switch (token.type) {
      case MsgpackType::kBool:
        json = token.integer == 1;
        break;
      case MsgpackType::kInteger:
        if (token.is_negative) json = static_cast<int64_t>(token.integer);
        if (!token.is_negative) json = token.integer;
        if (!token.is_negative && token.integer <= INT64_MAX) integer = static_cast<int64_t>(token.integer);
        break;
      case MsgpackType::kFloat:
        json = JsonOfNumber(token.number);
        break;
      case MsgpackType::kText:
      case MsgpackType::kBinary:
        return ReadText(name, token);
      default:
        break;  // nil: JSON's null
    }
    return AddValue(name, json, integer);
  }

  absl::Status ReadText(const std::string& name, const MsgpackToken& token) {
    if (token.length > kMaxValueBytes) {
      LeaveOut(name, absl::StrCat(MsgpackTypeName(token.type), " of ", token.length, " bytes"));
      return cursor_.Skip(token.length);
    }
    FSDP_ASSIGN_OR_RETURN(const std::string bytes, cursor_.Bytes(token, kMaxValueBytes));
    if (token.type == MsgpackType::kBinary) {
      return AddValue(name, {{"__python__", "bytes"}, {"hex", absl::BytesToHexString(bytes)}}, std::nullopt);
    }
    if (!IsUtf8(bytes)) return Damaged("it is a text that is not UTF-8");
    return AddValue(name, bytes, std::nullopt);
  }

  absl::Status ReadExtension(const std::string& name, const MsgpackToken& token) {
    const int64_t end = cursor_.position() + token.length;
    if (token.extension == kFlaxComplex) {
      FSDP_RETURN_IF_ERROR(ReadComplex(name));
    } else if (token.extension == kFlaxArray || token.extension == kFlaxScalar) {
      FSDP_ASSIGN_OR_RETURN(StoredArray array, ReadStoredArray(cursor_));
      FSDP_RETURN_IF_ERROR(AddArray(name, std::move(array)));
    } else {
      LeaveOut(name, absl::StrCat("extension ", token.extension, " of MessagePack, which Flax does not write"));
      return cursor_.Skip(token.length);
    }
    return CheckExtensionEnd(cursor_, end);
  }

  absl::Status ReadComplex(const std::string& name) {
    FSDP_ASSIGN_OR_RETURN(const MsgpackToken parts, cursor_.Expect(MsgpackType::kArray, "a complex number"));
    if (parts.length != 2) return Damaged(absl::StrCat("a complex number has ", parts.length, " parts"));
    FSDP_ASSIGN_OR_RETURN(const MsgpackToken real, cursor_.Expect(MsgpackType::kFloat, "the real part"));
    FSDP_ASSIGN_OR_RETURN(const MsgpackToken imaginary, cursor_.Expect(MsgpackType::kFloat, "the imaginary part"));
    return AddValue(name,
                    {{"__python__", "complex"},
                     {"items", Json::array({JsonOfNumber(real.number), JsonOfNumber(imaginary.number)})}},
                    std::nullopt);
  }

  // The rest of a map that began with kFlaxChunkedKey.
  absl::Status ReadChunked(const std::string& name, int64_t pairs) {
    absl::StatusOr<StoredArray> array = ReadChunkedArray(cursor_, pairs);
    if (!array.ok()) return Annotate(array.status(), absl::StrCat(Quote(name), ", an array in chunks"));
    return AddArray(name, *std::move(array));
  }

  absl::Status AddArray(const std::string& name, StoredArray stored) {
    for (const ByteRange& piece : stored.pieces) payload_bytes_ += piece.nbytes;
    if (!stored.dtype) {
      LeaveOut(name, Printable(stored.dtype_name));
      return absl::OkStatus();
    }
    FSDP_RETURN_IF_ERROR(CheckName(name));
    tree_.arrays.push_back({name, *stored.dtype, stored.narrow, std::move(stored.shape), std::move(stored.pieces)});
    return absl::OkStatus();
  }

  absl::Status AddValue(const std::string& name, const Json& json, std::optional<int64_t> integer) {
    FSDP_RETURN_IF_ERROR(CheckName(name));
    std::string text = json.dump();
    FSDP_RETURN_IF_ERROR(Take(2 * std::ssize(text)));
    tree_.values.push_back({name, std::move(text), integer});
    return absl::OkStatus();
  }

  absl::Status CheckName(const std::string& name) {
    FSDP_RETURN_IF_ERROR(Take(kBytesOfLeaf + 4 * std::ssize(name)));
    const absl::Status status = CheckTensorName(name);
    return status.ok() ? status : Damaged(std::string(status.message()));
  }

  absl::Status AddEmpty(const std::string& name) {
    ++tree_.empty_count;
    if (tree_.empty.size() < kMostNamed) tree_.empty.push_back(name);
    return absl::OkStatus();
  }

  void LeaveOut(const std::string& name, const std::string& why) {
    ++tree_.left_out_count;
    if (tree_.left_out.size() < kMostNamed) tree_.left_out.push_back(absl::StrCat(Quote(name), " (", why, ")"));
  }

  // Counts memory that may grow faster than what was read of the file, without elements.
  absl::Status Take(int64_t nbytes) {
    taken_ += nbytes;
    const int64_t read = cursor_.position() - payload_bytes_;
    if (taken_ <= kAllowance + 3 * read) return absl::OkStatus();
    return Damaged(absl::StrCat("the names and values in ", read, " bytes would take ", taken_, " bytes of memory"));
  }

  void Return(const absl::flat_hash_set<std::string>& keys) {
    for (const std::string& key : keys) taken_ -= kBytesOfKey + std::ssize(key);
  }

  MsgpackCursor cursor_;
  FlaxTree tree_;
  int64_t taken_ = 0;
  int64_t payload_bytes_ = 0;
};

}  // namespace

absl::StatusOr<FlaxTree> ReadFlaxTree(const File& file) {
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, file.Size());
  return TreeReader(file, nbytes).Read();
}

}  // namespace fsdp
