// SPDX-License-Identifier: Apache-2.0
//
// Every byte of a file is covered by exactly one digest, so one scan of each file compares them all:
//
//   HDF5 metadata and padding  ->  the file's rest digest, one for all of them
//   extents, by blocks         ->  a digest per block; the record is such an extent; if its digest differs, CheckRecord
//                                  decodes it to report its origin
//   manifest.json              ->  its own digest, compared by ReadManifest
//
// The scan reads all files on the threads of a pool, in about the order of the bytes on the disk, and records problems
// as they are found; each carries its place, and the report sorts by it, so that the result does not depend on timing.
// A problem does not end the verification: `ckpt repair` and people need all of them. A file of the wrong size is
// scanned too, block by block, to find the tensors that are still intact.
#include "fsdp/checkpoint/native/verify/verify.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/file_scan.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/record.h"
#include "fsdp/checkpoint/native/parity/find_record.h"
#include "fsdp/checkpoint/native/verify/range_names.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/unread.h"

namespace fsdp {
namespace {

// Maximum number of gaps of a file that a message lists.
constexpr size_t kListedRanges = 3;

int64_t SizeOfManifest(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::unique_ptr<File>> file = files.Open(JoinPath(directory, kManifestName));
  return file.ok() ? (*file)->Size().value_or(0) : 0;
}

// A problem with its place in the report: file and offset, -1 for the file as a whole.
struct Problem {
  std::pair<int, int64_t> order;
  absl::Status error;
  std::vector<VerifyReport::Damage> damage;  // empty when the problem is not damage to known bytes
};

class Verification {
 public:
  Verification(FileSystem& files, const std::string& directory, const Manifest& manifest, const VerifyOptions& options)
      : files_(files),
        directory_(directory),
        manifest_(manifest),
        options_(options),
        names_(files, directory, manifest),
        nonfinite_(manifest.tensors.size()) {}

  absl::StatusOr<VerifyReport> Run() {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                          ThreadPool::Create(options_.io_threads, "checkpoint-verify"));
    CheckManifestsPlace();
    CheckUnknownFiles();
    for (const StoredTensor& tensor : manifest_.tensors) {
      if (const absl::Status covered = CheckCovered(tensor); !covered.ok()) Report(covered);
    }
    for (size_t i = 0; i < manifest_.files.size(); ++i) CheckFile(static_cast<int>(i));
    FileScanner scanner = Scanner();
    FSDP_RETURN_IF_ERROR(ScanFiles(scanned_, *pool, scanner));
    // No rest digest for files of the wrong size: the gaps between extents depend on the size in the manifest, which
    // may be arbitrary (a huge size would give a huge list of gaps), and the digest is known to be wrong.
    scanner.rest = nullptr;
    FSDP_RETURN_IF_ERROR(ScanFiles(missized_, *pool, scanner));
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
      report.AddProblem(problem.error);
      if (IsUnread(problem.error)) continue;
      std::move(problem.damage.begin(), problem.damage.end(), std::back_inserter(report.damage));
    }
    for (size_t i = 0; i < nonfinite_.size(); ++i) {
      if (nonfinite_[i].any()) report.nonfinite.push_back({manifest_.tensors[i].key.ToString(), nonfinite_[i]});
    }
  }

  // The order of problems in the report: problems of the checkpoint first, then for each file problems of the whole
  // file and problems at an offset.
  static constexpr std::pair<int, int64_t> kBeforeFiles = {-1, 0};
  static std::pair<int, int64_t> OfFile(int file) { return {file, -1}; }

  void Report(absl::Status error, const std::pair<int, int64_t>& order = kBeforeFiles,
              std::vector<VerifyReport::Damage> damage = {}) {
    const std::lock_guard<std::mutex> lock(mutex_);
    problems_.push_back({order, std::move(error), std::move(damage)});
  }

