// SPDX-License-Identifier: Apache-2.0
//
// A scan in three steps:
//
//   1. Each file is cut into sections: a digest block of an extent, or up to kBlockBytes of the rest between extents.
//   2. Sections that follow each other in a file are joined into runs of up to kMaxReadBytes, and each run is one read.
//      The layout decides how small sections are, and small reads would be slow.
//   3. ReadInParallel reads the runs in order. Each section of a run is delivered separately: a block to the scanner, a
//      part of the rest to the file's RestDigest, which restores the order of the parts.
//
// When a run cannot be read, its sections are read one by one, so that a bad sector damages one block in the report and
// not the whole run.
#include "fsdp/checkpoint/native/format/file_scan.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/rest_digest.h"
#include "fsdp/checkpoint/storage/parallel_reads.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {
namespace {

// A block of an extent. With extent -1: part `block` of the bytes outside of extents.
using Section = ScannedBlock;

// Sections [first, first + count) are one read.
struct SectionRun {
  size_t first = 0;
  size_t count = 0;
  ByteRange range;
};

class FileScan {
 public:
  FileScan(const std::vector<const StoredFile*>& files, const FileScanner& scanner)
      : files_(files), scanner_(scanner), rests_(files.size()) {}

  absl::Status Run(ThreadPool& pool) {
    for (size_t i = 0; i < files_.size(); ++i) {
      if (files_[i] != nullptr) FSDP_RETURN_IF_ERROR(AddFile(static_cast<int>(i)));
    }
    JoinSections();
    return ReadInParallel(
        pool, static_cast<int64_t>(runs_.size()), [this](int64_t i) { return Begin(runs_[i]); },
        [this](int64_t i, const absl::StatusOr<const std::byte*>& bytes) { return Done(runs_[i], bytes); });
  }

 private:
  absl::Status AddFile(int file) {
    const StoredFile& stored = *files_[file];
    int64_t end = 0;
    int64_t parts = 0;
    for (size_t i = 0; i < stored.extents.size(); ++i) {
      const ByteRange& extent = stored.extents[i].range;
      AddSections(file, -1, {end, extent.offset - end}, kBlockBytes, parts);
      int64_t block = 0;
      AddSections(file, static_cast<int>(i), extent, stored.extents[i].block_bytes, block);
      end = extent.end();
    }
    AddSections(file, -1, {end, stored.nbytes - end}, kBlockBytes, parts);
    if (!scanner_.rest) return absl::OkStatus();
    rests_[file] = std::make_unique<RestDigest>(parts);
    return parts > 0 ? absl::OkStatus() : scanner_.rest(file, rests_[file]->Finish());
  }

  // Cuts `range` into sections of `nbytes`; `count` numbers them and is the number of the next one afterwards.
  void AddSections(int file, int extent, const ByteRange& range, int64_t nbytes, int64_t& count) {
    if (extent < 0 && !scanner_.rest) return;
    for (int64_t at = range.offset; at < range.end(); at += nbytes) {
      sections_.push_back({file, extent, count++, {at, std::min(nbytes, range.end() - at)}});
    }
  }

  void JoinSections() {
    for (size_t i = 0; i < sections_.size(); ++i) {
      const Section& section = sections_[i];
      const bool joins = !runs_.empty() && sections_[runs_.back().first].file == section.file &&
                         section.range.offset == runs_.back().range.end() &&
                         section.range.end() - runs_.back().range.offset <= kMaxReadBytes;
      if (!joins) runs_.push_back({i, 0, {section.range.offset, 0}});
      ++runs_.back().count;
      runs_.back().range.nbytes += section.range.nbytes;
    }
  }

  // Runs come in the order of files, so one file after another is open.
  absl::StatusOr<std::shared_ptr<const File>> Open(int file) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (open_ == nullptr || open_file_ != file) {
      FSDP_ASSIGN_OR_RETURN(open_, scanner_.open(file));
      open_file_ = file;
    }
    return open_;
  }

