// SPDX-License-Identifier: Apache-2.0
//
// The manifest describes each tensor as intervals of its elements, sorted and each contiguous in one file, so a read
// finds the first overlapping interval by binary search and walks from there. Each block of an extent, counted from its
// first byte, has a digest: VerifiedReader reads whole blocks and copies the wanted part. Two consequences: Pieces()
// cuts at block boundaries, so that callers which read piece by piece read no block twice; and ReadAll() plans all
// reads first and then visits each block once, for any number of reads that overlap it.
//
// A tensor whose intervals leave a hole or overlap fails only when it is read: other tensors stay readable, and verify
// reports all such tensors.
#include "fsdp/checkpoint/native/read/native_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/read/read_plan.h"
#include "fsdp/checkpoint/native/read/verified_reader.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

class NativeSource final : public TensorSource {
 public:
  // `files`: null is the operating system's.
  NativeSource(std::string path, Manifest manifest, VerifiedReader::Digests digests, std::shared_ptr<FileSystem> files,
               std::vector<std::string> notes)
      : files_(std::move(files)),
        manifest_(std::move(manifest)),
        reader_(files_ == nullptr ? PosixFileSystem() : *files_, path, manifest_, digests),
        path_(std::move(path)) {
    layout_.notes = std::move(notes);
  }

  // Fills contents().
  absl::Status ReadContents() {
    contents_.type = manifest_.save.type;
    contents_.units = manifest_.units;
    contents_.attributes = manifest_.save.attributes;
    for (size_t i = 0; i < manifest_.tensors.size(); ++i) {
      const StoredTensor& tensor = manifest_.tensors[i];
      ShardedTensor described;
      described.dtype = tensor.dtype;
      described.shape = tensor.shape;
      // No shards: contents() describes dtypes and shapes only.
      contents_.Set(tensor.key, std::move(described));
      for (const std::string& alias : tensor.aliases) contents_.aliases[alias] = tensor.key.fqn;
      index_[tensor.key] = i;
      covered_.push_back(CheckCovered(tensor));
    }
    for (const StoredText& text : manifest_.texts) {
      std::string value(text.range.nbytes, '\0');
      FSDP_RETURN_IF_ERROR(reader_.Read(text.file, text.range, reinterpret_cast<std::byte*>(value.data()),
                                        [&] { return absl::StrCat("text ", Quote(text.key.ToString())); }));
      contents_.Set(text.key, std::move(value));
    }
    return absl::OkStatus();
  }

  const FormatTraits& traits() const override { return NativeTraits(); }
  const StateDict& contents() const override { return contents_; }
  const SourceLayout& layout() const override { return layout_; }
  int64_t step() const override { return manifest_.save.known_step(); }
  int world_size() const override { return manifest_.save.world_size; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    for (const StoredFile& file : manifest_.files) paths.push_back(JoinPath(path_, file.name));
    return paths;
  }

  // The manifest has the digests of all bytes, so its own digest stands for them.
  absl::StatusOr<std::string> Identity() const override {
    return absl::StrCat(manifest_.save.StepText(), " of save ", Printable(manifest_.save.id), ", manifest digest ",
                        manifest_.digest);
  }

