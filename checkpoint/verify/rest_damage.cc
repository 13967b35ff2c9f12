// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/verify/rest_damage.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/verify/hdf5_structures.h"

namespace fsdp {
namespace {

// Larger gaps are not looked into; HDF5's metadata are much smaller.
constexpr int64_t kMostBytes = int64_t{64} << 20;

// " of tensor ...", when an object header names the place of the dataset's elements.
std::string OwnerOf(const StoredFile& stored, int index, RangeNames& names, absl::Span<const std::byte> header) {
  for (size_t at = 0; at + sizeof(int64_t) <= header.size(); ++at) {
    int64_t address = 0;
    std::memcpy(&address, header.data() + at, sizeof(address));
    const auto extent = std::lower_bound(stored.extents.begin(), stored.extents.end(), address,
                                         [](const StoredExtent& e, int64_t value) { return e.range.offset < value; });
    if (extent == stored.extents.end() || extent->range.offset != address) continue;
    return absl::StrCat(" of ", names.NameOf(index, extent->range));
  }
  return "";
}

}  // namespace

std::vector<RestDamage> LocateRestDamage(const File& file, const Manifest& manifest, int index, RangeNames& names,
                                         const std::vector<ByteRange>& gaps) {
  std::vector<RestDamage> certain;  // something with a checksum, or not zero where nothing is
  std::vector<RestDamage> heaps;    // which have none, and are named where nothing else is
  for (const ByteRange& gap : gaps) {
    if (gap.nbytes > kMostBytes) continue;
    std::vector<std::byte> bytes(gap.nbytes);
    if (!file.Read(gap.offset, absl::MakeSpan(bytes)).ok()) continue;
    for (const DamagedStructure& damaged : FindDamagedStructures(bytes, gap.offset)) {
      const auto inside = absl::MakeConstSpan(bytes).subspan(damaged.range.offset - gap.offset, damaged.range.nbytes);
      std::string what = absl::StrCat("HDF5 ", damaged.kind);
      if (damaged.kind == kObjectHeaderKind) what += OwnerOf(manifest.files[index], index, names, inside);
      (damaged.kind == kGlobalHeapKind ? heaps : certain).push_back({damaged.range, std::move(what)});
    }
  }
  return certain.empty() ? heaps : certain;
}

}  // namespace fsdp