  absl::StatusOr<LargeRead> Begin(const SectionRun& run) {
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<const File> file, Open(sections_[run.first].file));
    return LargeRead{std::move(file), run.range};
  }

  absl::Status Done(const SectionRun& run, const absl::StatusOr<const std::byte*>& bytes) {
    for (size_t i = run.first; i < run.first + run.count; ++i) {
      const Section& section = sections_[i];
      if (bytes.ok()) {
        FSDP_RETURN_IF_ERROR(Deliver(section, *bytes + (section.range.offset - run.range.offset)));
      } else {
        FSDP_RETURN_IF_ERROR(ReadAlone(section));
      }
      if (scanner_.count) scanner_.count(section.range.nbytes);
    }
    return absl::OkStatus();
  }

  // Reads a section of a run that could not be read as a whole.
  absl::Status ReadAlone(const Section& section) {
    const AlignedBlock memory = NewAlignedBlock(section.range.nbytes);
    const auto read = [&]() -> absl::StatusOr<const std::byte*> {
      FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, Open(section.file));
      FSDP_RETURN_IF_ERROR(file->Read(section.range.offset, absl::MakeSpan(memory.get(), section.range.nbytes)));
      return memory.get();
    };
    return Deliver(section, read());
  }

  absl::Status Deliver(const Section& section, const absl::StatusOr<const std::byte*>& bytes) {
    if (section.extent >= 0) return scanner_.block(section, bytes);
    RestDigest& rest = *rests_[section.file];
    const bool is_last = bytes.ok() ? rest.Add(section.block, absl::MakeConstSpan(*bytes, section.range.nbytes))
                                    : rest.Add(section.block, bytes.status());
    return is_last ? scanner_.rest(section.file, rest.Finish()) : absl::OkStatus();
  }

  const std::vector<const StoredFile*>& files_;
  const FileScanner& scanner_;
  std::vector<Section> sections_;  // by file and offset
  std::vector<SectionRun> runs_;
  std::vector<std::unique_ptr<RestDigest>> rests_;  // by file

  std::mutex mutex_;
  std::shared_ptr<const File> open_;  // guarded by mutex_
  int open_file_ = -1;                // guarded by mutex_
};

}  // namespace

absl::Status ScanFiles(const std::vector<const StoredFile*>& files, ThreadPool& pool, const FileScanner& scanner) {
  return FileScan(files, scanner).Run(pool);
}

// The scan shares one File among its threads; the shared_ptr with an empty owner refers to the caller's.
absl::Status CheckFileDigests(const File& file, const StoredFile& stored, ThreadPool& pool) {
  FSDP_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  if (size != stored.nbytes) {
    return absl::DataLossError(absl::StrCat(stored.name, " has ", size, " bytes, expected ", stored.nbytes));
  }
  FileScanner scanner;
  scanner.open = [&](int) { return std::shared_ptr<const File>(std::shared_ptr<const File>(), &file); };
  scanner.rest = [&](int, const absl::StatusOr<Digest>& digest) -> absl::Status {
    FSDP_RETURN_IF_ERROR(digest.status());
    if (*digest == stored.rest_digest) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(stored.name, ", bytes outside of payload: digest ", digest->ToHex(),
                                            " != recorded ", stored.rest_digest.ToHex()));
  };
  scanner.block = [&](const ScannedBlock& block, const absl::StatusOr<const std::byte*>& bytes) -> absl::Status {
    FSDP_RETURN_IF_ERROR(bytes.status());
    const Digest digest = DigestOf(absl::MakeConstSpan(*bytes, block.range.nbytes));
    const Digest& recorded = stored.extents[block.extent].digests[block.block];
    if (digest == recorded) return absl::OkStatus();
    return absl::DataLossError(
        DamagedBlock(stored.name, block.range, absl::StrCat("block ", block.block), digest, recorded));
  };
  return ScanFiles({&stored}, pool, scanner);
}

}  // namespace fsdp
