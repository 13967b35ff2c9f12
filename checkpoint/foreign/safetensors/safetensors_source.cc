// SPDX-License-Identifier: Apache-2.0
//
// A directory is the union of its files: opening the source reads and checks all headers, and puts every tensor of the
// directory into one table of (file, entry). The file reads payload later. An index and the files must agree in both
// directions: a single replaced file, or one left over from another model, would otherwise appear as a tensor that is
// missing or has the wrong values. All files stay open, which is fine for a model's few dozen.
#include "fsdp/checkpoint/foreign/safetensors/safetensors_source.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_file.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_shards.h"
#include "fsdp/checkpoint/source/adapter_config.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/rank_file_names.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/step_counter.h"
#include "fsdp/checkpoint/source/tied_head.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

using SafetensorsFiles = std::vector<std::unique_ptr<SafetensorsFile>>;

// PEFT's.
constexpr char kAdapterName[] = "adapter_model.safetensors";

class SafetensorsSource final : public TensorSource {
 public:
  // Adds the files in order; no two may hold a tensor of the same name. If several files have metadata of one name, the
  // first file's is used.
  static absl::StatusOr<std::unique_ptr<TensorSource>> Create(const std::string& path, SafetensorsFiles files) {
    std::unique_ptr<SafetensorsSource> source(new SafetensorsSource(path));
    size_t tensors = 0;
    for (const std::unique_ptr<SafetensorsFile>& file : files) tensors += file->header().entries.size();
    source->places_.reserve(tensors);
    source->contents_.Reserve(tensors);
    for (const std::unique_ptr<SafetensorsFile>& file : files) {
      FSDP_RETURN_IF_ERROR(source->Add(*file));
    }
    // The files move, but not the headers that places_ points to: they are behind unique_ptrs.
    source->files_ = std::move(files);
    SafetensorsFacts facts = FactsOf(path, source->files_);
    source->step_ = facts.step;
    source->contents_.aliases.insert(facts.aliases.begin(), facts.aliases.end());
    source->layout_.notes = std::move(facts.notes);
    return source;
  }

  const FormatTraits& traits() const override { return SafetensorsTraits(); }
  const StateDict& contents() const override { return contents_; }
  const SourceLayout& layout() const override { return layout_; }
  int64_t step() const override { return step_; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    for (const std::unique_ptr<SafetensorsFile>& file : files_) paths.push_back(file->path());
    return paths;
  }

  std::vector<std::string> left_out() const override { return SafetensorsBeside(path_, files_); }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const Place place, Find(key));
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, place.entry->shape.numel()));
    return place.file->Read(*place.entry, interval, out);
  }

  // Every tensor is contiguous and in one file, so it has one place.
  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const Place place, Find(key));
    const auto& [file, entry] = place;
    Box whole = {std::vector<int64_t>(entry->shape.rank(), 0),
                 {entry->shape.dims().begin(), entry->shape.dims().end()}};
    return std::vector<TensorPlace>{{file->path(), file->payload_offset() + entry->begin, std::move(whole)}};
  }

 private:
  struct Place {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };

  explicit SafetensorsSource(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<Place> Find(const StateKey& key) const {
    const std::optional<size_t> index = contents_.IndexOf(key);
    if (index) return places_[*index];
    return absl::NotFoundError(absl::StrCat(Quote(key.ToString()), " is not in ", files_.front()->path()));
  }

  absl::Status Add(const SafetensorsFile& file) {
    for (const auto& [name, text] : file.header().metadata) {
      if (name != kDcpShardingInfo) metadata_.try_emplace(name, text);  // it describes files, not the model
    }
    for (const SafetensorsEntry& entry : file.header().entries) {
      ShardedTensor tensor;
      tensor.dtype = entry.dtype;
      tensor.shape = entry.shape;
      contents_.Set(StateKey::Model(entry.name), std::move(tensor));
      if (contents_.entries().size() == places_.size()) {
        const Place other = places_[*contents_.IndexOf(StateKey::Model(entry.name))];
        return absl::DataLossError(
            absl::StrCat("tensor ", Quote(entry.name), " is in two files: ", other.file->path(), " and ", file.path()));
      }
      places_.push_back({&file, &entry});
    }
    return absl::OkStatus();
  }

  const std::string path_;
  SafetensorsFiles files_;
  StateDict contents_;
  std::vector<Place> places_;  // by entry of contents_; entries of the headers of files_
  SourceLayout layout_;
  int64_t step_ = -1;
  std::map<std::string, std::string> metadata_;
};

