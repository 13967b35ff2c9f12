// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/tree/tree_file.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/manifest_json.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/tree/tree_layout.h"

namespace fsdp {
namespace {

// True for a tensor of which this file holds nothing: none of its elements is here, and the file is a rank's.
bool IsOnlyNamed(const TreeFile& tree, const TreeFile::TensorPart& tensor) {
  return tree.has_record && tensor.interval.empty();
}

bool HasOwnDataset(const TreeFile& tree, const TreeFile::TensorPart& tensor) {
  return tensor.flat < 0 && tensor.link < 0 && !IsOnlyNamed(tree, tensor);
}

TreeContents ContentsOf(const TreeFile& tree, int64_t record_bytes) {
  TreeContents contents;
  for (const TreeFile::TensorPart& tensor : tree.tensors) {
    if (!HasOwnDataset(tree, tensor)) continue;
    contents.tensors.push_back({tensor.key, tensor.dtype, tensor.shape, tensor.interval, tensor.parts});
  }
  for (const TreeFile::FlatPart& flat : tree.flats) {
    contents.flats.push_back({flat.path, flat.unit, flat.dtype, flat.numel});
  }
  for (const TreeFile::Text& text : tree.texts) {
    contents.texts.push_back({text.key, static_cast<int64_t>(text.text.size())});
  }
  contents.record_bytes = record_bytes;
  contents.warning = tree.warning;
  return contents;
}

// What the file will say of itself, with the offsets of `layout`; its digests, and the offsets where there is no layout
// yet, are as long as they can get.
Manifest DescribeTree(const TreeFile& tree, const Manifest& identity, const TreeLayout* layout) {
  constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();
  Manifest part = identity;
  part.files.assign(1, StoredFile());
  part.files[0].name = tree.name;
  part.files[0].nbytes = kLongest;
  const auto add_extent = [&](const ByteRange& range) { part.files[0].extents.push_back(NewPayloadExtent(range)); };
  part.files.insert(part.files.end(), tree.links.begin(), tree.links.end());
  size_t next = 0;
  for (const TreeFile::TensorPart& tensor : tree.tensors) {
    if (!tensor.parts.empty()) {
      ++next;
      continue;
    }
    part.tensors.push_back({tensor.key, tensor.aliases, tensor.dtype, tensor.shape, {}, ""});
    if (IsOnlyNamed(tree, tensor)) continue;
    if (tensor.link >= 0) {
      part.tensors.back().intervals.push_back({tensor.interval, 1 + tensor.link, tensor.link_offset});
      continue;
    }
    if (tensor.flat >= 0) {
      const int64_t begin = tensor.flat_begin * SizeOf(tensor.dtype);
      const int64_t offset = layout != nullptr ? layout->flats[tensor.flat].offset + begin : kLongest;
      part.tensors.back().intervals.push_back({tensor.interval, 0, offset});
      continue;
    }
    const ByteRange range = layout != nullptr ? layout->tensors[next++]
                                              : ByteRange{kLongest, tensor.interval.size() * SizeOf(tensor.dtype)};
    part.tensors.back().intervals.push_back({tensor.interval, 0, range.offset});
    if (range.nbytes > 0) add_extent(range);
  }
  for (size_t i = 0; i < tree.flats.size(); ++i) {
    const int64_t nbytes = tree.flats[i].numel * SizeOf(tree.flats[i].dtype);
    add_extent(layout != nullptr ? layout->flats[i] : ByteRange{kLongest, nbytes});
  }
  for (size_t i = 0; i < tree.texts.size(); ++i) {
    const auto nbytes = static_cast<int64_t>(tree.texts[i].text.size());
    const ByteRange range = layout != nullptr ? layout->texts[i] : ByteRange{kLongest, std::max<int64_t>(1, nbytes)};
    part.texts.push_back({tree.texts[i].key, 0, {range.offset, nbytes}});
    add_extent(range);
  }
  if (tree.has_record) part.files[0].record = layout != nullptr ? *layout->record : ByteRange{kLongest, kLongest};
  return part;
}

int64_t RecordBytes(const TreeFile& tree, const Manifest& identity) {
  const auto longest = static_cast<int64_t>(EncodeRecord(DescribeTree(tree, identity, nullptr), 0).size());
  return (longest + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

// Reads a flat dataset: from one tensor where it holds all that is asked for, else put together.
class FlatReader {
 public:
  FlatReader(const TreeFile& tree, int flat) : size_(SizeOf(tree.flats[flat].dtype)) {
    for (const TreeFile::TensorPart& tensor : tree.tensors) {
      if (tensor.flat == flat) tensors_.push_back(&tensor);
    }
    std::sort(tensors_.begin(), tensors_.end(),
              [](const auto* a, const auto* b) { return a->flat_begin < b->flat_begin; });
  }

  absl::StatusOr<const std::byte*> Read(int64_t begin, int64_t nbytes, std::byte* scratch) const {
    const Interval wanted = {begin / size_, (begin + nbytes) / size_};
    int64_t done = wanted.begin;
    for (auto it = FirstAfter(wanted.begin); it != tensors_.end() && (*it)->flat_begin < wanted.end; ++it) {
      const TreeFile::TensorPart& tensor = **it;
      const Interval here = {tensor.flat_begin, tensor.flat_begin + tensor.interval.size()};
      const Interval part = Intersect(here, wanted);
      const int64_t shift = tensor.interval.begin - tensor.flat_begin;
      std::byte* const to = scratch + (part.begin - wanted.begin) * size_;
      FSDP_ASSIGN_OR_RETURN(const std::byte* from, tensor.read({part.begin + shift, part.end + shift}, to));
      if (part == wanted) return from;
      std::memset(scratch + (done - wanted.begin) * size_, 0, (part.begin - done) * size_);
      if (from != to) std::memcpy(to, from, part.size() * size_);
      done = part.end;
    }
    std::memset(scratch + (done - wanted.begin) * size_, 0, (wanted.end - done) * size_);
    return scratch;
  }

 private:
  std::vector<const TreeFile::TensorPart*>::const_iterator FirstAfter(int64_t begin) const {
    return std::partition_point(tensors_.begin(), tensors_.end(), [&](const TreeFile::TensorPart* tensor) {
      return tensor->flat_begin + tensor->interval.size() <= begin;
    });
  }

  const int64_t size_;
  std::vector<const TreeFile::TensorPart*> tensors_;  // by flat_begin
};

std::vector<PayloadExtent> ExtentsOf(const TreeFile& tree, const TreeLayout& layout) {
  std::vector<PayloadExtent> extents;
  size_t next = 0;
  for (const TreeFile::TensorPart& tensor : tree.tensors) {
    if (!HasOwnDataset(tree, tensor)) continue;
    const ByteRange range = layout.tensors[next++];
    if (range.nbytes == 0 || tree.is_shared) continue;
    const int64_t size = SizeOf(tensor.dtype);
    extents.push_back({range, [&tensor, size](int64_t begin, int64_t nbytes, std::byte* scratch) {
                         const int64_t first = tensor.interval.begin + begin / size;
                         return tensor.read({first, first + nbytes / size}, scratch);
                       }});
  }
  for (size_t i = 0; i < tree.flats.size(); ++i) {
    extents.push_back({layout.flats[i], FlatBlockReader(tree, static_cast<int>(i))});
  }
  for (size_t i = 0; i < tree.texts.size(); ++i) {
    // A text without bytes has a dataset of one: the string's own NUL.
    const std::string& text = tree.texts[i].text;
    extents.push_back({layout.texts[i], [&text](int64_t begin, int64_t, std::byte*) {
                         return absl::StatusOr<const std::byte*>(reinterpret_cast<const std::byte*>(text.c_str()) +
                                                                 begin);
                       }});
  }
  return extents;
}

// Writes the record of `part` in its place and adds its extent.
absl::Status WriteRecord(File& file, Manifest& part) {
  StoredFile& stored = part.files[0];
  const ByteRange range = *stored.record;
  const std::string text = EncodeRecord(part, range.nbytes);
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
  FSDP_RETURN_IF_ERROR(file.Write(range.offset, bytes));
  StoredExtent extent = {range, {}};
  for (int64_t at = 0; at < range.nbytes; at += kBlockBytes) {
    extent.digests.push_back(DigestOf(bytes.subspan(at, kBlockBytes)));
  }
  const auto after =
      std::upper_bound(stored.extents.begin(), stored.extents.end(), range.offset,
                       [](int64_t offset, const StoredExtent& other) { return offset < other.range.offset; });
  stored.extents.insert(after, std::move(extent));
  return absl::OkStatus();
}

}  // namespace

BlockReader FlatBlockReader(const TreeFile& tree, int flat) {
  const auto reader = std::make_shared<const FlatReader>(tree, flat);
  return [reader](int64_t begin, int64_t nbytes, std::byte* scratch) { return reader->Read(begin, nbytes, scratch); };
}

absl::StatusOr<LaidOutFile> LaidOutFile::Create(const TreeFile& tree, const Manifest& identity) {
  const int64_t record_bytes = tree.has_record ? RecordBytes(tree, identity) : 0;
  absl::StatusOr<TreeLayout> layout = LayOutTree(ContentsOf(tree, record_bytes));
  if (layout.ok()) return LaidOutFile(tree, identity, *std::move(layout));
  return Annotate(layout.status(), tree.name);
}

Manifest LaidOutFile::Describe() const {
  Manifest part = DescribeTree(*tree_, identity_, &layout_);
  part.files[0].name = tree_->name;
  part.files[0].nbytes = layout_.nbytes;
  std::sort(part.files[0].extents.begin(), part.files[0].extents.end(),
            [](const StoredExtent& a, const StoredExtent& b) { return a.range.offset < b.range.offset; });
  return part;
}

absl::StatusOr<Manifest> LaidOutFile::Write(FileSystem& files, const std::string& directory, ThreadPool& pool,
                                            const PayloadWriteOptions& write) const {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(JoinPath(directory, tree_->name)));
  PayloadWriteOptions options = write;
  if (layout_.record) options.later.push_back(*layout_.record);
  if (tree_->is_shared) {
    std::copy_if(layout_.tensors.begin(), layout_.tensors.end(), std::back_inserter(options.later),
                 [](const ByteRange& range) { return range.nbytes > 0; });
  }
  FSDP_ASSIGN_OR_RETURN(StoredFile stored,
                        WritePayload(*file, layout_.image, layout_.nbytes, ExtentsOf(*tree_, layout_), pool, options));
  stored.record = layout_.record;
  stored.name = tree_->name;
  Manifest part = DescribeTree(*tree_, identity_, &layout_);
  part.files[0] = std::move(stored);
  if (tree_->has_record) FSDP_RETURN_IF_ERROR(WriteRecord(*file, part));
  FSDP_RETURN_IF_ERROR(file->Sync());
  return part;
}

absl::StatusOr<Manifest> WriteTreeFile(FileSystem& files, const std::string& directory, const TreeFile& tree,
                                       const Manifest& identity, ThreadPool& pool, const PayloadWriteOptions& write) {
  FSDP_ASSIGN_OR_RETURN(const LaidOutFile file, LaidOutFile::Create(tree, identity));
  return file.Write(files, directory, pool, write);
}

}  // namespace fsdp
