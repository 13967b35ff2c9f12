// SPDX-License-Identifier: Apache-2.0
//
// Names and sizes are those of the HDF5 File Format Specification 3.0, sections II.A to III.G.
#include "fsdp/checkpoint/verify/hdf5_structures.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace fsdp {
namespace {

// Signatures are of four bytes; the superblock's has four more.
struct Signature {
  std::string_view text;
  const char* kind;
};
constexpr std::array<Signature, 11> kSignatures = {{{"\x89HDF", "superblock"},
                                                    {"OHDR", kObjectHeaderKind},
                                                    {"OCHK", kObjectHeaderKind},
                                                    {"BTHD", "B-tree"},
                                                    {"BTIN", "B-tree"},
                                                    {"BTLF", "B-tree"},
                                                    {"FRHP", "fractal heap"},
                                                    {"FHIB", "fractal heap"},
                                                    {"FHDB", "fractal heap"},
                                                    {"FSHD", "fractal heap"},  // its free space
                                                    {"FSSE", "fractal heap"}}};
constexpr std::string_view kGlobalHeap = "GCOL";

constexpr size_t kChecksumBytes = 4;

// Structures that do not say how long they are end where their checksum matches; none of ours is longer.
constexpr size_t kLongestPrefix = 4096;

uint64_t LittleEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

uint32_t Rotate(uint32_t x, int bits) { return x << bits | x >> (32 - bits); }

// Jenkins' lookup3, hashlittle with an initial value of 0, which is HDF5's checksum of metadata.
uint32_t Checksum(std::string_view bytes) {
  uint32_t a = 0xdeadbeef + static_cast<uint32_t>(bytes.size());
  uint32_t b = a;
  uint32_t c = a;
  const auto word = [&](size_t at) {
    return at >= bytes.size() ? 0 : static_cast<uint32_t>(LittleEndian(bytes.substr(at, 4)));
  };
  while (bytes.size() > 12) {
    a += word(0);
    b += word(4);
    c += word(8);
    a -= c, a ^= Rotate(c, 4), c += b;
    b -= a, b ^= Rotate(a, 6), a += c;
    c -= b, c ^= Rotate(b, 8), b += a;
    a -= c, a ^= Rotate(c, 16), c += b;
    b -= a, b ^= Rotate(a, 19), a += c;
    c -= b, c ^= Rotate(b, 4), b += a;
    bytes.remove_prefix(12);
  }
  if (bytes.empty()) return c;
  a += word(0);
  b += word(4);
  c += word(8);
  c ^= b, c -= Rotate(b, 14);
  a ^= c, a -= Rotate(c, 11);
  b ^= a, b -= Rotate(a, 25);
  c ^= b, c -= Rotate(b, 16);
  a ^= c, a -= Rotate(c, 4);
  b ^= a, b -= Rotate(a, 14);
  c ^= b, c -= Rotate(b, 24);
  return c;
}

// `length` bytes and then their checksum: how long both are, or 0 where they are not that.
size_t Checked(std::string_view bytes, size_t length) {
  if (length > bytes.size() || bytes.size() - length < kChecksumBytes) return 0;
  const bool matches = Checksum(bytes.substr(0, length)) == LittleEndian(bytes.substr(length, kChecksumBytes));
  return matches ? length + kChecksumBytes : 0;
}

size_t CheckedPrefix(std::string_view bytes) {
  const size_t longest = std::min(bytes.size(), kLongestPrefix);
  for (size_t length = 6; length + kChecksumBytes <= longest; ++length) {
    if (const size_t size = Checked(bytes, length)) return size;
  }
  return 0;
}

// Version 2: flags say which fields come before the size of the messages, and how wide that is.
size_t ObjectHeaderBytes(std::string_view bytes) {
  if (bytes.size() < 6) return 0;
  const auto flags = static_cast<unsigned char>(bytes[5]);
  const size_t at = 6 + ((flags & 0x20) != 0 ? 16 : 0) + ((flags & 0x10) != 0 ? 4 : 0);
  const size_t width = size_t{1} << (flags & 3);
  if (bytes.size() < at + width) return 0;
  const uint64_t messages = LittleEndian(bytes.substr(at, width));
  return messages > bytes.size() ? 0 : Checked(bytes, at + width + messages);
}

// A direct block has its checksum inside, behind its address in the heap, and counts it as zero. Its size is a power of
// two that only its heap knows; so is the width of that address.
size_t DirectBlockBytes(std::string_view bytes) {
  for (const size_t at : {size_t{17}, size_t{18}}) {
    for (size_t size = 512; size <= std::min<size_t>(bytes.size(), 65536); size *= 2) {
      std::string block(bytes.substr(0, size));
      const uint64_t recorded = LittleEndian(bytes.substr(at, kChecksumBytes));
      block.replace(at, kChecksumBytes, kChecksumBytes, '\0');
      if (Checksum(block) == recorded) return size;
    }
  }
  return 0;
}

// Bytes of the whole structure that begins here, or 0.
size_t WholeStructure(std::string_view bytes) {
  const std::string_view signature = bytes.substr(0, 4);
  if (signature == "\x89HDF") return Checked(bytes, 44);  // versions 2 and 3
  if (signature == "OHDR") return ObjectHeaderBytes(bytes);
  if (signature == "BTHD") return Checked(bytes, 34);
  if (signature == "FRHP") return Checked(bytes, 142);
  if (signature == "FHDB") return DirectBlockBytes(bytes);
  const bool has_signature = std::any_of(kSignatures.begin(), kSignatures.end(),
                                         [&](const Signature& known) { return known.text == signature; });
  return has_signature ? CheckedPrefix(bytes) : 0;
}

size_t GlobalHeapBytes(std::string_view bytes) {
  if (bytes.substr(0, 4) != kGlobalHeap || bytes.size() < 16) return 0;
  const uint64_t size = LittleEndian(bytes.substr(8, 8));
  return size < 16 || size > bytes.size() ? 0 : size;
}

// What begins as a structure does, but for one byte at most.
const char* KindOf(std::string_view bytes) {
  for (const Signature& signature : kSignatures) {
    int equal = 0;
    for (size_t i = 0; i < 4 && i < bytes.size(); ++i) equal += bytes[i] == signature.text[i] ? 1 : 0;
    if (equal >= 3) return signature.kind;
  }
  return bytes.size() <= 1 ? "padding" : "metadata";
}

class Finder {
 public:
  Finder(std::string_view bytes, int64_t offset) : bytes_(bytes), offset_(offset) {}