// The entries of __metadata__ that name a tensor for a name that is not a tensor's.
std::map<std::string, std::string> AliasesOf(const SafetensorsFiles& files) {
  std::map<std::string, std::string> aliases;
  for (const std::unique_ptr<SafetensorsFile>& file : files) {
    aliases.insert(file->header().metadata.begin(), file->header().metadata.end());
  }
  aliases.erase("format");  // "pt"
  if (aliases.empty()) return aliases;
  absl::flat_hash_set<absl::string_view> names;
  for (const std::unique_ptr<SafetensorsFile>& file : files) {
    for (const SafetensorsEntry& entry : file->header().entries) names.insert(entry.name);
  }
  for (auto at = aliases.begin(); at != aliases.end();) {
    const bool is_alias = names.contains(at->second) && !names.contains(at->first);
    at = is_alias ? std::next(at) : aliases.erase(at);
  }
  return aliases;
}

// Checks that every tensor of the index is in the file that the index names, and that the index has every tensor of the
// files.
absl::Status CheckIndex(const HuggingFaceIndex& index, const std::string& index_path, const SafetensorsFiles& files) {
  std::map<std::string, std::set<std::string_view>> held;  // by file name
  for (const std::unique_ptr<SafetensorsFile>& file : files) {
    std::set<std::string_view>& names = held[std::filesystem::path(file->path()).filename()];
    for (const SafetensorsEntry& entry : file->header().entries) {
      names.insert(entry.name);
      if (index.weight_map.count(entry.name) != 0) continue;
      return absl::DataLossError(absl::StrCat("tensor ", Quote(entry.name), " of ", file->path(),
                                              " is missing in the weight_map of ", index_path));
    }
  }
  for (const auto& [name, file] : index.weight_map) {
    if (held[file].count(name) != 0) continue;
    return absl::DataLossError(absl::StrCat("tensor ", Quote(name), " is missing in ", Quote(file),
                                            ", in which the weight_map of ", index_path, " places it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> IsRegularFile(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const std::filesystem::file_type type, TypeOfTarget(path));
  return type == std::filesystem::file_type::regular;
}

// The name of the index in `directory`: transformers' name, else the only one like it, such as diffusers'
// diffusion_pytorch_model.safetensors.index.json. Empty if there is no index, or several.
absl::StatusOr<std::string> IndexIn(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const bool has_usual, IsRegularFile(JoinPath(directory, kHuggingFaceIndexName)));
  if (has_usual) return std::string(kHuggingFaceIndexName);
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(directory));
  std::string found;
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, ".safetensors.index.json")) continue;
    if (!found.empty()) return std::string();
    found = name;
  }
  return found;
}

absl::Status MissingPart(const HuggingFaceIndex& index, const std::string& index_path, const std::string& path,
                         const std::string& file) {
  const auto tensors = std::count_if(index.weight_map.begin(), index.weight_map.end(),
                                     [&](const auto& place) { return place.second == file; });
  return absl::NotFoundError(absl::StrCat(path, " is missing, in which ", index_path, " places ", tensors,
                                          tensors == 1 ? " tensor" : " tensors",
                                          ": its download or copy did not finish, or it has another name; get it"));
}

// Opens each file that the index names once, in the order of their names.
absl::StatusOr<SafetensorsFiles> OpenIndexed(const std::filesystem::path& directory) {
  FSDP_ASSIGN_OR_RETURN(const std::string name, IndexIn(directory));
  const std::string index_path = directory / (name.empty() ? kHuggingFaceIndexName : name);
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), index_path, kMaxHuggingFaceIndexBytes));
  absl::StatusOr<HuggingFaceIndex> index = ParseHuggingFaceIndex(text);
  if (!index.ok()) FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(index_path));
  if (!index.ok())
    return absl::Status(index.status().code(), absl::StrCat(index.status().message(), " in ", index_path));
  std::set<std::string> names;
  for (const auto& [tensor, file] : index->weight_map) names.insert(file);
  SafetensorsFiles files;
  for (const std::string& file : names) {
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> opened = SafetensorsFile::Open(directory / file);
    if (absl::IsNotFound(opened.status())) return MissingPart(*index, index_path, directory / file, file);
    FSDP_RETURN_IF_ERROR(opened.status());
    files.push_back(*std::move(opened));
  }
  // Read uses files_.front() in its errors, so a source has at least one file.
  if (files.empty()) return absl::DataLossError(absl::StrCat("weight_map names no tensor in ", index_path));
  FSDP_RETURN_IF_ERROR(CheckIndex(*index, index_path, files));
  return files;
}

// A file by HuggingFaceStorageWriter, without an index that says that it is whole, may hold one rank's rows.
absl::Status CheckIsWhole(const SafetensorsFile& file) {
  const auto at = file.header().metadata.find(kDcpShardingInfo);
  const std::string name = std::filesystem::path(file.path()).filename();
  if (at == file.header().metadata.end() || absl::StartsWith(name, "model-")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), " is one rank's part of a model by HuggingFaceStorageWriter (", kDcpShardingInfo,
                   "): give a directory of the parts of all ranks, under their names, "
                   "shard-00001-model-00001-of-00001.safetensors"));
}

}  // namespace

