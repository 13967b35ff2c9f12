// SPDX-License-Identifier: Apache-2.0
//
// The functions of ISA-L that this project calls, for static programs: distributions ship that library without an
// archive. They have ISA-L's names, arguments and results: isal_test.cc compares the two. Fields and tables are as in
// its documentation: GF(2^8) with the polynomial 0x11d, and for a coefficient c 32 bytes, c * i and c * 16 i for i = 0
// to 15, so that a product is two look-ups of four bits each. The processor's instructions decide at run time how many
// bytes are done at a time.
#include <isa-l/crc.h>
#include <isa-l/erasure_code.h>
#include <zlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

namespace {

constexpr int kTableBytes = 32;
constexpr int kPolynomial = 0x11d;

// One output of ec_encode_data, from byte `begin` on.
struct Row {
  int sources;
  const unsigned char* tables;  // [sources, kTableBytes]
  unsigned char** data;
  unsigned char* out;
};

void EncodeBytes(const Row& row, int begin, int end) {
  for (int at = begin; at < end; ++at) {
    unsigned char sum = 0;
    for (int source = 0; source < row.sources; ++source) {
      const unsigned char* table = row.tables + source * kTableBytes;
      const unsigned char byte = row.data[source][at];
      sum ^= static_cast<unsigned char>(table[byte & 15] ^ table[16 + (byte >> 4)]);
    }
    row.out[at] = sum;
  }
}

#if defined(__x86_64__)

// These return the position at which they stop: the first byte that does not fill a vector.
[[gnu::target("ssse3")]] int EncodeBy16(const Row& row, int len) {
  const __m128i low_bits = _mm_set1_epi8(15);
  int at = 0;
  for (; at + 16 <= len; at += 16) {
    __m128i sum = _mm_setzero_si128();
    for (int source = 0; source < row.sources; ++source) {
      const auto* table = reinterpret_cast<const __m128i*>(row.tables + source * kTableBytes);
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row.data[source] + at));
      const __m128i high = _mm_and_si128(_mm_srli_epi64(bytes, 4), low_bits);
      sum = _mm_xor_si128(sum, _mm_shuffle_epi8(_mm_loadu_si128(table), _mm_and_si128(bytes, low_bits)));
      sum = _mm_xor_si128(sum, _mm_shuffle_epi8(_mm_loadu_si128(table + 1), high));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row.out + at), sum);
  }
  return at;
}

[[gnu::target("avx2")]] int EncodeBy32(const Row& row, int len) {
  const __m256i low_bits = _mm256_set1_epi8(15);
  int at = 0;
  for (; at + 32 <= len; at += 32) {
    __m256i sum = _mm256_setzero_si256();
    for (int source = 0; source < row.sources; ++source) {
      const auto* table = reinterpret_cast<const __m128i*>(row.tables + source * kTableBytes);
      const __m256i of_low = _mm256_broadcastsi128_si256(_mm_loadu_si128(table));
      const __m256i of_high = _mm256_broadcastsi128_si256(_mm_loadu_si128(table + 1));
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.data[source] + at));
      const __m256i high = _mm256_and_si256(_mm256_srli_epi64(bytes, 4), low_bits);
      sum = _mm256_xor_si256(sum, _mm256_shuffle_epi8(of_low, _mm256_and_si256(bytes, low_bits)));
      sum = _mm256_xor_si256(sum, _mm256_shuffle_epi8(of_high, high));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.out + at), sum);
  }
  return at;
}

// Returns the number of bytes that are done.
int EncodeVectors(const Row& row, int len) {
  if (__builtin_cpu_supports("avx2")) return EncodeBy32(row, len);
  if (__builtin_cpu_supports("ssse3")) return EncodeBy16(row, len);
  return 0;
}

#else

int EncodeVectors(const Row&, int) { return 0; }

#endif

// ISA-L's gf_mul, which is not called from outside, and whose name OpenSSL has for another function.
unsigned char Product(unsigned char a, unsigned char b) {
  int product = 0;
  // A product of polynomials of degree 7 has degree 14; the second loop reduces it.
  for (int bit = 0; bit < 8; ++bit) {
    if ((b >> bit & 1) != 0) product ^= a << bit;
  }
  for (int bit = 14; bit >= 8; --bit) {
    if ((product >> bit & 1) != 0) product ^= kPolynomial << (bit - 8);
  }
  return static_cast<unsigned char>(product);
}

unsigned char Inverse(unsigned char a) {
  // a^254: every element but 0 has order 255.
  unsigned char product = 1;
  for (int i = 0; i < 254; ++i) product = Product(product, a);
  return product;
}

constexpr int kSlices = 8;

