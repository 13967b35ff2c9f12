// SPDX-License-Identifier: Apache-2.0
//
// Formats place tensors as boxes (TensorPlace); people and the JSON of `ckpt inspect` need intervals of elements. A box
// of whole rows is one interval. A box that cuts rows is one interval for each run of elements that are adjacent in the
// tensor. Let `whole` be the first dimension such that the box spans this dimension and every later one: a run then has
// count[whole - 1] times the product of the later dimensions, and there is one run for each index into the dimensions
// before whole - 1.
#include "fsdp/checkpoint/source/source_description.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

namespace fsdp {
namespace {

// The index of a file that is named by its path; files.size() if it is not among them.
int FileIndex(const std::string& path, const std::vector<DescribedFile>& files) {
  const std::string name = std::filesystem::path(path).filename();
  const auto at =
      std::find_if(files.begin(), files.end(), [&](const DescribedFile& file) { return file.name == name; });
  return static_cast<int>(at - files.begin());
}

// Adds the file that is named by its path, if it is new.
void AddFile(const std::string& path, std::vector<DescribedFile>& files) {
  if (FileIndex(path, files) < static_cast<int>(files.size())) return;
  std::error_code ignored;
  DescribedFile& file = files.emplace_back();
  file.name = std::filesystem::path(path).filename();
  file.nbytes = static_cast<int64_t>(std::filesystem::file_size(path, ignored));
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
  for (const auto& [key, value] : source->contents().entries()) {
    if (const auto* text = std::get_if<std::string>(&value)) {
      description.texts.push_back({key, 0, {0, static_cast<int64_t>(text->size())}});
      continue;
    }
    const absl::StatusOr<std::vector<TensorPlace>> places = source->Places(key);
    if (!places.ok() || std::get<ShardedTensor>(value).shape.numel() == 0) continue;
    for (const TensorPlace& place : *places) AddFile(place.file, description.files);
  }
  description.source = std::move(source);
  return description;
}

void DescribeTensors(const TensorSource& source, const std::vector<DescribedFile>& files,
                     const std::function<void(const StoredTensor& tensor, int64_t stored_bytes)>& use) {
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
      for (const TensorPlace& place : *places) AddPlace(place, FileIndex(place.file, files), tensor);
    }
    std::sort(tensor.intervals.begin(), tensor.intervals.end(),
              [](const StoredInterval& a, const StoredInterval& b) { return a.interval.begin < b.interval.begin; });
    use(tensor, StoredBytes(source, key, *described));
  }
}

}  // namespace fsdp
