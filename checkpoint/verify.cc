// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/verify.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "checkpoint/format/file_contents.h"
#include "checkpoint/format/file_names.h"
#include "checkpoint/format/manifest_file.h"
#include "checkpoint/format/record.h"
#include "checkpoint/save/payload_writer.h"
#include "checkpoint/storage/block_buffers.h"
#include "checkpoint/storage/file_system.h"

namespace fsdp {
namespace {

constexpr int64_t kRestPieceBytes = int64_t{1} << 20;

// Gaps of a file that a message lists.
constexpr size_t kListedRanges = 3;

// A problem, with its place in the list whatever thread finds it when.
struct Problem {
  int64_t order = -1;
  std::string message;
  VerifyReport::Damage damage;  // no file: it is none
};

// One thing to read and compare: a block of an extent, or all that lies outside of extents.
struct Check {
  int file = 0;
  int extent = -1;  // -1: the rest of the file
  int64_t block = 0;
};

class Verification {
 public:
  Verification(FileSystem& files, const std::string& directory, const Manifest& manifest, const VerifyOptions& options)
      : files_(files),
        directory_(directory),
        manifest_(manifest),
        options_(options),
        contents_(manifest),
        nonfinite_(manifest.tensors.size()) {}

  absl::StatusOr<VerifyReport> Run() {
    ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                     ThreadPool::Create(options_.io_threads, "checkpoint-verify"));
    FindUnknownFiles();
    for (const StoredTensor& tensor : manifest_.tensors) {
      if (const absl::Status covered = CheckCovered(tensor); !covered.ok()) Report(covered);
    }
    for (size_t i = 0; i < manifest_.files.size(); ++i) AddFile(static_cast<int>(i));
    RETURN_IF_ERROR(pool->ParallelFor(static_cast<int64_t>(checks_.size()), [&](int64_t i) {
      Perform(checks_[i], i);
      return absl::OkStatus();
    }));
    VerifyReport report;
    report.files = static_cast<int64_t>(manifest_.files.size()) + 1;
    report.tensors = static_cast<int64_t>(manifest_.tensors.size());
    report.bytes = bytes_done_;
    Conclude(report);
    return report;
  }

 private:
  void Conclude(VerifyReport& report) {
    std::stable_sort(problems_.begin(), problems_.end(),
                     [](const Problem& a, const Problem& b) { return a.order < b.order; });
    for (Problem& problem : problems_) {
      report.problems.push_back(std::move(problem.message));
      if (!problem.damage.file.empty()) report.damage.push_back(std::move(problem.damage));
    }
    for (size_t i = 0; i < nonfinite_.size(); ++i) {
      if (nonfinite_[i].any()) report.nonfinite.push_back({manifest_.tensors[i].key.ToString(), nonfinite_[i]});
    }
  }

  void Report(std::string message, int64_t order = -1, VerifyReport::Damage damage = {}) {
    const std::lock_guard<std::mutex> lock(mutex_);
    problems_.push_back({order, std::move(message), std::move(damage)});
  }
  void Report(const absl::Status& status, int64_t order = -1, VerifyReport::Damage damage = {}) {
    Report(std::string(status.message()), order, std::move(damage));
  }

  // Hidden files are a file system's or a desktop's, and not ours.
  void FindUnknownFiles() {
    std::set<std::string> known = {kManifestName};
    for (const StoredFile& file : manifest_.files) known.insert(file.name);
    const absl::StatusOr<std::vector<std::string>> names = files_.List(directory_);
    if (!names.ok()) return Report(names.status());
    for (const std::string& name : *names) {
      if (known.count(name) != 0 || absl::StartsWith(name, ".")) continue;
      Report(absl::StrCat(Printable(name), ": the manifest names no such file"));
    }
  }

  void AddFile(int index) {
    const StoredFile& stored = manifest_.files[index];
    const auto order = static_cast<int64_t>(checks_.size());
    absl::StatusOr<std::unique_ptr<File>> file = OpenStoredFile(files_, directory_, manifest_, index);
    if (!file.ok()) {
      Report(file.status(), order, {stored.name, {0, stored.nbytes}, "file"});
      // A file of the wrong size still shows which of its bytes are damaged.
      file = files_.Open(JoinPath(directory_, stored.name));
      if (!file.ok()) return;
    }
    if (const absl::Status record = CheckRecord(**file, manifest_, index); !record.ok()) {
      Report(record, order, {stored.name, stored.record.value_or(ByteRange()), "record"});
    }
    bytes_total_ += stored.nbytes;
    checks_.push_back({index, -1, 0});
    for (size_t extent = 0; extent < stored.extents.size(); ++extent) {
      const auto blocks = static_cast<int64_t>(stored.extents[extent].digests.size());
      for (int64_t block = 0; block < blocks; ++block) checks_.push_back({index, static_cast<int>(extent), block});
    }
  }

  // Opened for each check: a checkpoint may have more files than a process may have open.
  void Perform(const Check& check, int64_t order) {
    const StoredFile& stored = manifest_.files[check.file];
    const absl::StatusOr<std::unique_ptr<File>> file = files_.Open(JoinPath(directory_, stored.name));
    if (!file.ok()) return Report(file.status(), order, {stored.name, {0, stored.nbytes}, "file"});
    check.extent < 0 ? CheckRest(**file, stored, order) : CheckBlock(**file, stored, check, order);
  }

