// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/npz/npy_header.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

// A header of version 1, not padded.
std::string Header(const std::string& text) {
  return absl::StrCat(std::string("\x93NUMPY\x01\x00", 8), std::string(1, static_cast<char>(text.size() & 0xFF)),
                      std::string(1, static_cast<char>(text.size() >> 8)), text);
}

std::string HeaderOf(const std::string& descr) {
  return Header(absl::StrCat("{'descr': ", descr, ", 'fortran_order': False, 'shape': (5, 7), }"));
}

TEST(NpyHeaderTest, EveryDTypeComesBackFromTheHeaderThatItIsWrittenIn) {
  int written = 0;
  for (const DType dtype : AllDTypes()) {
    for (const Shape& shape : {Shape({}), Shape({5}), Shape({0, 3}), Shape({2, 3, 4})}) {
      const absl::StatusOr<std::string> bytes = EncodeNpyHeader(dtype, shape);
      if (!bytes.ok()) {
        EXPECT_THAT(bytes, StatusIs(StatusCode::kInvalidArgument, HasSubstr(std::string(DTypeName(dtype)))));
        continue;
      }
      ++written;
      EXPECT_EQ(bytes->size() % 64, 0u);
      EXPECT_EQ(bytes->back(), '\n');
      ASSERT_OK_AND_ASSIGN(const NpyHeader header, ParseNpyHeader(*bytes));
      EXPECT_EQ(header.dtype, dtype);
      EXPECT_EQ(header.shape, shape);
      EXPECT_FALSE(header.fortran_order || header.is_swapped);
    }
  }
  EXPECT_EQ(written, 15 * 4);
}

TEST(NpyHeaderTest, IsWrittenAsNumPyWritesIt) {
  ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeNpyHeader(DType::kFloat32, Shape({5, 7})));
  const std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 7), }";
  EXPECT_EQ(bytes.substr(0, 10), std::string("\x93NUMPY\x01\x00v\x00", 10));
  EXPECT_EQ(bytes.substr(10, text.size()), text);
  EXPECT_EQ(bytes.size(), 128u);
}

TEST(NpyHeaderTest, VersionsTwoAndThreeAreRead) {
  const std::string v2 = ReadFile("checkpoint/foreign/npz/testdata/v2.npy");
  ASSERT_OK_AND_ASSIGN(const int64_t v2_bytes, NpyHeaderBytes(v2));
  ASSERT_OK_AND_ASSIGN(const NpyHeader fortran, ParseNpyHeader(std::string_view(v2).substr(0, v2_bytes)));
  EXPECT_TRUE(fortran.fortran_order);
  EXPECT_EQ(fortran.shape, Shape({5, 7}));
  const std::string v3 = ReadFile("checkpoint/foreign/npz/testdata/v3.npy");
  ASSERT_OK_AND_ASSIGN(const int64_t v3_bytes, NpyHeaderBytes(v3));
  ASSERT_OK_AND_ASSIGN(const NpyHeader ints, ParseNpyHeader(std::string_view(v3).substr(0, v3_bytes)));
  EXPECT_EQ(ints.dtype, DType::kInt64);
}

TEST(NpyHeaderTest, ByteOrdersAreThoseOfNumPy) {
  for (const char* descr : {"'<f4'", "'=f4'", "'|u1'", "'>u1'", "'>b1'", "\"<f4\""}) {
    ASSERT_OK_AND_ASSIGN(const NpyHeader header, ParseNpyHeader(HeaderOf(descr)));
    EXPECT_TRUE(header.dtype.has_value()) << descr;
    EXPECT_FALSE(header.is_swapped) << descr;
  }
  ASSERT_OK_AND_ASSIGN(const NpyHeader swapped, ParseNpyHeader(HeaderOf("'>c16'")));
  EXPECT_EQ(swapped.dtype, DType::kComplex128);
  EXPECT_TRUE(swapped.is_swapped);
}

TEST(NpyHeaderTest, WhatIsNoTensorSaysWhy) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"'|O'", "Python objects"}, {"'<U2'", "texts"},  {"'|S7'", "texts"},
      {"'<M8[ns]'", "dates"},     {"'<V1'", "float8"}, {"'|V12'", "does not name"},
      {"'<f16'", "a type"},       {"''", "a type"},    {"[('a', '<i4'), ('b]', [('c', '<f8')])]", "several fields"}};
  for (const auto& [descr, why] : cases) {
    ASSERT_OK_AND_ASSIGN(const NpyHeader header, ParseNpyHeader(HeaderOf(descr)));
    EXPECT_FALSE(header.dtype.has_value()) << descr;
    EXPECT_THAT(header.why, HasSubstr(why)) << descr;
  }
}

TEST(NpyHeaderTest, AnythingButThatDictIsRefused) {
  for (const char* text :
       {"", "{", "{}", "[]", "None", "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "{'descr': '<f4', 'fortran_order': False, 'shape': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 9)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} + exit()",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}", "{'descr': [[[, 'fortran_order': False}",
        "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (1,)}", "__import__('os').system('true')"}) {
    EXPECT_THAT(ParseNpyHeader(Header(text)), StatusIs(StatusCode::kDataLoss, HasSubstr("npy header: "))) << text;
  }
}

TEST(NpyHeaderTest, ItsLengthAndVersionAreChecked) {
  EXPECT_THAT(NpyHeaderBytes("\x93NUMPY"), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(NpyHeaderBytes("\x93NUMPX\x01\x01zzzz"), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(NpyHeaderBytes("\x93NUMPY\x04\x01zzzz"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("version 4.1, expected 1.0 to 3.0")));
  EXPECT_THAT(NpyHeaderBytes(std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12)),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("4294967307 bytes, more than 65536")));
  const std::string whole = HeaderOf("'<f4'");
  for (size_t size = kNpyPreludeBytes; size < whole.size(); ++size) {
    EXPECT_THAT(ParseNpyHeader(whole.substr(0, size)), StatusIs(StatusCode::kDataLoss)) << size;
  }
}

}  // namespace
}  // namespace fsdp
