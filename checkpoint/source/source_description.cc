// SPDX-License-Identifier: Apache-2.0
//
// Formats place tensors as boxes (TensorPlace); people and the JSON of `ckpt inspect` need intervals of elements. A box
// of whole rows is one interval. A box that cuts rows is one interval for each run of elements that are adjacent in the
// tensor. Let `whole` be the first dimension such that the box spans this dimension and every later one: a run then has
// count[whole - 1] times the product of the later dimensions, and there is one run for each index into the dimensions
// before whole - 1.
#include "fsdp/checkpoint/source/source_description.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace fsdp {
namespace {

using FileIndexes = absl::flat_hash_map<std::string, int>;  // in DescribedFile, by path

// Adds the file that is named by its path, if it is new.
void AddFile(const std::string& path, FileIndexes& indexes, std::vector<DescribedFile>& files) {
  if (!indexes.emplace(path, static_cast<int>(files.size())).second) return;
  std::error_code ignored;
  DescribedFile& file = files.emplace_back();
  file.path = path;
  file.nbytes = static_cast<int64_t>(std::filesystem::file_size(path, ignored));
}

// Names each file by its path below the deepest directory that holds them all. Two may have one name in two of its
// directories.
void NameFiles(std::vector<DescribedFile>& files) {
  if (files.empty()) return;
  std::filesystem::path common = std::filesystem::path(files[0].path).parent_path();
  for (const DescribedFile& file : files) {
    const std::filesystem::path path = std::filesystem::path(file.path).parent_path();
    const auto differs = std::mismatch(common.begin(), common.end(), path.begin(), path.end()).first;
    std::filesystem::path shared;
    for (auto part = common.begin(); part != differs; ++part) shared /= *part;
    common = std::move(shared);
  }
  for (DescribedFile& file : files) file.name = std::filesystem::path(file.path).lexically_relative(common);
}

// Adds a place as intervals of elements: one for whole rows, more for a box that cuts rows.
void AddPlace(const TensorPlace& place, int file, StoredTensor& tensor) {
  constexpr int64_t kMostRuns = 4096;  // of a tensor; far more than a person can read
  const int rank = tensor.shape.rank();
  int whole = rank;  // dimensions from here on are held whole
  while (whole > 0 && place.box.count[whole - 1] == tensor.shape.dim(whole - 1)) --whole;
  int64_t run = whole > 0 ? place.box.count[whole - 1] : 1;
  for (int d = whole; d < rank; ++d) run *= tensor.shape.dim(d);
  int64_t runs = 1;
  for (int d = 0; d < whole - 1; ++d) runs *= place.box.count[d];
  for (int64_t i = 0; i < std::min(runs, kMostRuns); ++i) {
    int64_t begin = 0;
    int64_t rest = i;
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t index = d < whole - 1 ? rest % place.box.count[d] : 0;
      if (d < whole - 1) rest /= place.box.count[d];
      begin += (place.box.start[d] + index) * stride;
      stride *= tensor.shape.dim(d);
    }
    tensor.intervals.push_back({{begin, begin + run}, file, place.offset + i * run * SizeOf(tensor.dtype)});
  }
}

}  // namespace

SourceDescription DescribeSource(std::shared_ptr<const TensorSource> source) {
  SourceDescription description;
  description.metadata = source->metadata();
  description.left_out = source->left_out();
  description.layout = source->layout();
  description.step = source->step();
  description.world_size = source->world_size();
  description.expansion = ExpansionOf(*source);
  FileIndexes indexes;
  for (const auto& [key, value] : source->contents().entries()) {
    if (const auto* text = std::get_if<std::string>(&value)) {
      description.texts.push_back({key, 0, {0, static_cast<int64_t>(text->size())}});
      continue;
    }
    const absl::StatusOr<std::vector<TensorPlace>> places = source->Places(key);
    if (!places.ok() || std::get<ShardedTensor>(value).shape.numel() == 0) continue;
    for (const TensorPlace& place : *places) AddFile(place.file, indexes, description.files);
  }
  NameFiles(description.files);
  description.source = std::move(source);
  return description;
}

void DescribeTensors(const TensorSource& source, const std::vector<DescribedFile>& files,
                     const std::function<void(const StoredTensor& tensor, int64_t stored_bytes)>& use) {
  FileIndexes indexes;
  for (size_t i = 0; i < files.size(); ++i) indexes[files[i].path] = static_cast<int>(i);
  std::map<std::string_view, std::vector<std::string_view>> aliases;  // by target
  for (const auto& [alias, target] : source.contents().aliases) aliases[target].push_back(alias);
  for (const auto& [key, value] : source.contents().entries()) {
    const auto* const described = std::get_if<ShardedTensor>(&value);
    if (described == nullptr) continue;
    StoredTensor tensor;
    tensor.key = key;
    tensor.dtype = described->dtype;
    tensor.shape = described->shape;
    if (const auto at = aliases.find(key.fqn); at != aliases.end() && key.section == StateKey::Section::kModel) {
      tensor.aliases.assign(at->second.begin(), at->second.end());
    }
    const absl::StatusOr<std::vector<TensorPlace>> places = source.Places(key);
    if (places.ok() && tensor.shape.numel() != 0) {
      for (const TensorPlace& place : *places) AddPlace(place, indexes.at(place.file), tensor);
    }
    std::sort(tensor.intervals.begin(), tensor.intervals.end(),
              [](const StoredInterval& a, const StoredInterval& b) { return a.interval.begin < b.interval.begin; });
    use(tensor, StoredBytes(source, key, *described));
  }
}

}  // namespace fsdp
