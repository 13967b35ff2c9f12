// SPDX-License-Identifier: Apache-2.0
//
// numpy/lib/format.py and NEP 1 define the format. NumPy evaluates the text with ast.literal_eval and then accepts only
// a dict of exactly three keys, so a reader needs a grammar for exactly these.
#include "fsdp/checkpoint/foreign/npz/npy_header.h"

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr int64_t kAlignment = 64;

absl::Status Broken(const std::string& what) { return absl::DataLossError(absl::StrCat("npy header: ", what)); }

// A type as a descr names it, without its byte order.
struct NamedType {
  std::string_view code;
  DType dtype;
};
constexpr NamedType kTypes[] = {
    {"f8", DType::kFloat64}, {"f4", DType::kFloat32},   {"f2", DType::kFloat16},     {"V2", DType::kBFloat16},
    {"i8", DType::kInt64},   {"i4", DType::kInt32},     {"i2", DType::kInt16},       {"i1", DType::kInt8},
    {"u8", DType::kUInt64},  {"u4", DType::kUInt32},    {"u2", DType::kUInt16},      {"u1", DType::kUInt8},
    {"b1", DType::kBool},    {"c8", DType::kComplex64}, {"c16", DType::kComplex128},
};

// The reason why an array of this type, given without its byte order, is not a tensor.
std::string WhyNoTensor(std::string_view code) {
  switch (code.empty() ? '\0' : code[0]) {
    case 'O':
      return "Python objects, which are a pickle: refused, and nothing is executed";
    case 'U':
    case 'S':
    case 'a':
      return "texts";
    case 'M':
    case 'm':
      return "dates or durations";
    case 'V':
      return code == "V1" ? "bytes of a float8 type that the file does not name: save them as uint8, or as safetensors"
                          : "bytes of a type that the file does not name";
    default:
      return "a type that a checkpoint does not have";
  }
}

// Sets dtype, is_swapped and why from `descr`.
void SetType(NpyHeader& header) {
  std::string_view code = header.descr;
  const char order = code.empty() ? '\0' : code[0];
  if (absl::StrContains("<>|=", order) && order != '\0') code.remove_prefix(1);
  for (const NamedType& type : kTypes) {
    if (type.code == code) header.dtype = type.dtype;
  }
  header.is_swapped = order == '>' && header.dtype && SizeOf(*header.dtype) > 1;
  if (!header.dtype) header.why = WhyNoTensor(code);
}

// Consumes the literal from its front. Every function skips white space first.
class Literal {
 public:
  explicit Literal(std::string_view text) : rest_(text) {}

  // Consumes the character and returns true if it is the next one.
  bool Take(char c) {
    SkipSpace();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool TakeWord(std::string_view word) {
    SkipSpace();
    if (rest_.substr(0, word.size()) != word) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  // A text in quotes of either kind, without escapes.
  std::optional<std::string> TakeText() {
    SkipSpace();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return std::nullopt;
    const size_t end = rest_.find(rest_[0], 1);
    if (end == rest_.npos) return std::nullopt;
    std::string text(rest_.substr(1, end - 1));
    if (text.find('\\') != text.npos) return std::nullopt;
    rest_.remove_prefix(end + 1);
    return text;
  }

  // A number without a sign. A trailing L comes from Python 2.
  std::optional<int64_t> TakeNumber() {
    SkipSpace();
    size_t digits = 0;
    while (digits < rest_.size() && std::isdigit(static_cast<unsigned char>(rest_[digits]))) ++digits;
    int64_t number = 0;
    if (digits == 0 || !absl::SimpleAtoi(absl::string_view(rest_.data(), digits), &number)) return std::nullopt;
    rest_.remove_prefix(digits);
    if (!rest_.empty() && rest_[0] == 'L') rest_.remove_prefix(1);
    return number;
  }

  // Skips a list with its contents, by counting brackets; texts in it may contain brackets. A loop and not a recursion,
  // so depth costs no stack.
  bool SkipList() {
    if (!Take('[')) return false;
    for (int open = 1; open > 0;) {
      if (rest_.empty()) return false;
      if (rest_[0] == '\'' || rest_[0] == '"') {
        if (!TakeText()) return false;
        continue;
      }
      open += rest_[0] == '[' ? 1 : rest_[0] == ']' ? -1 : 0;
      rest_.remove_prefix(1);
    }
    return true;
  }

  bool IsAtEnd() {
    SkipSpace();
    return rest_.empty();
  }

 private:
  void SkipSpace() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n' || rest_[0] == '\t')) rest_.remove_prefix(1);
  }

  std::string_view rest_;
};

absl::Status TakeDescr(Literal& literal, NpyHeader& header) {
  // A list of fields is legal, so it is not damage: the array is left out, with a reason.
  if (literal.SkipList()) {
    header.why = "structures of several fields";
    return absl::OkStatus();
  }
  const std::optional<std::string> descr = literal.TakeText();
  if (!descr) return Broken("descr is neither a text nor a list");
  header.descr = *descr;
  SetType(header);
  return absl::OkStatus();
}

absl::Status TakeShape(Literal& literal, NpyHeader& header) {
  if (!literal.Take('(')) return Broken("shape is not a tuple");
  std::vector<int64_t> dims;
  bool ended_with_comma = true;
  // A comma must separate two numbers and may follow the last one: (5,) is a tuple of one.
  while (!literal.Take(')')) {
    const std::optional<int64_t> dim = ended_with_comma ? literal.TakeNumber() : std::nullopt;
    if (!dim) return Broken("shape is not a tuple of numbers from 0 to 2^63 - 1");
    dims.push_back(*dim);
    ended_with_comma = literal.Take(',');
  }
  absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) return Broken(std::string(shape.status().message()));
  header.shape = *std::move(shape);
  return absl::OkStatus();
}

