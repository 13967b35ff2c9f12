// SPDX-License-Identifier: Apache-2.0
//
// Opening joins the headers of all files: tensor -> its parts, each a box of the tensor and an entry of a file. A read
// is a few boxes (BoxesOf), each intersected with the boxes of the parts. Parts cover a tensor exactly once, which
// opening has proven, so every element is read once.
#include "fsdp/checkpoint/foreign/safetensors/safetensors_shards.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_file.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_source.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/step_counter.h"
#include "fsdp/checkpoint/source/strided_read.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/box.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// Sorted, which is the order of ranks.
absl::StatusOr<std::set<std::string>> ShardNamesIn(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> listed, PosixFileSystem().List(directory));
  std::set<std::string> names;
  for (const std::string& name : listed) {
    if (IsSafetensorsShardName(name)) names.insert(name);
  }
  return names;
}

struct Part {
  const SafetensorsFile* file = nullptr;
  const SafetensorsEntry* entry = nullptr;
  std::vector<int64_t> start;

  int64_t end(size_t d) const { return start[d] + entry->shape.dims()[d]; }
};

// The elements of the tensor that are in both; nullopt if no element is.
std::optional<std::vector<Interval>> Common(const Part& part, const std::vector<int64_t>& start,
                                            const std::vector<int64_t>& count) {
  std::vector<Interval> common;
  for (size_t d = 0; d < start.size(); ++d) {
    common.push_back(Intersect({start[d], start[d] + count[d]}, {part.start[d], part.end(d)}));
    if (common.back().empty()) return std::nullopt;
  }
  return common;
}

// Every file's header says where its parts begin in the whole tensors (saved_offsets), and nothing says how large these
// are: the shape is the end of the farthest part, and the parts must then fill it exactly once.
class ShardsSource final : public TensorSource {
 public:
  explicit ShardsSource(std::string path) : path_(std::move(path)) {}

  // All headers are read first; tensors are made when every part is known.
  absl::Status Open() {
    FSDP_ASSIGN_OR_RETURN(const std::set<std::string> names, ShardNamesIn(path_));
    std::set<std::string> ranks;
    for (const std::string& name : names) {
      ranks.insert(name.substr(0, name.find("-model-")));
      FSDP_ASSIGN_OR_RETURN(files_.emplace_back(), SafetensorsFile::Open(fs::path(path_) / name));
      const absl::Status added = Add(*files_.back());
      if (!added.ok()) return Annotate(added, files_.back()->path());
    }
    for (size_t i = 0; i < names_.size(); ++i) FSDP_RETURN_IF_ERROR(AddTensor(names_[i], parts_[i]));
    world_size_ = static_cast<int>(ranks.size());
    layout_.notes.push_back(
        absl::StrCat("put together from the parts of ", ranks.size(), ranks.size() == 1 ? " rank" : " ranks",
                     "; no file has the number of ranks, so compare the shapes if files may be lost"));
    TrainerState trainer = ReadTrainerState(path_);
    step_ = trainer.step;
    if (!trainer.note.empty()) layout_.notes.push_back(std::move(trainer.note));
    return absl::OkStatus();
  }

  const FormatTraits& traits() const override { return SafetensorsTraits(); }
  const StateDict& contents() const override { return contents_; }
  const SourceLayout& layout() const override { return layout_; }
  int64_t step() const override { return step_; }
  int world_size() const override { return world_size_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    for (const std::unique_ptr<SafetensorsFile>& file : files_) paths.push_back(file->path());
    return paths;
  }