using Crc32cTables = std::array<std::array<uint32_t, 256>, kSlices>;

constexpr Crc32cTables MakeCrc32cTables() {
  constexpr uint32_t kCastagnoli = 0x82f63b78;  // reflected
  Crc32cTables tables = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kCastagnoli : 0);
    tables[0][i] = crc;
  }
  for (int k = 1; k < kSlices; ++k) {
    for (int i = 0; i < 256; ++i) tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 255];
  }
  return tables;
}

constexpr Crc32cTables kCrc32cTables = MakeCrc32cTables();

}  // namespace

extern "C" {

void gf_gen_cauchy1_matrix(unsigned char* a, int m, int k) {
  // The identity on top keeps the sources as they are; the rows below are 1 / (i xor j). Any k of all rows are
  // independent.
  std::memset(a, 0, static_cast<size_t>(k) * k);
  for (int i = 0; i < k; ++i) a[k * i + i] = 1;
  for (int i = k; i < m; ++i) {
    for (int j = 0; j < k; ++j) a[k * i + j] = Inverse(static_cast<unsigned char>(i ^ j));
  }
}

// Gauss-Jordan; destroys `in`.
int gf_invert_matrix(unsigned char* in, unsigned char* out, const int n) {
  std::memset(out, 0, static_cast<size_t>(n) * n);
  for (int i = 0; i < n; ++i) out[i * n + i] = 1;
  for (int i = 0; i < n; ++i) {
    int pivot = i;
    while (pivot < n && in[pivot * n + i] == 0) ++pivot;
    // A column of zeros from here on: the matrix is singular.
    if (pivot == n) return -1;
    for (int k = 0; pivot != i && k < n; ++k) {
      std::swap(in[i * n + k], in[pivot * n + k]);
      std::swap(out[i * n + k], out[pivot * n + k]);
    }
    const unsigned char scale = Inverse(in[i * n + i]);
    for (int k = 0; k < n; ++k) {
      in[i * n + k] = Product(in[i * n + k], scale);
      out[i * n + k] = Product(out[i * n + k], scale);
    }
    for (int j = 0; j < n; ++j) {
      const unsigned char factor = in[j * n + i];
      for (int k = 0; j != i && k < n; ++k) {
        in[j * n + k] ^= Product(factor, in[i * n + k]);
        out[j * n + k] ^= Product(factor, out[i * n + k]);
      }
    }
  }
  return 0;
}

void ec_init_tables(int k, int rows, unsigned char* a, unsigned char* gftbls) {
  for (int i = 0; i < k * rows; ++i) {
    for (int bits = 0; bits < 16; ++bits) {
      gftbls[i * kTableBytes + bits] = Product(a[i], static_cast<unsigned char>(bits));
      gftbls[i * kTableBytes + 16 + bits] = Product(a[i], static_cast<unsigned char>(bits << 4));
    }
  }
}

void ec_encode_data(int len, int k, int rows, unsigned char* gftbls, unsigned char** data, unsigned char** coding) {
  for (int i = 0; i < rows; ++i) {
    const Row row = {k, gftbls + static_cast<int64_t>(i) * k * kTableBytes, data, coding[i]};
    // The vectors do whole blocks, the loop over bytes the rest.
    EncodeBytes(row, EncodeVectors(row, len), len);
  }
}

uint32_t crc32_gzip_refl(uint32_t init_crc, const unsigned char* buf, uint64_t len) {
  constexpr uint64_t kMost = uint64_t{1} << 30;  // zlib's length has 32 bits
  auto crc = static_cast<uLong>(init_crc);
  for (; len > 0; buf += std::min(len, kMost), len -= std::min(len, kMost)) {
    crc = crc32(crc, buf, static_cast<uInt>(std::min(len, kMost)));
  }
  return static_cast<uint32_t>(crc);
}

// Slicing by 8: table k has the CRC of a byte that k zero bytes follow, so that eight bytes take eight independent
// look-ups instead of a chain of eight.
unsigned int crc32_iscsi(unsigned char* buffer, int len, unsigned int init_crc) {
  uint32_t crc = init_crc;
  for (; len >= kSlices; buffer += kSlices, len -= kSlices) {
    uint32_t next = 0;
    for (int i = 0; i < kSlices; ++i) {
      next ^= kCrc32cTables[kSlices - 1 - i][buffer[i] ^ (i < 4 ? (crc >> (8 * i)) & 255 : 0)];
    }
    crc = next;
  }
  for (int i = 0; i < len; ++i) crc = (crc >> 8) ^ kCrc32cTables[0][(crc ^ buffer[i]) & 255];
  return crc;
}

}  // extern "C"
