// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/flax/flax_source.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/flax/flax_tree.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_names.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/step_counter.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

constexpr size_t kMaxFiles = 512;  // all stay open

// A file of the checkpoint, and its tree. The trees of all files together are the model.
struct FlaxFile {
  std::unique_ptr<File> file;
  FlaxTree tree;
};

class FlaxSource final : public TensorSource {
 public:
  // `given`: what was given to the reader; a file, or a directory.
  FlaxSource(std::string given, std::vector<FlaxFile> files, std::string index)
      : given_(std::move(given)), files_(std::move(files)), index_(std::move(index)) {}

  absl::Status ReadContents(const TensorSourceOptions& options) {
    std::vector<OrbaxArrayName> names;
    for (const FlaxFile& file : files_) {
      for (const FlaxArray& array : file.tree.arrays) names.push_back({array.name, array.shape});
      for (const FlaxValue& value : file.tree.values) names.push_back({value.name, Shape()});
    }
    absl::StatusOr<OrbaxNames> named = NameOrbaxArrays(names, {});
    if (!named.ok()) return Annotate(named.status(), path());
    layout_ = std::move(named->layout);
    FSDP_RETURN_IF_ERROR(ReadStep(named->counters));
    const absl::Status added = AddLeaves(named->keys);
    if (!added.ok()) return Annotate(added, path());
    for (const FlaxFile& file : files_) DescribeRest(file.tree);
    return CheckLeftOut(options);
  }

