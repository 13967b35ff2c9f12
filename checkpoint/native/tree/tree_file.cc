// SPDX-License-Identifier: Apache-2.0
//
// How a rank file describes itself:
//
//   1. The record's length must be known before the layout, because the record is a dataset of the file. So the record
//      is encoded once with the widest number for every offset and with zero digests: the real one is never longer.
//   2. HDF5 lays the file out with that many bytes for /fsdp/record.
//   3. The payload except the record is written and digested.
//   4. The record, which now has every offset and digest, is encoded, padded with blanks to its length, and written.
#include "fsdp/checkpoint/native/tree/tree_file.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "fsdp/base/annotate.h"
#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// Parts shorter than this are not cut at page boundaries: the two extents would cost more than the page cache.
constexpr int64_t kLongBytes = int64_t{1} << 20;

// A number of 19 digits, as many as an int64_t can have. Not the largest, so that offsets within a dataset can be
// added.
constexpr int64_t kWidest = 1'000'000'000'000'000'000;

// Ranges of the right lengths at offsets with the most digits.
TreeRanges WidestRanges(const TreeFile& tree) {
  TreeRanges ranges;
  ranges.nbytes = kWidest;
  for (const TreeFile::TensorPart& tensor : tree.tensors) {
    ranges.tensors.push_back({kWidest, tree.HasDataset(tensor) ? tensor.interval.size() * SizeOf(tensor.dtype) : 0});
  }
  for (const TreeFile::FlatPart& flat : tree.flats) ranges.flats.push_back({kWidest, flat.nbytes()});
  for (const TreeFile::Text& text : tree.texts) ranges.texts.push_back({kWidest, text.dataset_bytes()});
  ranges.record = ByteRange{kWidest, kWidest};
  return ranges;
}

// The interval of `tensor`, with the index of its file: 0 is the tree's own file, the links follow.
StoredInterval StoredAt(const TreeFile::TensorPart& tensor, const ByteRange& dataset, const TreeRanges& ranges) {
  if (const TreeFile::Linked* linked = tensor.linked()) return {tensor.interval, 1 + linked->link, linked->offset};
  const TreeFile::InFlat* flat = tensor.in_flat();
  if (flat == nullptr) return {tensor.interval, 0, dataset.offset};
  return {tensor.interval, 0, ranges.flats[flat->flat].offset + flat->begin * SizeOf(tensor.dtype)};
}

// The description of the file when it is written, with zero digests and extents in the order of the tree.
StoredValues DescribeTree(const TreeFile& tree, const TreeRanges& ranges) {
  StoredValues values;
  StoredFile own;
  own.name = tree.name;
  own.nbytes = ranges.nbytes;
  if (tree.record) own.record = ranges.record;
  for (size_t i = 0; i < tree.tensors.size(); ++i) {
    const TreeFile::TensorPart& tensor = tree.tensors[i];
    if (tensor.shown() != nullptr) continue;
    values.tensors.push_back({tensor.key, tensor.aliases, tensor.dtype, tensor.shape, {}, ""});
    if (tree.IsOnlyNamed(tensor)) continue;
    values.tensors.back().intervals.push_back(StoredAt(tensor, ranges.tensors[i], ranges));
    if (ranges.tensors[i].nbytes > 0) own.extents.push_back(NewPayloadExtent(ranges.tensors[i]));
  }
  for (const ByteRange& range : ranges.flats) own.extents.push_back(NewPayloadExtent(range));
  for (size_t i = 0; i < tree.texts.size(); ++i) {
    const TreeFile::Text& text = tree.texts[i];
    values.texts.push_back({text.key, 0, {ranges.texts[i].offset, static_cast<int64_t>(text.text.size())}});
    own.extents.push_back(NewPayloadExtent(ranges.texts[i]));
  }
  values.files.push_back(std::move(own));
  values.files.insert(values.files.end(), tree.links.begin(), tree.links.end());
  return values;
}