absl::StatusOr<bool> IsHuggingFaceDirectory(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const bool is_one_file, IsRegularFile(JoinPath(directory, kHuggingFaceModelName)));
  if (is_one_file) return true;
  FSDP_ASSIGN_OR_RETURN(const std::string index, IndexIn(directory));
  if (!index.empty()) return true;
  FSDP_ASSIGN_OR_RETURN(const bool is_adapter, IsAdapter(directory, kAdapterName));
  return is_adapter ? true : IsSafetensorsShardDirectory(directory);
}

absl::StatusOr<SafetensorsFiles> OpenSafetensorsFiles(const std::string& path) {
  std::string file_path = path;
  FSDP_ASSIGN_OR_RETURN(const std::filesystem::file_type type, TypeOfTarget(path));
  if (type == std::filesystem::file_type::directory) {
    file_path = JoinPath(path, kHuggingFaceModelName);
    FSDP_ASSIGN_OR_RETURN(const bool is_one_file, IsRegularFile(file_path));
    if (!is_one_file) {
      FSDP_ASSIGN_OR_RETURN(const std::string index, IndexIn(path));
      FSDP_ASSIGN_OR_RETURN(const bool is_adapter, IsAdapter(path, kAdapterName));
      if (!index.empty() || !is_adapter) return OpenIndexed(path);
      file_path = JoinPath(path, kAdapterName);
    }
  }
  SafetensorsFiles files;
  FSDP_ASSIGN_OR_RETURN(files.emplace_back(), SafetensorsFile::Open(file_path));
  FSDP_RETURN_IF_ERROR(CheckIsWhole(*files[0]));
  return files;
}

absl::StatusOr<bool> IsOfShards(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const std::filesystem::file_type type, TypeOfTarget(path));
  if (type != std::filesystem::file_type::directory) return false;
  FSDP_ASSIGN_OR_RETURN(const bool is_one_file, IsRegularFile(JoinPath(path, kHuggingFaceModelName)));
  FSDP_ASSIGN_OR_RETURN(const std::string index, IndexIn(path));
  FSDP_ASSIGN_OR_RETURN(const bool is_adapter, IsAdapter(path, kAdapterName));
  return is_one_file || !index.empty() || is_adapter ? false : IsSafetensorsShardDirectory(path);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenSafetensorsSource(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const bool is_of_shards, IsOfShards(path));
  if (is_of_shards) return OpenSafetensorsShards(path);
  FSDP_ASSIGN_OR_RETURN(SafetensorsFiles files, OpenSafetensorsFiles(path));
  return SafetensorsSource::Create(path, std::move(files));
}

SafetensorsFacts FactsOf(const std::string& path, const SafetensorsFiles& files) {
  SafetensorsFacts facts;
  TrainerState trainer = ReadTrainerState(path);
  facts.step = trainer.step;
  facts.aliases = AliasesOf(files);
  std::error_code ignored;
  const bool is_directory = std::filesystem::is_directory(path, ignored);
  TiedHead head = is_directory ? TiedHead::Of(path) : TiedHead();
  for (const std::unique_ptr<SafetensorsFile>& file : files) {
    for (const SafetensorsEntry& entry : file->header().entries) head.Add(entry.name);
  }
  for (const auto& [alias, name] : facts.aliases) head.Add(alias);
  facts.tied = head.names();
  const std::string& file = files.front()->path();
  for (std::string note : {std::move(trainer.note), IsAdapterFile(file) ? AdapterNote(file) : "",
                           is_directory ? "" : PartNote(path), head.note()}) {
    if (!note.empty()) facts.notes.push_back(std::move(note));
  }
  return facts;
}

std::vector<std::string> SafetensorsBeside(const std::string& path, const SafetensorsFiles& files) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return {};
  std::vector<std::string> paths;
  for (const std::unique_ptr<SafetensorsFile>& file : files) paths.push_back(file->path());
  return WeightsBeside(path, paths);
}

const FormatTraits& SafetensorsTraits() {
  static const auto* traits = new FormatTraits{.name = "safetensors",
                                               .headline = "a model in safetensors",
                                               .in_directory = "model.safetensors or an index of several",
                                               .file = "a safetensors file",
                                               .suffixes = {".safetensors"},
                                               .model_file = kHuggingFaceModelName,
                                               .model_only = true,
                                               .keeps_metadata = true,
                                               .is_plain = true};
  return *traits;
}

}  // namespace fsdp