  std::vector<DamagedStructure> Find() {
    size_t begin = 0;  // of what is no whole structure
    for (size_t at = 0; (at = bytes_.find_first_not_of('\0', at)) != std::string_view::npos;) {
      const std::string_view rest = bytes_.substr(at);
      const size_t heap = GlobalHeapBytes(rest);
      const size_t size = heap != 0 ? heap : WholeStructure(rest);
      if (size == 0) {
        ++at;
        continue;
      }
      AddBetween(begin, at);
      if (heap != 0) heaps_.push_back({Range(at, at + size), kGlobalHeapKind});
      begin = at += size;
    }
    AddBetween(begin, bytes_.size());
    return damaged_.empty() ? heaps_ : damaged_;
  }

 private:
  ByteRange Range(size_t begin, size_t end) const {
    return {offset_ + static_cast<int64_t>(begin), static_cast<int64_t>(end - begin)};
  }

  // What lies between two whole structures is zero, or damaged.
  void AddBetween(size_t begin, size_t end) {
    const std::string_view between = bytes_.substr(begin, end - begin);
    const size_t first = between.find_first_not_of('\0');
    if (first == std::string_view::npos) return;
    const size_t last = between.find_last_not_of('\0');
    damaged_.push_back({Range(begin + first, begin + last + 1), KindOf(between.substr(first, last + 1 - first))});
  }

  const std::string_view bytes_;
  const int64_t offset_;
  std::vector<DamagedStructure> damaged_;
  std::vector<DamagedStructure> heaps_;
};

}  // namespace

std::vector<DamagedStructure> FindDamagedStructures(absl::Span<const std::byte> bytes, int64_t offset) {
  return Finder({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, offset).Find();
}

}  // namespace fsdp