  // If most other files are of another save, the manifest is the misplaced file; this is reported first.
  void CheckManifestsPlace() {
    const absl::Status placed = CheckSaveOf(files_, directory_, manifest_);
    if (placed.ok()) return;
    Report(placed, kBeforeFiles, {{kManifestName, {0, SizeOfManifest(files_, directory_)}, "manifest"}});
  }

  void CheckUnknownFiles() {
    const absl::StatusOr<std::vector<std::string>> names = FindUnknownFiles(files_, directory_, manifest_);
    if (!names.ok()) return Report(names.status());
    for (const std::string& name : *names) {
      Report(absl::DataLossError(absl::StrCat(Printable(name), ": the manifest names no such file")));
    }
  }

  // Checks size and record, and selects the file for a scan if it can be opened.
  void CheckFile(int index) {
    const StoredFile& stored = manifest_.files[index];
    absl::StatusOr<std::unique_ptr<File>> file = OpenStoredFile(files_, directory_, manifest_, index);
    // Both lists get an entry for every file, so that an index into them is the number of the file.
    scanned_.push_back(nullptr);
    missized_.push_back(nullptr);
    const bool is_right_size = file.ok();
    if (!is_right_size) {
      const absl::Status problem = file.status();
      if (IsUnread(problem)) return Report(problem, OfFile(index));
      // A file of the wrong size still shows which of its bytes are damaged.
      file = files_.Open(JoinPath(directory_, stored.name));
      const int64_t size = file.ok() ? (*file)->Size().value_or(0) : 0;
      Report(problem, OfFile(index), {{stored.name, {0, std::max(size, stored.nbytes)}, "file"}});
      if (!file.ok()) return;
    }
    if (const absl::Status record = CheckRecord(**file, manifest_, index); !record.ok()) {
      Report(record, OfFile(index), {{stored.name, stored.record.value_or(ByteRange()), "record"}});
    }
    (is_right_size ? scanned_ : missized_).back() = &stored;
    for (const StoredExtent& extent : stored.extents) bytes_total_ += is_right_size ? 0 : extent.range.nbytes;
    if (is_right_size) bytes_total_ += stored.nbytes;
  }

  FileScanner Scanner() {
    FileScanner scanner;
    scanner.open = [this](int file) -> absl::StatusOr<std::shared_ptr<const File>> {
      return files_.Open(JoinPath(directory_, manifest_.files[file].name));
    };
    scanner.block = [this](const ScannedBlock& block, const absl::StatusOr<const std::byte*>& bytes) {
      CheckBlock(block, bytes);
      return absl::OkStatus();
    };
    scanner.rest = [this](int file, const absl::StatusOr<Digest>& digest) {
      CheckRest(file, digest);
      return absl::OkStatus();
    };
    scanner.count = [this](int64_t nbytes) { Count(nbytes); };
    return scanner;
  }

  void CheckBlock(const ScannedBlock& block, const absl::StatusOr<const std::byte*>& bytes) {
    const StoredFile& stored = manifest_.files[block.file];
    const ByteRange& range = block.range;
    const auto what = [&] { return absl::StrCat(names_.NameOf(block.file, range), ", block ", block.block); };
    const auto report = [&](absl::Status error) {
      Report(std::move(error), {block.file, range.offset}, {{stored.name, range, what()}});
    };
    if (!bytes.ok()) {
      return report(Annotate(bytes.status(), absl::StrCat(stored.name, ", ", Describe(range), " (", what(), ")")));
    }
    const Digest& recorded = stored.extents[block.extent].digests[block.block];
    const Digest digest = DigestOf(absl::MakeConstSpan(*bytes, range.nbytes));
    if (digest != recorded) {
      return report(absl::DataLossError(DamagedBlock(stored.name, range, what(), digest, recorded)));
    }
    if (options_.count_nonfinite) CountElements(block.file, range, *bytes);
  }

