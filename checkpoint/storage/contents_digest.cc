// SPDX-License-Identifier: Apache-2.0
//
// Two revisions of a model have equal headers and sizes, so the values must be digested too. Fine-tuning changes nearly
// all of them, and a copy that failed lacks long ranges: blocks at equal distances find both. The ends of each file
// hold headers, and the directories of zip archives with the CRCs of all their entries.
#include "fsdp/checkpoint/storage/contents_digest.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr int64_t kEndBytes = 64 << 10;

absl::Status AddRange(const File& file, const ByteRange& range, DigestBuilder& builder) {
  std::vector<std::byte> block(std::min(range.nbytes, kSampledBlockBytes));
  for (int64_t at = range.offset; at < range.end(); at += kSampledBlockBytes) {
    const absl::Span<std::byte> part(block.data(), std::min(range.end() - at, kSampledBlockBytes));
    FSDP_RETURN_IF_ERROR(file.Read(at, part));
    builder.Update(part);
  }
  return absl::OkStatus();
}

// Adds size and ends of a file, and returns its size.
absl::StatusOr<int64_t> AddEnds(const File& file, DigestBuilder& builder) {
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, file.Size());
  builder.Update(absl::StrCat(nbytes, "\n"));
  const int64_t end = std::min(nbytes, kEndBytes);
  FSDP_RETURN_IF_ERROR(AddRange(file, {0, end}, builder));
  FSDP_RETURN_IF_ERROR(AddRange(file, {nbytes - end, end}, builder));
  return nbytes;
}

}  // namespace

std::vector<ByteRange> DigestedRanges(int64_t nbytes) {
  if (nbytes <= kSampledBlocks * kSampledBlockBytes) return {{0, nbytes}};
  std::vector<ByteRange> ranges;
  for (int64_t i = 0; i < kSampledBlocks; ++i) {
    // The product may exceed 64 bits.
    const __int128 product = static_cast<__int128>(nbytes - kSampledBlockBytes) * i;
    ranges.push_back({static_cast<int64_t>(product / (kSampledBlocks - 1)), kSampledBlockBytes});
  }
  return ranges;
}

// One file is open at a time: a directory may have more files than a process may open.
absl::StatusOr<std::string> DescribeContents(FileSystem& files, const std::vector<std::string>& paths) {
  DigestBuilder builder;
  std::vector<int64_t> begins = {0};  // of each file among the bytes of all, and the end of the last
  for (const std::string& path : paths) {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Open(path));
    FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, AddEnds(*file, builder));
    begins.push_back(begins.back() + nbytes);
  }
  const int64_t total = begins.back();
  const std::vector<ByteRange> ranges = DigestedRanges(total);
  for (size_t i = 0; i < paths.size(); ++i) {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Open(paths[i]));
    for (const ByteRange& range : ranges) {
      const int64_t begin = std::max(range.offset, begins[i]);
      const int64_t end = std::min(range.end(), begins[i + 1]);
      if (begin < end) FSDP_RETURN_IF_ERROR(AddRange(*file, {begin - begins[i], end - begin}, builder));
    }
  }
  return absl::StrCat(paths.size(), paths.size() == 1 ? " file of " : " files of ", total, " bytes, digest of ",
                      ranges.size() == 1 ? "all bytes " : "64 MiB of them ", builder.Finish().ToHex());
}

}  // namespace fsdp