  bool has_checksums() const override { return true; }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const size_t index, Find(key));
    FSDP_RETURN_IF_ERROR(covered_[index]);
    const StoredTensor& tensor = manifest_.tensors[index];
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, tensor.shape.numel()));
    const int64_t size = SizeOf(tensor.dtype);
    for (auto stored = FirstOverlap(tensor, interval.begin);
         stored != tensor.intervals.end() && stored->interval.begin < interval.end; ++stored) {
      const Interval part = Intersect(stored->interval, interval);
      const ByteRange range = {stored->offset + (part.begin - stored->interval.begin) * size, part.size() * size};
      FSDP_RETURN_IF_ERROR(reader_.Read(stored->file, range,
                                        static_cast<std::byte*>(out) + (part.begin - interval.begin) * size,
                                        [&] { return Describe(key); }));
    }
    return absl::OkStatus();
  }

  absl::Status ReadAll(const std::vector<TensorRead>& reads, ThreadPool& pool) const override {
    for (const TensorRead& read : reads) {
      FSDP_ASSIGN_OR_RETURN(const size_t index, Find(read.key));
      FSDP_RETURN_IF_ERROR(covered_[index]);
    }
    FSDP_ASSIGN_OR_RETURN(const std::vector<BlockRead> blocks, PlanReads(manifest_, index_, reads));
    return reader_.ReadBlocks(blocks, pool, [&](const BlockPiece& piece) { return Describe(reads[piece.read].key); });
  }

  // Pieces are blocks, so that no block is read twice.
  std::vector<Interval> Pieces(const StateKey& key, const Interval& interval) const override {
    const absl::StatusOr<size_t> index = Find(key);
    if (!index.ok()) return TensorSource::Pieces(key, interval);
    const StoredTensor& tensor = manifest_.tensors[*index];
    const int64_t block = kBlockBytes / SizeOf(tensor.dtype);
    std::vector<Interval> pieces;
    int64_t begin = interval.begin;
    for (auto stored = FirstOverlap(tensor, begin); begin < interval.end; ++stored) {
      // A broken cover: Read returns its error, for any pieces.
      if (stored == tensor.intervals.end()) return TensorSource::Pieces(key, interval);
      while (begin < std::min(stored->interval.end, interval.end)) {
        const int64_t next = stored->interval.begin + ((begin - stored->interval.begin) / block + 1) * block;
        const int64_t end = std::min({next, stored->interval.end, interval.end});
        pieces.push_back({begin, end});
        begin = end;
      }
    }
    return pieces;
  }

 private:
  absl::StatusOr<size_t> Find(const StateKey& key) const {
    const auto it = index_.find(key);
    if (it != index_.end()) return it->second;
    return absl::NotFoundError(absl::StrCat(path_, " holds no ", Describe(key)));
  }

  static std::vector<StoredInterval>::const_iterator FirstOverlap(const StoredTensor& tensor, int64_t begin) {
    return std::partition_point(tensor.intervals.begin(), tensor.intervals.end(),
                                [&](const StoredInterval& stored) { return stored.interval.end <= begin; });
  }

  const std::shared_ptr<FileSystem> files_;
  const Manifest manifest_;
  mutable VerifiedReader reader_;  // thread-safe; opens a file when it is first read from
  const std::string path_;
  SourceLayout layout_;
  StateDict contents_;
  TensorIndex index_;                  // into manifest_.tensors
  std::vector<absl::Status> covered_;  // by the same index: the error to return for reads of a tensor with a hole
  const std::map<std::string, std::string> metadata_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenNativeSource(const std::string& path,
                                                               const TensorSourceOptions& options,
                                                               std::shared_ptr<FileSystem> files,
                                                               std::vector<std::string> notes) {
  FSDP_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files == nullptr ? PosixFileSystem() : *files, path));
  const auto digests = options.verify ? VerifiedReader::Digests::kCompare : VerifiedReader::Digests::kIgnore;
  auto source = std::make_unique<NativeSource>(path, std::move(manifest), digests, std::move(files), std::move(notes));
  FSDP_RETURN_IF_ERROR(source->ReadContents());
  return source;
}

const FormatTraits& NativeTraits() {
  static const auto* traits = new FormatTraits{.name = "hdf5",
                                               .headline = "a checkpoint",
                                               .in_directory = "manifest.json",
                                               .file = {},
                                               .suffixes = {".h5", ".hdf5"},
                                               .is_ours = true,
                                               .has_writers = true,
                                               .is_hdf5 = true,
                                               .keeps_metadata = true};
  return *traits;
}

}  // namespace fsdp
