// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/verified_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "checkpoint/file_names.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/record.h"

namespace fsdp {
namespace {

// Well under the customary limit of 1024 descriptors.
constexpr size_t kMaxOpenFiles = 256;

const StoredExtent& ExtentOf(const StoredFile& file, const ByteRange& range) {
  const auto after =
      std::upper_bound(file.extents.begin(), file.extents.end(), range.offset,
                       [](int64_t offset, const StoredExtent& extent) { return offset < extent.range.offset; });
  Check(after != file.extents.begin() && range.end() <= std::prev(after)->range.end(), "a range outside of extents");
  return *std::prev(after);
}

}  // namespace

VerifiedReader::VerifiedReader(FileSystem& files, std::string directory, const Manifest& manifest, bool verify)
    : files_(files),
      directory_(std::move(directory)),
      manifest_(manifest),
      verify_(verify),
      open_(manifest.files.size()),
      checked_(manifest.files.size()) {}

absl::StatusOr<std::shared_ptr<const File>> VerifiedReader::Open(int index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (open_[index] != nullptr) return open_[index];
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<File>> {
    ASSIGN_OR_RETURN(std::unique_ptr<File> file, OpenStoredFile(files_, directory_, manifest_, index));
    if (!checked_[index]) RETURN_IF_ERROR(CheckRecord(*file, manifest_, index));
    return file;
  };
  absl::StatusOr<std::unique_ptr<File>> file = open();
  if (!file.ok()) {
    return absl::Status(file.status().code(), JoinPath(directory_, std::string(file.status().message())));
  }
  checked_[index] = true;
  if (order_.size() == kMaxOpenFiles) {
    open_[order_.front()] = nullptr;  // who still reads from it has a reference
    order_.pop_front();
  }
  order_.push_back(index);
  open_[index] = *std::move(file);
  return open_[index];
}

absl::Status VerifiedReader::ReadBlock(const File& file, const StoredFile& stored, const StoredExtent& extent,
                                       int64_t block, const ByteRange& wanted, std::byte* out,
                                       absl::FunctionRef<std::string()> what) {
  const int64_t begin = extent.range.offset + block * kBlockBytes;
  const ByteRange range = {begin, std::min(kBlockBytes, extent.range.end() - begin)};
  const int64_t from = std::max(range.offset, wanted.offset);
  const int64_t to = std::min(range.end(), wanted.end());
  std::byte* const target = out + (from - wanted.offset);
  // A block that is wanted whole is compared where it is wanted; of others only a part is copied there.
  const bool is_whole = to - from == range.nbytes;
  const BlockBuffers::Lease scratch = buffers_.Take();
  std::byte* const bytes = is_whole ? target : scratch.data();
  RETURN_IF_ERROR(file.Read(range.offset, absl::MakeSpan(bytes, range.nbytes)));
  const Digest digest = DigestOf(absl::MakeConstSpan(bytes, range.nbytes));
  if (digest != extent.digests[block]) {
    return absl::DataLossError(DamagedBlock(JoinPath(directory_, stored.name), range,
                                            absl::StrCat(what(), ", block ", block), digest, extent.digests[block]));
  }
  if (!is_whole) std::memcpy(target, bytes + (from - range.offset), to - from);
  return absl::OkStatus();
}

absl::Status VerifiedReader::Read(int index, const ByteRange& range, std::byte* out,
                                  absl::FunctionRef<std::string()> what) {
  if (range.nbytes == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, Open(index));
  if (!verify_) return file->Read(range.offset, absl::MakeSpan(out, range.nbytes));
  const StoredFile& stored = manifest_.files[index];
  const StoredExtent& extent = ExtentOf(stored, range);
  const int64_t last = (range.end() - 1 - extent.range.offset) / kBlockBytes;
  for (int64_t block = (range.offset - extent.range.offset) / kBlockBytes; block <= last; ++block) {
    RETURN_IF_ERROR(ReadBlock(*file, stored, extent, block, range, out, what));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