  const FormatTraits& traits() const override { return FlaxTraits(); }
  const StateDict& contents() const override { return contents_; }
  const SourceLayout& layout() const override { return layout_; }
  int64_t step() const override { return step_; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> all = left_out_;
    for (std::string& beside : WeightsBesideGiven(given_, files())) all.push_back(std::move(beside));
    return all;
  }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    if (!index_.empty()) paths.push_back(index_);
    for (const FlaxFile& file : files_) paths.push_back(file.file->path());
    return paths;
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const Place place, Find(key));
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, place.array->shape.numel()));
    absl::Status status = ReadPieces(place, interval, static_cast<std::byte*>(out));
    if (status.ok() && place.array->narrow) {
      status = WidenIntegers(*place.array->narrow, interval, static_cast<std::byte*>(out));
    }
    if (status.ok() && place.array->dtype == DType::kBool) status = CheckBoolBytes(out, interval);
    return status.ok() ? status : Annotate(status, absl::StrCat(Describe(key), " of ", place.file->path()));
  }

  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const Place place, Find(key));
    const FlaxArray& array = *place.array;
    if (array.narrow) return absl::UnimplementedError("its elements are stored in another dtype");
    if (array.pieces.size() != 1) {
      return absl::UnimplementedError(absl::StrCat("it is in ", array.pieces.size(), " chunks"));
    }
    Box whole = {std::vector<int64_t>(array.shape.rank(), 0), {array.shape.dims().begin(), array.shape.dims().end()}};
    return std::vector<TensorPlace>{{place.file->path(), array.pieces[0].offset, std::move(whole)}};
  }

 private:
  struct Place {
    const File* file = nullptr;
    const FlaxArray* array = nullptr;
  };

  const std::string& path() const { return index_.empty() ? files_[0].file->path() : index_; }

  absl::StatusOr<Place> Find(const StateKey& key) const {
    const auto at = places_.find(key);
    if (at != places_.end()) return at->second;
    return absl::NotFoundError(absl::StrCat(path(), " holds no ", Describe(key)));
  }

  static absl::Status ReadPieces(const Place& place, const Interval& interval, std::byte* out) {
    const int64_t size = SizeOf(place.array->dtype);
    int64_t begin = 0;  // of a piece, in bytes of the array
    for (const ByteRange& piece : place.array->pieces) {
      const int64_t from = std::max(interval.begin * size, begin);
      const int64_t to = std::min(interval.end * size, begin + piece.nbytes);
      if (from < to) {
        std::byte* const at = out + (from - interval.begin * size);
        FSDP_RETURN_IF_ERROR(place.file->Read(piece.offset + (from - begin), absl::MakeSpan(at, to - from)));
      }
      begin += piece.nbytes;
    }
    return absl::OkStatus();
  }

  // `keys`: of all arrays and values of the first file, then of the next.
  absl::Status AddLeaves(const std::vector<StateKey>& keys) {
    size_t next = 0;
    for (const FlaxFile& file : files_) {
      for (const FlaxArray& array : file.tree.arrays) {
        const StateKey& key = keys[next++];
        ShardedTensor tensor;
        tensor.dtype = array.dtype;
        tensor.shape = array.shape;
        FSDP_RETURN_IF_ERROR(Add(key, std::move(tensor)));
        places_[key] = {file.file.get(), &array};
      }
      for (const FlaxValue& value : file.tree.values) {
        const StateKey& key = keys[next++];
        const bool is_of_model = key.section == StateKey::Section::kModel;
        FSDP_RETURN_IF_ERROR(Add(is_of_model ? ModelValue(key.fqn) : StateKey::Extra(value.name), value.json));
      }
    }
    return absl::OkStatus();
  }

  template <typename Value>
  absl::Status Add(const StateKey& key, Value value) {
    FSDP_RETURN_IF_ERROR(CheckStateKey(key));
    if (contents_.contains(key)) {
      return absl::DataLossError(absl::StrCat("two values have the name ", Quote(key.ToString())));
    }
    contents_.Set(key, std::move(value));
    return absl::OkStatus();
  }

  // The first counter that is a number of steps. `counters` are places among all arrays and values.
  absl::Status ReadStep(const std::vector<size_t>& counters) {
    for (const size_t counter : counters) {
      FSDP_ASSIGN_OR_RETURN(const std::optional<int64_t> step, StepOf(counter));
      if (!step) continue;
      step_ = *step;
      layout_.notes.push_back(absl::StrCat("step ", step_, " is ", Quote(NameOf(counter))));
      return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  // The leaf at this place among all of them: an array or a value.
  std::pair<Place, const FlaxValue*> Leaf(size_t number) const {
    for (const FlaxFile& file : files_) {
      const size_t arrays = file.tree.arrays.size();
      if (number < arrays) return {{file.file.get(), &file.tree.arrays[number]}, nullptr};
      number -= arrays;
      if (number < file.tree.values.size()) return {{}, &file.tree.values[number]};
      number -= file.tree.values.size();
    }
    return {};
  }

  std::string NameOf(size_t number) const {
    const auto [place, value] = Leaf(number);
    return value != nullptr ? value->name : place.array->name;
  }

  absl::StatusOr<std::optional<int64_t>> StepOf(size_t number) const {
    const auto [place, value] = Leaf(number);
    if (value != nullptr) return value->integer;
    std::byte bytes[16] = {};
    const absl::Status status = ReadPieces(place, {0, 1}, bytes);
    if (!status.ok()) return Annotate(status, place.file->path());
    double counted = -1;
    if (!Convert(place.array->dtype, bytes, DType::kFloat64, &counted, 1).ok()) return std::optional<int64_t>();
    return StepOfNumber(counted);
  }

  void DescribeRest(const FlaxTree& tree) {
    left_out_.insert(left_out_.end(), tree.left_out.begin(), tree.left_out.end());
    const int64_t more = tree.left_out_count - std::ssize(tree.left_out);
    if (more > 0) left_out_.push_back(absl::StrCat(more, " more"));
    if (tree.empty_count == 0) return;
    layout_.notes.push_back(absl::StrCat(
        tree.empty_count, tree.empty_count == 1 ? " branch is empty: " : " branches are empty: ", SomeOf(tree.empty)));
  }

  absl::Status CheckLeftOut(const TensorSourceOptions& options) const {
    if (places_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path(), " has no arrays of Flax: it is empty, or MessagePack of another program"));
    }
    if (left_out_.empty() || options.skip_links) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(path(),
                                                   ": these would be left out: ", absl::StrJoin(left_out_, ", "),
                                                   "; set TensorSourceOptions::skip_links to go without them"));
  }

  const std::string given_;
  const std::vector<FlaxFile> files_;
  const std::string index_;  // the path of the index of several files; empty without one
  std::map<StateKey, Place> places_;
  StateDict contents_;
  SourceLayout layout_;
  const std::map<std::string, std::string> metadata_;
  std::vector<std::string> left_out_;
  int64_t step_ = -1;
};

absl::StatusOr<FlaxFile> ReadFile(std::unique_ptr<File> file) {
  absl::StatusOr<FlaxTree> tree = ReadFlaxTree(*file);
  if (!tree.ok()) {
    FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(*file));
    return Annotate(tree.status(), file->path());
  }
  return FlaxFile{std::move(file), *std::move(tree)};
}