// Bytes of the dataset of the record; 0 for a file without one.
int64_t RecordBytes(const TreeFile& tree) {
  if (!tree.record) return 0;
  const FileRecord widest = {*tree.record, DescribeTree(tree, WidestRanges(tree))};
  const auto nbytes = static_cast<int64_t>(EncodeRecord(widest, 0).size());
  return (nbytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

// Reads a flat dataset: if one tensor has all requested bytes, from that tensor without a copy, else piece by piece,
// with zeros between the tensors.
class FlatReader {
 public:
  FlatReader(const TreeFile& tree, int flat) : size_(SizeOf(tree.flats[flat].dtype)) {
    for (const TreeFile::TensorPart& tensor : tree.tensors) {
      const TreeFile::InFlat* place = tensor.in_flat();
      if (place != nullptr && place->flat == flat) members_.push_back({&tensor, place->begin});
    }
    std::sort(members_.begin(), members_.end(), [](const Member& a, const Member& b) { return a.begin < b.begin; });
  }

  absl::StatusOr<const std::byte*> Read(int64_t begin, int64_t nbytes, std::byte* scratch) const {
    const Interval wanted = {begin / size_, (begin + nbytes) / size_};
    int64_t done = wanted.begin;  // elements of the dataset before this are in scratch
    for (auto it = FirstAfter(wanted.begin); it != members_.end() && it->begin < wanted.end; ++it) {
      const Interval part = Intersect(it->interval(), wanted);
      const int64_t shift = it->tensor->interval.begin - it->begin;  // from the dataset's elements to the tensor's
      std::byte* const target = scratch + (part.begin - wanted.begin) * size_;
      FSDP_ASSIGN_OR_RETURN(const std::byte* source, it->tensor->read({part.begin + shift, part.end + shift}, target));
      if (part == wanted) return source;
      std::memset(scratch + (done - wanted.begin) * size_, 0, (part.begin - done) * size_);
      if (source != target) std::memcpy(target, source, part.size() * size_);
      done = part.end;
    }
    std::memset(scratch + (done - wanted.begin) * size_, 0, (wanted.end - done) * size_);
    return scratch;
  }

 private:
  struct Member {
    const TreeFile::TensorPart* tensor;
    int64_t begin;  // its first element in the dataset

    Interval interval() const { return {begin, begin + tensor->interval.size()}; }
  };

  std::vector<Member>::const_iterator FirstAfter(int64_t begin) const {
    return std::partition_point(members_.begin(), members_.end(),
                                [&](const Member& member) { return member.interval().end <= begin; });
  }

  const int64_t size_;           // of an element
  std::vector<Member> members_;  // by begin
};

std::vector<PayloadExtent> ExtentsOf(const TreeFile& tree, const TreeRanges& ranges) {
  std::vector<PayloadExtent> extents;
  for (size_t i = 0; i < tree.tensors.size(); ++i) {
    if (ranges.tensors[i].nbytes == 0 || tree.is_shared) continue;
    extents.push_back({ranges.tensors[i], TensorBlockReader(tree.tensors[i], tree.tensors[i].interval.begin)});
  }
  for (size_t i = 0; i < tree.flats.size(); ++i) {
    extents.push_back({ranges.flats[i], FlatBlockReader(tree, static_cast<int>(i))});
  }
  for (size_t i = 0; i < tree.texts.size(); ++i) {
    // c_str() includes the NUL that is the only byte of an empty text.
    const std::string& text = tree.texts[i].text;
    extents.push_back({ranges.texts[i], [&text](int64_t begin, int64_t, std::byte*) {
                         return absl::StatusOr<const std::byte*>(reinterpret_cast<const std::byte*>(text.c_str()) +
                                                                 begin);
                       }});
  }
  return extents;
}

// Writes the record in its place and adds its extent to values.files[0].
absl::Status WriteRecord(File& file, const RecordHeader& header, StoredValues& values) {
  const ByteRange range = *values.files[0].record;
  const std::string text = EncodeRecord({header, values}, range.nbytes);
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
  FSDP_RETURN_IF_ERROR(file.Write(range.offset, bytes));
  StoredExtent extent = {range, {}};
  for (int64_t at = 0; at < range.nbytes; at += kBlockBytes) {
    extent.digests.push_back(DigestOf(bytes.subspan(at, kBlockBytes)));
  }
  InsertExtent(std::move(extent), values.files[0]);
  return absl::OkStatus();
}

// The elements of `part`, of `size` bytes each, the first at byte `offset`: cut at the first page boundary. The head
// shares its page with another writer's bytes and goes through the page cache; the tail can be written directly.
std::vector<Interval> CutAtPage(const Interval& part, int64_t offset, int64_t size) {
  const int64_t head = (kPageBytes - offset % kPageBytes) % kPageBytes;
  if (head == 0 || head % size != 0 || part.size() * size < kLongBytes) return {part};
  const int64_t cut = part.begin + head / size;
  return {{part.begin, cut}, {cut, part.end}};
}

}  // namespace

BlockReader FlatBlockReader(const TreeFile& tree, int flat) {
  const auto reader = std::make_shared<const FlatReader>(tree, flat);
  return [reader](int64_t begin, int64_t nbytes, std::byte* scratch) { return reader->Read(begin, nbytes, scratch); };
}

BlockReader TensorBlockReader(const TreeFile::TensorPart& tensor, int64_t first) {
  const int64_t size = SizeOf(tensor.dtype);
  return [&tensor, first, size](int64_t begin, int64_t nbytes, std::byte* scratch) {
    const int64_t element = first + begin / size;
    return tensor.read({element, element + nbytes / size}, scratch);
  };
}

absl::StatusOr<LaidOutFile> LaidOutFile::Create(const TreeFile& tree) {
  absl::StatusOr<TreeLayout> layout = LayOutTree(tree, RecordBytes(tree));
  if (layout.ok()) return LaidOutFile(tree, *std::move(layout));
  return Annotate(layout.status(), tree.name);
}

StoredValues LaidOutFile::Describe() const {
  StoredValues values = DescribeTree(*tree_, layout_.ranges);
  std::sort(values.files[0].extents.begin(), values.files[0].extents.end(),
            [](const StoredExtent& a, const StoredExtent& b) { return a.range.offset < b.range.offset; });
  return values;
}

absl::StatusOr<StoredValues> LaidOutFile::Write(FileSystem& files, const std::string& directory, ThreadPool& pool,
                                                const PayloadWriteOptions& write) const {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(JoinPath(directory, tree_->name)));
  return Write(*file, pool, write);
}