  std::vector<std::string> left_out() const override { return WeightsBeside(path_, files()); }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const std::vector<Part>* const parts, Find(key));
    const ShardedTensor& tensor = *contents_.FindTensor(key);
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, tensor.shape.numel()));
    for (const Box& box : BoxesOf(tensor.shape, interval)) {
      for (const Part& part : *parts) {
        FSDP_RETURN_IF_ERROR(ReadPart(part, tensor, box, interval.begin, static_cast<std::byte*>(out)));
      }
    }
    if (tensor.dtype != DType::kBool) return absl::OkStatus();
    return Annotate(CheckBoolBytes(out, interval), absl::StrCat("tensor ", Quote(key.ToString()), " of ", path_));
  }

  // Every part is contiguous.
  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const std::vector<Part>* const parts, Find(key));
    std::vector<TensorPlace> places;
    for (const Part& part : *parts) {
      Box box = {part.start, {part.entry->shape.dims().begin(), part.entry->shape.dims().end()}};
      places.push_back({part.file->path(), part.file->payload_offset() + part.entry->begin, std::move(box)});
    }
    return places;
  }

 private:
  // A tensor without a place, or a place without a number for each dimension, would be a part of nothing.
  absl::Status Add(const SafetensorsFile& file) {
    const auto info = file.header().metadata.find(kDcpShardingInfo);
    if (info == file.header().metadata.end()) {
      return absl::DataLossError(absl::StrCat("it has the name of a rank's part, and no ", kDcpShardingInfo));
    }
    FSDP_ASSIGN_OR_RETURN(const JsonView json, JsonView::Parse(info->second));
    absl::flat_hash_map<std::string, JsonView> places;
    for (auto& [name, place] : json.members()) places.emplace(std::move(name), place);
    for (const SafetensorsEntry& entry : file.header().entries) {
      const auto at = places.find(entry.name);
      if (at == places.end()) {
        return absl::DataLossError(absl::StrCat(kDcpShardingInfo, " lacks tensor ", Quote(entry.name)));
      }
      Part part = {&file, &entry, {}};
      FSDP_ASSIGN_OR_RETURN(part.start, IntegerArrayMember(at->second, "saved_offsets", entry.shape.rank()));
      const auto [number, is_new] = numbers_.try_emplace(entry.name, names_.size());
      if (is_new) {
        names_.push_back(entry.name);
        parts_.emplace_back();
      }
      parts_[number->second].push_back(std::move(part));
    }
    for (const auto& [name, text] : file.header().metadata) {
      if (!absl::StartsWith(name, "DCP_")) metadata_.try_emplace(name, text);  // it describes files, not the model
    }
    return absl::OkStatus();
  }

  absl::Status AddTensor(const std::string& name, std::vector<Part>& parts) {
    const auto broken = [&](const std::string& what) {
      return absl::DataLossError(absl::StrCat("tensor ", Quote(name), " of ", path_, ": ", what));
    };
    const SafetensorsEntry& first = *parts[0].entry;
    std::vector<int64_t> dims(first.shape.rank(), 0);
    for (const Part& part : parts) {
      const bool is_alike = part.entry->dtype == first.dtype && part.start.size() == dims.size() &&
                            part.entry->shape.rank() == first.shape.rank();
      if (!is_alike) return broken(absl::StrCat("dtype or rank of its part in ", part.file->path(), " is another's"));
      for (size_t d = 0; d < dims.size(); ++d) {
        constexpr int64_t kMost = int64_t{1} << 60;
        if (part.start[d] > kMost) return broken(absl::StrCat("a part begins at ", part.start[d]));
        dims[d] = std::max(dims[d], part.end(d));
      }
    }
    FSDP_ASSIGN_OR_RETURN(const Shape shape, Shape::Create(dims));
    if (!CoversOnce(shape, parts)) {
      return broken(absl::StrCat("its ", parts.size(), " parts do not fill ", shape.ToString(),
                                 " exactly once: a file of a rank is missing, or from another save"));
    }
    ShardedTensor tensor;
    tensor.dtype = first.dtype;
    tensor.shape = shape;
    contents_.Set(StateKey::Model(name), std::move(tensor));
    return absl::OkStatus();
  }

  // Disjoint parts with as many elements as the tensor cover it. In the order of the first dimension that is cut, few
  // parts have to be compared.
  static bool CoversOnce(const Shape& shape, std::vector<Part>& parts) {
    int64_t elements = 0;
    for (const Part& part : parts) elements += std::min(part.entry->shape.numel(), shape.numel() + 1 - elements);
    if (elements != shape.numel()) return false;
    parts.erase(std::remove_if(parts.begin(), parts.end(), [](const Part& p) { return p.entry->shape.numel() == 0; }),
                parts.end());
    if (parts.size() < 2) return true;
    size_t cut = 0;
    while (cut + 1 < parts[0].start.size() && std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
             return part.start[cut] == parts[0].start[cut];
           })) {
      ++cut;
    }
    std::sort(parts.begin(), parts.end(), [&](const Part& a, const Part& b) { return a.start[cut] < b.start[cut]; });
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::vector<int64_t> count(parts[i].entry->shape.dims().begin(), parts[i].entry->shape.dims().end());
      for (size_t j = i + 1; j < parts.size() && parts[j].start[cut] < parts[i].end(cut); ++j) {
        if (Common(parts[j], parts[i].start, count)) return false;
      }
    }
    return true;
  }

  absl::StatusOr<const std::vector<Part>*> Find(const StateKey& key) const {
    const auto at = key.section == StateKey::Section::kModel ? numbers_.find(key.fqn) : numbers_.end();
    if (at != numbers_.end()) return &parts_[at->second];
    return absl::NotFoundError(absl::StrCat(Quote(key.ToString()), " is not in ", path_));
  }

  // `out` is element `first` of the tensor.
  static absl::Status ReadPart(const Part& part, const ShardedTensor& tensor, const Box& box, int64_t first,
                               std::byte* out) {
    const std::optional<std::vector<Interval>> common = Common(part, box.start, box.count);
    if (!common) return absl::OkStatus();
    const std::vector<int64_t> from = RowMajorStrides(part.entry->shape);
    const std::vector<int64_t> to = RowMajorStrides(tensor.shape);
    const int64_t size = SizeOf(tensor.dtype);
    StridedBox strided = {part.file->payload_offset() + part.entry->begin, size, {}};
    int64_t begin = -first;  // negative only until the part's own start is added
    for (size_t d = 0; d < common->size(); ++d) {
      const Interval& range = (*common)[d];
      strided.offset += (range.begin - part.start[d]) * from[d] * size;
      begin += range.begin * to[d];
      strided.dims.push_back({range.size(), from[d], to[d]});
    }
    return Annotate(ReadStrided(part.file->file(), std::move(strided), out + begin * size),
                    absl::StrCat("tensor ", Quote(part.entry->name), " of ", part.file->path()));
  }

  const std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::string> names_;
  std::vector<std::vector<Part>> parts_;              // by name
  absl::flat_hash_map<std::string, size_t> numbers_;  // of names
  StateDict contents_;
  SourceLayout layout_;
  int64_t step_ = -1;
  int world_size_ = 1;
  std::map<std::string, std::string> metadata_;
};

}  // namespace

bool IsSafetensorsShardName(std::string_view name) {
  const std::string text(name);
  return absl::StartsWith(text, "shard-") && absl::StrContains(text, "-model-") && absl::EndsWith(text, ".safetensors");
}

absl::StatusOr<bool> IsSafetensorsShardDirectory(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const std::set<std::string> names, ShardNamesIn(directory));
  return !names.empty();
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenSafetensorsShards(const std::string& directory) {
  auto source = std::make_unique<ShardsSource>(directory);
  FSDP_RETURN_IF_ERROR(source->Open());
  return source;
}

}  // namespace fsdp