absl::StatusOr<std::unique_ptr<TensorSource>> SourceOf(const std::string& given, std::vector<FlaxFile> files,
                                                       std::string index, const TensorSourceOptions& options) {
  auto source = std::make_unique<FlaxSource>(given, std::move(files), std::move(index));
  FSDP_RETURN_IF_ERROR(source->ReadContents(options));
  return source;
}

// The leaves of each file must be those that the index has for it. transformers joins keys by slashes.
absl::Status CheckIndex(const HuggingFaceIndex& index, const std::vector<FlaxFile>& files) {
  std::map<std::string, std::string> expected;
  for (const auto& [name, file] : index.weight_map) expected[absl::StrReplaceAll(name, {{"/", "."}})] = file;
  for (const FlaxFile& file : files) {
    const std::string name = SplitPath(file.file->path()).name;
    for (const FlaxArray& array : file.tree.arrays) {
      const auto at = expected.find(array.name);
      if (at == expected.end() || at->second != name) {
        return absl::DataLossError(
            absl::StrCat(Quote(array.name), " is in ", name, ", where the index does not have it"));
      }
      expected.erase(at);
    }
  }
  for (const FlaxFile& file : files) {
    if (file.tree.left_out_count > 0) return absl::OkStatus();  // some of the names are these
  }
  if (expected.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(Quote(expected.begin()->first), " is not in ", expected.begin()->second,
                                          ", where the index has it"));
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenIndexed(const std::string& path, const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::string text, fsdp::ReadFile(PosixFileSystem(), path, kMaxHuggingFaceIndexBytes));
  absl::StatusOr<HuggingFaceIndex> index = ParseHuggingFaceIndex(text);
  if (!index.ok()) return ErrorOfText(Annotate(index.status(), path), path, text);
  std::set<std::string> names;
  for (const auto& [name, file] : index->weight_map) names.insert(file);
  if (names.empty() || names.size() > kMaxFiles) {
    return absl::InvalidArgumentError(absl::StrCat(path, " names ", names.size(), " files, expected 1 to ", kMaxFiles));
  }
  std::vector<FlaxFile> files;
  for (const std::string& name : names) {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                          PosixFileSystem().Open(JoinPath(SplitPath(path).directory, name)));
    FSDP_ASSIGN_OR_RETURN(files.emplace_back(), ReadFile(std::move(file)));
  }
  const absl::Status status = CheckIndex(*index, files);
  if (!status.ok()) return Annotate(status, path);
  return SourceOf(SplitPath(path).directory, std::move(files), path, options);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenOne(const std::string& given, std::unique_ptr<File> file,
                                                      const TensorSourceOptions& options) {
  std::vector<FlaxFile> files;
  FSDP_ASSIGN_OR_RETURN(files.emplace_back(), ReadFile(std::move(file)));
  return SourceOf(given, std::move(files), "", options);
}

// "flax_model-00001-of-00002.msgpack" next to the index is a part.
absl::Status CheckIsWhole(const std::string& path) {
  const auto [directory, name] = SplitPath(path);
  if (name.find("-of-") == name.npos || !PosixFileSystem().Exists(JoinPath(directory, kFlaxIndexName))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is one of several files of a model: give their directory, ", directory));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenFlaxSource(const std::string& path,
                                                             const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const std::filesystem::file_type type, TypeOfTarget(path));
  std::string file_path = path;
  if (type == std::filesystem::file_type::directory) {
    file_path = JoinPath(path, kFlaxModelName);
    FSDP_ASSIGN_OR_RETURN(const bool is_whole, IsThere(file_path));
    if (!is_whole) return OpenIndexed(JoinPath(path, kFlaxIndexName), options);
  }
  FSDP_RETURN_IF_ERROR(CheckIsWhole(file_path));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, PosixFileSystem().Open(file_path));
  return OpenOne(path, std::move(file), options);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenFlaxFile(std::unique_ptr<File> file,
                                                           const TensorSourceOptions& options) {
  const std::string path = file->path();
  return OpenOne(path, std::move(file), options);
}

const FormatTraits& FlaxTraits() {
  static const auto* traits = new FormatTraits{.name = "flax",
                                               .headline = "a Flax checkpoint (MessagePack)",
                                               .in_directory = "flax_model.msgpack",
                                               .file = "a Flax .msgpack file",
                                               .suffixes = {".msgpack"}};
  return *traits;
}

}  // namespace fsdp