  void CheckBlock(const File& file, const StoredFile& stored, const Check& check, int64_t order) {
    const StoredExtent& extent = stored.extents[check.extent];
    const int64_t begin = extent.range.offset + check.block * kBlockBytes;
    const ByteRange range = {begin, std::min(kBlockBytes, extent.range.end() - begin)};
    const auto what = [&] { return absl::StrCat(contents_.NameOf(check.file, range), ", block ", check.block); };
    const BlockBuffers::Lease buffer = buffers_.Take();
    const auto bytes = absl::MakeSpan(buffer.data(), range.nbytes);
    if (const absl::Status read = file.Read(range.offset, bytes); !read.ok()) {
      return Report(absl::StrCat(stored.name, ", ", Describe(range), " (", what(), "): ", std::string(read.message())),
                    order, {stored.name, range, what()});
    }
    const Digest digest = DigestOf(bytes);
    if (digest != extent.digests[check.block]) {
      Report(DamagedBlock(stored.name, range, what(), digest, extent.digests[check.block]), order,
             {stored.name, range, what()});
    } else if (options_.count_nonfinite) {
      CountElements(check.file, range, buffer.data());
    }
    Count(range.nbytes);
  }

  void CheckRest(const File& file, const StoredFile& stored, int64_t order) {
    std::vector<ByteRange> taken;
    for (const StoredExtent& extent : stored.extents) taken.push_back(extent.range);
    const std::vector<ByteRange> gaps = RangesBetween(taken, stored.nbytes);
    if (gaps.empty()) return;
    const VerifyReport::Damage damage = {
        stored.name, {gaps.front().offset, gaps.back().end() - gaps.front().offset}, "HDF5 metadata and padding"};
    DigestBuilder digest;
    const BlockBuffers::Lease buffer = buffers_.Take();
    for (const ByteRange& range : gaps) {
      for (int64_t at = range.offset; at < range.end(); at += kRestPieceBytes) {
        const auto bytes = absl::MakeSpan(buffer.data(), std::min(kRestPieceBytes, range.end() - at));
        if (const absl::Status read = file.Read(at, bytes); !read.ok()) {
          return Report(absl::StrCat(stored.name, ", bytes outside of payload: ", std::string(read.message())), order,
                        damage);
        }
        digest.Update(bytes);
        Count(static_cast<int64_t>(bytes.size()));
      }
    }
    if (digest.Finish() != stored.rest_digest) {
      Report(absl::StrCat(stored.name, ", bytes outside of payload (HDF5 metadata and padding, ", List(gaps),
                          "): digest ", digest.Finish().ToHex(), " != recorded ", stored.rest_digest.ToHex()),
             order, damage);
    }
  }

  // "bytes 0 to 2047, bytes 8192 to 8200 and 3 more ranges"
  static std::string List(const std::vector<ByteRange>& ranges) {
    std::string text;
    for (size_t i = 0; i < std::min(kListedRanges, ranges.size()); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : ", ", Describe(ranges[i]));
    }
    if (ranges.size() <= kListedRanges) return text;
    return absl::StrCat(text, " and ", ranges.size() - kListedRanges, " more ranges");
  }

  // Counts what is not finite among the elements that lie in `range` of a file, whose bytes are at `data`. Blocks are
  // cut between elements.
  void CountElements(int file, const ByteRange& range, const std::byte* data) {
    contents_.VisitTensors(file, range, [&](int tensor, const ByteRange& part) {
      const DType dtype = manifest_.tensors[tensor].dtype;
      const NonFinite count = CountNonFinite(dtype, data + (part.offset - range.offset), part.nbytes / SizeOf(dtype));
      if (!count.any()) return;
      const std::lock_guard<std::mutex> lock(mutex_);
      nonfinite_[tensor].Add(count);
    });
  }

  void Count(int64_t nbytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_done_ += nbytes;
    if (options_.progress) options_.progress(bytes_done_, bytes_total_);
  }

  FileSystem& files_;
  const std::string& directory_;
  const Manifest& manifest_;
  const VerifyOptions& options_;

  const FileContents contents_;
  std::vector<Check> checks_;
  int64_t bytes_total_ = 0;
  BlockBuffers buffers_;

  std::mutex mutex_;
  // All guarded by mutex_.
  int64_t bytes_done_ = 0;
  std::vector<Problem> problems_;
  std::vector<NonFinite> nonfinite_;  // by tensor
};

// True when `directory` holds files that a checkpoint has.
bool HoldsCheckpointFiles(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(directory);
  return names.ok() && std::any_of(names->begin(), names->end(), [](const std::string& name) {
           return name == kCheckpointFileName || (absl::StartsWith(name, "rank-") && absl::EndsWith(name, ".h5"));
         });
}

int64_t SizeOfManifest(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::unique_ptr<File>> file = files.Open(JoinPath(directory, kManifestName));
  return file.ok() ? (*file)->Size().value_or(0) : 0;
}

}  // namespace

absl::StatusOr<VerifyReport> VerifyCheckpoint(const std::string& path, const VerifyOptions& options) {
  FileSystem& files = PosixFileSystem();
  const absl::StatusOr<Manifest> manifest = ReadManifest(files, path);
  if (manifest.ok()) return Verification(files, path, *manifest, options).Run();
  VerifyReport report;
  report.files = 1;
  if (absl::IsDataLoss(manifest.status())) {
    report.problems.push_back(std::string(manifest.status().message()));
    report.damage.push_back({kManifestName, {0, SizeOfManifest(files, path)}, "manifest"});
  } else if (absl::IsNotFound(manifest.status()) && HoldsCheckpointFiles(files, path)) {
    report.problems.push_back(absl::StrCat(kManifestName, ": the file is missing"));
    report.damage.push_back({kManifestName, {}, "manifest"});
  } else {
    return manifest.status();
  }
  return report;
}

}  // namespace fsdp