absl::Status TakeMember(Literal& literal, const std::string& name, NpyHeader& header) {
  if (name == "descr") return TakeDescr(literal, header);
  if (name == "shape") return TakeShape(literal, header);
  if (name != "fortran_order") return Broken(absl::StrCat("unknown member ", Quote(name)));
  header.fortran_order = literal.TakeWord("True");
  if (!header.fortran_order && !literal.TakeWord("False")) return Broken("fortran_order is neither True nor False");
  return absl::OkStatus();
}

absl::Status ParseText(std::string_view text, NpyHeader& header) {
  Literal literal(text);
  if (!literal.Take('{')) return Broken("it is not a dict");
  std::vector<std::string> names;
  bool ended_with_comma = true;
  while (!literal.Take('}')) {
    const std::optional<std::string> name = ended_with_comma ? literal.TakeText() : std::nullopt;
    if (!name || !literal.Take(':')) return Broken("it is not a dict of names");
    FSDP_RETURN_IF_ERROR(TakeMember(literal, *name, header));
    names.push_back(*name);
    ended_with_comma = literal.Take(',');
  }
  if (!literal.IsAtEnd()) return Broken("something follows its dict");
  // Sorted, so that the order is free but a missing, unknown or repeated key is not accepted.
  std::sort(names.begin(), names.end());
  if (names == std::vector<std::string>{"descr", "fortran_order", "shape"}) return absl::OkStatus();
  return Broken(absl::StrCat("its members are ", absl::StrJoin(names, ", "), ", expected descr, fortran_order, shape"));
}

// prelude[6] is the major version.
int64_t LengthBytes(std::string_view prelude) { return prelude[6] == 1 ? 2 : 4; }

}  // namespace

absl::StatusOr<int64_t> NpyHeaderBytes(std::string_view prelude) {
  if (static_cast<int64_t>(prelude.size()) < kNpyPreludeBytes || prelude.substr(0, kNpyMagic.size()) != kNpyMagic) {
    return Broken("it does not begin with \\x93NUMPY");
  }
  const int major = static_cast<uint8_t>(prelude[6]);
  const int minor = static_cast<uint8_t>(prelude[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return absl::InvalidArgumentError(absl::StrCat("npy header: version ", major, ".", minor, ", expected 1.0 to 3.0"));
  }
  int64_t length = 0;
  // Little-endian. At most 4 bytes, so the sum cannot overflow.
  for (int64_t i = LengthBytes(prelude) - 1; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(prelude[8 + i]);
  const int64_t nbytes = 8 + LengthBytes(prelude) + length;
  // A header shorter than the prelude cannot hold its dict; ParseNpyHeader then refuses it.
  if (nbytes <= kMaxNpyHeaderBytes) return std::max(nbytes, kNpyPreludeBytes);
  return absl::ResourceExhaustedError(absl::StrCat("npy header: ", nbytes, " bytes, more than ", kMaxNpyHeaderBytes));
}

absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view bytes) {
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, NpyHeaderBytes(bytes));
  if (nbytes != static_cast<int64_t>(bytes.size())) {
    return Broken(absl::StrCat("it has ", bytes.size(), " bytes, but states that it has ", nbytes));
  }
  NpyHeader header;
  header.nbytes = nbytes;
  FSDP_RETURN_IF_ERROR(ParseText(bytes.substr(8 + LengthBytes(bytes)), header));
  return header;
}

absl::StatusOr<std::string> EncodeNpyHeader(DType dtype, const Shape& shape) {
  const auto* const type =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const NamedType& t) { return t.dtype == dtype; });
  if (type == std::end(kTypes)) {
    return absl::InvalidArgumentError(absl::StrCat("dtype ", std::string(DTypeName(dtype)),
                                                   " has no name in NumPy's files; convert it, or use safetensors"));
  }
  // As repr() of a tuple: (), (5,), (5, 7).
  const std::string dims = absl::StrCat(absl::StrJoin(shape.dims(), ", "), shape.rank() == 1 ? "," : "");
  std::string text = absl::StrCat("{'descr': '", SizeOf(dtype) == 1 ? "|" : "<", std::string(type->code),
                                  "', 'fortran_order': False, 'shape': (", dims, "), }");
  const int64_t least = 10 + static_cast<int64_t>(text.size()) + 1;
  text.append((kAlignment - least % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string bytes(kNpyMagic);
  bytes += {'\1', '\0', static_cast<char>(text.size()), static_cast<char>(text.size() >> 8)};
  return bytes + text;
}

}  // namespace fsdp