  // One digest covers all bytes between the extents, so it cannot locate the damage: the reported range reaches from
  // the first to the last of these bytes.
  void CheckRest(int file, const absl::StatusOr<Digest>& digest) {
    const StoredFile& stored = manifest_.files[file];
    if (digest.ok() && *digest == stored.rest_digest) return;
    std::vector<ByteRange> taken;
    for (const StoredExtent& extent : stored.extents) taken.push_back(extent.range);
    const std::vector<ByteRange> gaps = RangesBetween(taken, stored.nbytes);
    const ByteRange all =
        gaps.empty() ? ByteRange() : ByteRange{gaps.front().offset, gaps.back().end() - gaps.front().offset};
    const absl::Status problem =
        digest.ok() ? absl::DataLossError(absl::StrCat("digest ", digest->ToHex(), " != recorded ",
                                                       stored.rest_digest.ToHex(), ", which covers all of them"))
                    : digest.status();
    Report(Annotate(problem, absl::StrCat(stored.name, ", bytes outside of payload (HDF5 metadata and padding, ",
                                          List(gaps), ")")),
           {file, all.offset}, {{stored.name, all, "HDF5 metadata and padding"}});
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

  // Counts NaN and infinity among the elements in `range` of a file, whose bytes are at `data`. Blocks are cut between
  // elements, so no element is in two of them.
  void CountElements(int file, const ByteRange& range, const std::byte* data) {
    names_.contents().VisitTensors(file, range, [&](int tensor, const ByteRange& part) {
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

  RangeNames names_;
  std::vector<const StoredFile*> scanned_;   // by file; null unless it has the right size
  std::vector<const StoredFile*> missized_;  // by file; null unless it has the wrong size and can be opened
  int64_t bytes_total_ = 0;

  std::mutex mutex_;
  // All guarded by mutex_.
  int64_t bytes_done_ = 0;
  std::vector<Problem> problems_;
  std::vector<NonFinite> nonfinite_;  // by tensor
};

// True if `directory` has files with names of checkpoint files: then a missing manifest is damage; otherwise the
// directory is not a checkpoint.
absl::StatusOr<bool> HoldsCheckpointFiles(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(directory);
  if (IsUnread(names.status())) return names.status();
  return names.ok() && std::any_of(names->begin(), names->end(), [](const std::string& name) {
           return name == kCheckpointFileName || (absl::StartsWith(name, "rank-") && absl::EndsWith(name, ".h5"));
         });
}

}  // namespace

absl::Status VerifyReport::status() const {
  if (problems.empty()) return absl::OkStatus();
  const size_t more = problems.size() - 1;
  return absl::Status(is_damaged() ? absl::StatusCode::kDataLoss : unread_code,
                      absl::StrCat(problems[0], more == 0 ? "" : absl::StrCat(", and ", more, " more problems")));
}

void VerifyReport::AddProblem(const absl::Status& error) {
  problems.emplace_back(error.message());
  if (!IsUnread(error)) return;
  if (unread.empty()) unread_code = error.code();
  unread.push_back(problems.back());
}

absl::StatusOr<VerifyReport> VerifyCheckpoint(const std::string& path, const VerifyOptions& options) {
  FileSystem& files = *options.file_system;
  const absl::StatusOr<Manifest> manifest = ReadManifest(files, path);
  if (manifest.ok()) return Verification(files, path, *manifest, options).Run();
  VerifyReport report;
  report.files = 1;
  if (absl::IsDataLoss(manifest.status())) {
    report.problems.push_back(std::string(manifest.status().message()));
    report.damage.push_back({kManifestName, {0, SizeOfManifest(files, path)}, "manifest"});
    return report;
  }
  if (!absl::IsNotFound(manifest.status())) return manifest.status();
  FSDP_ASSIGN_OR_RETURN(const bool has_lost_it, HoldsCheckpointFiles(files, path));
  if (!has_lost_it) return manifest.status();
  report.problems.push_back(absl::StrCat(kManifestName, ": the file is missing"));
  report.damage.push_back({kManifestName, {}, "manifest"});
  return report;
}

}  // namespace fsdp