absl::StatusOr<StoredValues> LaidOutFile::Write(File& file, ThreadPool& pool, const PayloadWriteOptions& write) const {
  const TreeRanges& ranges = layout_.ranges;
  PayloadWriteOptions options = write;
  if (ranges.record) options.later.push_back(*ranges.record);
  if (tree_->is_shared) {
    std::copy_if(ranges.tensors.begin(), ranges.tensors.end(), std::back_inserter(options.later),
                 [](const ByteRange& range) { return range.nbytes > 0; });
    std::sort(options.later.begin(), options.later.end(),
              [](const ByteRange& a, const ByteRange& b) { return a.offset < b.offset; });
  }
  FSDP_ASSIGN_OR_RETURN(StoredFile stored,
                        WritePayload(file, layout_.image, ranges.nbytes, ExtentsOf(*tree_, ranges), pool, options));
  stored.record = ranges.record;
  stored.name = tree_->name;
  StoredValues values = DescribeTree(*tree_, ranges);
  values.files[0] = std::move(stored);
  if (tree_->record) FSDP_RETURN_IF_ERROR(WriteRecord(file, *tree_->record, values));
  FSDP_RETURN_IF_ERROR(file.Sync());
  return values;
}

absl::StatusOr<StoredValues> WriteTreeFile(FileSystem& files, const std::string& directory, const TreeFile& tree,
                                           ThreadPool& pool, const PayloadWriteOptions& write) {
  FSDP_ASSIGN_OR_RETURN(const LaidOutFile file, LaidOutFile::Create(tree));
  return file.Write(files, directory, pool, write);
}

std::vector<int64_t> TensorOffsets(const StoredValues& made) {
  std::vector<int64_t> offsets;
  for (const StoredTensor& tensor : made.tensors) offsets.push_back(tensor.intervals[0].offset);
  return offsets;
}

absl::StatusOr<StoredValues> WriteTreeParts(FileSystem& files, const std::string& directory, const std::string& name,
                                            const std::vector<TreeFile::TensorPart>& tensors,
                                            const std::vector<int64_t>& offsets, const WriteBarrier& barrier,
                                            ThreadPool& pool) {
  Check(tensors.size() == offsets.size(), "an offset for each tensor");
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.OpenToWrite(JoinPath(directory, name)));
  StoredValues written;
  std::vector<PayloadExtent> extents;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TreeFile::TensorPart& tensor = tensors[i];
    written.tensors.push_back({tensor.key, tensor.aliases, tensor.dtype, tensor.shape, {}, ""});
    if (tensor.interval.empty()) continue;
    const int64_t size = SizeOf(tensor.dtype);
    for (const Interval& cut : CutAtPage(tensor.interval, offsets[i] + tensor.interval.begin * size, size)) {
      const ByteRange range = {offsets[i] + cut.begin * size, cut.size() * size};
      written.tensors.back().intervals.push_back({cut, 0, range.offset});
      extents.push_back({range, TensorBlockReader(tensor, cut.begin)});
    }
  }
  StoredFile stored;
  stored.name = name;
  FSDP_ASSIGN_OR_RETURN(stored.nbytes, file->Size());
  FSDP_ASSIGN_OR_RETURN(stored.extents, WriteExtents(*file, std::move(extents), pool, {.barrier = barrier}));
  FSDP_RETURN_IF_ERROR(file->Sync());
  written.files.push_back(std::move(stored));
  return written;
}

absl::Status MergeTreeParts(const std::vector<StoredValues>& parts, StoredValues& made) {
  std::vector<StoredExtent>& extents = made.files[0].extents;
  for (StoredTensor& tensor : made.tensors) tensor.intervals.clear();
  for (const StoredValues& part : parts) {
    extents.insert(extents.end(), part.files[0].extents.begin(), part.files[0].extents.end());
    for (size_t i = 0; i < made.tensors.size(); ++i) {
      const auto& intervals = part.tensors[i].intervals;
      made.tensors[i].intervals.insert(made.tensors[i].intervals.end(), intervals.begin(), intervals.end());
    }
  }
  std::sort(extents.begin(), extents.end(),
            [](const StoredExtent& a, const StoredExtent& b) { return a.range.offset < b.range.offset; });
  for (StoredTensor& tensor : made.tensors) {
    std::sort(tensor.intervals.begin(), tensor.intervals.end(),
              [](const StoredInterval& a, const StoredInterval& b) { return a.interval.begin < b.interval.begin; });
    FSDP_RETURN_IF_ERROR(CheckCovered(tensor));
    // A tensor without elements still needs an interval that names its file.
    if (tensor.intervals.empty()) tensor.intervals.push_back({{0, 0}, 0, 0});
  }
  return absl::OkStatus();
}

}  // namespace fsdp
