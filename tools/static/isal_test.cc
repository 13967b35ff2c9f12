// SPDX-License-Identifier: Apache-2.0
//
// isal.cc compared with the installed ISA-L, which is loaded: the two have the same names.
#include <dlfcn.h>
#include <isa-l/crc.h>
#include <isa-l/erasure_code.h>

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Bytes = std::vector<unsigned char>;

class IsalTest : public testing::Test {
 protected:
  void SetUp() override {
    library_ = dlopen("libisal.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) GTEST_SKIP() << "there is nothing to compare with: " << dlerror();
  }

  // ISA-L's function with the name of `ours`.
  template <typename Function>
  Function* Theirs(const char* name, Function* ours) {
    auto* const found = reinterpret_cast<Function*>(dlsym(library_, name));
    EXPECT_NE(found, nullptr) << name;
    EXPECT_NE(found, ours) << name << " of the library is this program's own: nothing is compared";
    return found;
  }

  Bytes Random(size_t size) {
    Bytes bytes(size);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random_());
    return bytes;
  }

  void* library_ = nullptr;
  std::mt19937 random_;
};

// The tables of a coefficient have its products with the halves of each byte.
TEST_F(IsalTest, EveryProductIsTheirs) {
  using Product = unsigned char(unsigned char, unsigned char);
  auto* const theirs = Theirs<Product>("gf_mul", nullptr);
  for (int a = 0; a < 256; ++a) {
    unsigned char coefficient = static_cast<unsigned char>(a);
    Bytes tables(32);
    ec_init_tables(1, 1, &coefficient, tables.data());
    for (int b = 0; b < 256; ++b) ASSERT_EQ(tables[b & 15] ^ tables[16 + (b >> 4)], theirs(a, b)) << a << " * " << b;
  }
}

TEST_F(IsalTest, MatricesAndTablesAreTheirs) {
  for (const auto& [k, parity] : {std::pair(1, 1), std::pair(4, 2), std::pair(17, 5), std::pair(120, 8)}) {
    Bytes ours((k + parity) * k), theirs(ours.size());
    gf_gen_cauchy1_matrix(ours.data(), k + parity, k);
    Theirs("gf_gen_cauchy1_matrix", gf_gen_cauchy1_matrix)(theirs.data(), k + parity, k);
    ASSERT_EQ(ours, theirs) << k;
    Bytes tables(32 * k * parity), their_tables(tables.size());
    ec_init_tables(k, parity, ours.data() + k * k, tables.data());
    Theirs("ec_init_tables", ec_init_tables)(k, parity, theirs.data() + k * k, their_tables.data());
    ASSERT_EQ(tables, their_tables) << k;
  }
}

TEST_F(IsalTest, InversesAreTheirsAlsoWhereThereIsNone) {
  auto* const theirs = Theirs("gf_invert_matrix", gf_invert_matrix);
  int singular = 0;
  for (int i = 0; i < 2000; ++i) {
    const int n = 1 + i % 9;
    Bytes in = Random(n * n);
    if (i % 3 == 0) in[0] = 0;  // the first pivot is in another row
    Bytes copy = in, out(n * n), their_out(n * n);
    const int result = gf_invert_matrix(in.data(), out.data(), n);
    ASSERT_EQ(result, theirs(copy.data(), their_out.data(), n));
    if (result == 0) {
      ASSERT_EQ(out, their_out);
    } else {
      ++singular;
    }
  }
  EXPECT_GT(singular, 0);
}

// Lengths around the sizes of vectors, data at odd addresses.
TEST_F(IsalTest, ParityIsTheirs) {
  constexpr int kSources = 7, kParity = 3;
  Bytes matrix((kSources + kParity) * kSources), tables(32 * kSources * kParity);
  gf_gen_cauchy1_matrix(matrix.data(), kSources + kParity, kSources);
  ec_init_tables(kSources, kParity, matrix.data() + kSources * kSources, tables.data());
  for (const int len : {0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 4096, 100003}) {
    std::vector<Bytes> data, ours(kParity, Bytes(len + 1)), theirs = ours;
    std::vector<unsigned char*> in, out, their_out;
    for (int i = 0; i < kSources; ++i) data.push_back(Random(len + 1));
    for (Bytes& source : data) in.push_back(source.data() + 1);
    for (Bytes& coded : ours) out.push_back(coded.data() + 1);
    for (Bytes& coded : theirs) their_out.push_back(coded.data() + 1);
    ec_encode_data(len, kSources, kParity, tables.data(), in.data(), out.data());
    Theirs("ec_encode_data", ec_encode_data)(len, kSources, kParity, tables.data(), in.data(), their_out.data());
    ASSERT_EQ(ours, theirs) << len;
  }
}

TEST_F(IsalTest, ChecksumsAreTheirs) {
  auto* const theirs = Theirs("crc32_gzip_refl", crc32_gzip_refl);
  auto* const their_iscsi = Theirs("crc32_iscsi", crc32_iscsi);
  for (const size_t size : {0u, 1u, 7u, 64u, 1000u, 100001u}) {
    const Bytes bytes = Random(size);
    for (const uint32_t from : {0u, 0xdeadbeefu}) {
      ASSERT_EQ(crc32_gzip_refl(from, bytes.data(), size), theirs(from, bytes.data(), size)) << size;
      Bytes copy = bytes;  // ISA-L's pointer is not to const
      const auto length = static_cast<int>(size);
      ASSERT_EQ(crc32_iscsi(copy.data(), length, from), their_iscsi(copy.data(), length, from)) << size;
    }
  }
}

}  // namespace
}  // namespace fsdp
