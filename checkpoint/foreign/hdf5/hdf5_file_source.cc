// SPDX-License-Identifier: Apache-2.0
//
// Turns the listing of an untrusted file into a manifest, after which it is like any other source. The file's claims
// are not trusted: CheckHdf5Listing has bounded every place by the file's size, KeyOf accepts only the one spelling of
// a path that we would have written, and texts are bounded and must be UTF-8.
#include "fsdp/checkpoint/foreign/hdf5/hdf5_file_source.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/hdf5/confined_hdf5.h"
#include "fsdp/checkpoint/source/byte_total.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/nearby_reads.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr char kStatePrefix[] = "/optim/state/";

// The inverse of EscapeLinkName.
std::string UnescapeLinkName(const std::string& link) {
  return absl::StrReplaceAll(link, {{"%25", "%"}, {"%2F", "/"}, {"%2E", "."}});
}

// The key whose dataset has the path `path`; nullopt if there is no such key.
std::optional<StateKey> KeyOf(const std::string& path) {
  const auto name_after = [&](size_t at) { return UnescapeLinkName(path.substr(at)); };
  StateKey key;
  if (path == "/optim/param_groups") {
    key = StateKey::ParamGroups();
  } else if (absl::StartsWith(path, "/model/")) {
    key = StateKey::Model(name_after(7));
  } else if (absl::StartsWith(path, "/extra/")) {
    key = StateKey::Extra(name_after(7));
  } else if (absl::StartsWith(path, kStatePrefix)) {
    const size_t begin = sizeof(kStatePrefix) - 1;
    const size_t slash = path.find('/', begin);
    if (slash == path.npos) return std::nullopt;
    key = StateKey::OptimState(UnescapeLinkName(path.substr(begin, slash - begin)), name_after(slash + 1));
  } else {
    return std::nullopt;
  }
  // Every key has exactly one path. A path with more groups, or with a name escaped in another way, is refused;
  // otherwise two datasets could have one key.
  if (!CheckStateKey(key).ok() || DatasetPath(key) != path) return std::nullopt;
  return key;
}

absl::Status Refuse(const std::string& path, const Hdf5Dataset& dataset, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ", dataset ", Quote(dataset.path), ": ", why));
}

absl::Status AddDataset(const std::string& path, const Hdf5Dataset& dataset, SourceDescription& description) {
  // First the mistakes that users make, each with its remedy; then the general refusal.
  if (absl::StartsWith(dataset.path, "/fsdp/")) {
    return Refuse(path, dataset, "this is a rank file; give the checkpoint directory that holds it");
  }
  if (dataset.layout == "virtual") {
    return Refuse(path, dataset, "its values are in rank files; give the checkpoint directory that holds them");
  }
  if (absl::StartsWith(dataset.layout, kHdf5InAnotherFile)) {
    return Refuse(path, dataset,
                  absl::StrCat("this is a view, as `ckpt view` makes it, of ",
                               Quote(dataset.layout.substr(std::strlen(kHdf5InAnotherFile))),
                               ", which has its values; give the checkpoint of that file"));
  }
  const std::optional<StateKey> key = KeyOf(dataset.path);
  if (!key) return Refuse(path, dataset, "expected /model/NAME, /optim/state/NAME/STATE or /extra/NAME");
  // Only contiguous values can be read with pread.
  if (!dataset.layout.empty()) {
    return Refuse(path, dataset, absl::StrCat("it is ", dataset.layout, ", expected contiguous values"));
  }
  if (dataset.type == "text") {
    if (!dataset.dims.empty()) return Refuse(path, dataset, "expected one text");
    description.texts.push_back({*key, 0, {dataset.offset, dataset.nbytes}});
    return absl::OkStatus();
  }
  if (dataset.type.empty()) return Refuse(path, dataset, "its type does not occur in checkpoints");
  if (key->section == StateKey::Section::kParamGroups) return Refuse(path, dataset, "expected a text");
  StoredTensor& tensor = description.tensors.emplace_back();
  tensor.key = *key;
  FSDP_ASSIGN_OR_RETURN(tensor.dtype, ParseDType(dataset.type));
  FSDP_ASSIGN_OR_RETURN(tensor.shape, Shape::Create(dataset.dims));
  // One interval suffices: CheckHdf5Listing has proven that the dataset's bytes are inside the file.
  tensor.intervals = {{{0, tensor.shape.numel()}, 0, dataset.offset}};
  return absl::OkStatus();
}

// Each further hard link is an alias of the name that its dataset has as the attribute "fqn", or else of the first in
// the order of names.
absl::Status AddAliases(const std::string& path, const Hdf5Listing& listing, SourceDescription& description) {
  std::map<std::string, std::string> fqns;  // of the datasets that have further links
  for (const Hdf5Alias& alias : listing.aliases) fqns.try_emplace(alias.target);
  for (const Hdf5Dataset& dataset : listing.datasets) {
    if (const auto at = fqns.find(dataset.path); at != fqns.end()) at->second = dataset.fqn;
  }
  std::map<StateKey, std::vector<std::string>> names;  // of models' tensors that have several
  for (const Hdf5Alias& alias : listing.aliases) {
    const std::optional<StateKey> key = KeyOf(alias.path);
    const std::optional<StateKey> target = KeyOf(alias.target);
    if (!key || !target || key->section != StateKey::Section::kModel) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ", link ", Quote(alias.path), ": expected /model/NAME for a tied tensor"));
    }
    names[*target].push_back(key->fqn);
  }
  for (StoredTensor& tensor : description.tensors) {
    const auto found = names.find(tensor.key);
    if (found == names.end()) continue;
    tensor.aliases = found->second;
    // The name that the writer gave first.
    const std::string& fqn = fqns[DatasetPath(tensor.key)];
    const auto first = std::find(tensor.aliases.begin(), tensor.aliases.end(), fqn);
    if (first != tensor.aliases.end()) std::swap(*first, tensor.key.fqn);
    std::sort(tensor.aliases.begin(), tensor.aliases.end());
    names.erase(found);
  }
  if (names.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": a link names ", Quote(names.begin()->second[0]), " and ",
                                          Quote(names.begin()->first.fqn), ", which is no dataset"));
}

// The step and the other facts among the attributes of the root group.
void TakeAttributes(RunMetadata attributes, SourceDescription& description) {
  const auto step = attributes.find("step");
  if (step != attributes.end()) {
    const auto* const number = std::get_if<int64_t>(&step->second);
    if (number != nullptr && *number >= 0) description.step = *number;
    attributes.erase(step);
  }
  for (const char* own : {"format", "producer", "warning"}) attributes.erase(own);
  description.attributes = std::move(attributes);
}

class Hdf5FileSource final : public TensorSource {
 public:
  Hdf5FileSource(std::string path, std::unique_ptr<File> file) : path_(std::move(path)), file_(std::move(file)) {}

  absl::Status Add(const SourceDescription& description) {
    left_out_ = description.left_out;
    step_ = description.step;
    contents_.attributes = description.attributes;
    for (const StoredTensor& tensor : description.tensors) {
      ShardedTensor described;
      described.dtype = tensor.dtype;
      described.shape = tensor.shape;
      contents_.Set(tensor.key, std::move(described));
      offsets_[tensor.key] = tensor.intervals[0].offset;
      for (const std::string& alias : tensor.aliases) contents_.aliases[alias] = tensor.key.fqn;
    }
    for (const StoredText& text : description.texts) {
      // Before the allocation: the size is the file's claim.
      if (text.range.nbytes > kMaxTextBytes) {
        return absl::DataLossError(absl::StrCat(path_, ": text ", Quote(text.key.ToString()), " has ",
                                                text.range.nbytes, " bytes, more than ", kMaxTextBytes));
      }
      std::string value(text.range.nbytes, '\0');
      FSDP_RETURN_IF_ERROR(
          file_->Read(text.range.offset, absl::MakeSpan(reinterpret_cast<std::byte*>(value.data()), value.size())));
      value.resize(value.find_last_not_of('\0') + 1);  // the padding of a string of fixed length
      FSDP_RETURN_IF_ERROR(CheckUtf8(value, absl::StrCat(path_, ": text ", Quote(text.key.ToString()))));
      contents_.Set(text.key, std::move(value));
    }
    return absl::OkStatus();
  }

  const FormatTraits& traits() const override { return Hdf5FileTraits(); }
  const StateDict& contents() const override { return contents_; }
  int64_t step() const override { return step_; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::vector<std::string> files() const override { return {path_}; }
  std::vector<std::string> left_out() const override { return left_out_; }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    const auto offset = offsets_.find(key);
    if (offset == offsets_.end()) return absl::NotFoundError(absl::StrCat(path_, " holds no ", Describe(key)));
    const ShardedTensor& tensor = *contents_.FindTensor(key);
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, tensor.shape.numel()));
    const int64_t size = SizeOf(tensor.dtype);
    const auto bytes = absl::MakeSpan(static_cast<std::byte*>(out), interval.size() * size);
    FSDP_RETURN_IF_ERROR(file_->Read(offset->second + interval.begin * size, bytes));
    // A byte other than 0 or 1 would be undefined behaviour as a C++ bool.
    if (tensor.dtype != DType::kBool) return absl::OkStatus();
    const auto wrong = std::find_if(bytes.begin(), bytes.end(), [](std::byte value) { return value > std::byte{1}; });
    if (wrong == bytes.end()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(path_, ", ", Describe(key), ": element ",
                                            interval.begin + (wrong - bytes.begin()), " is ", static_cast<int>(*wrong),
                                            ", expected 0 or 1"));
  }

 private:
  const std::string path_;
  const std::unique_ptr<File> file_;
  StateDict contents_;
  // In the file; inside it for every element, because CheckHdf5Listing has checked each dataset's bytes.
  std::map<StateKey, int64_t> offsets_;
  const std::map<std::string, std::string> metadata_;
  std::vector<std::string> left_out_;
  int64_t step_ = -1;
};

// One line for each link or object, and one with the number of those that the listing only counts.
std::vector<std::string> LeftOutOf(const Hdf5Listing& listing) {
  std::vector<std::string> lines;
  for (const Hdf5LeftOut& left_out : listing.left_out) lines.push_back(Describe(left_out));
  const int64_t more = listing.left_out_count - static_cast<int64_t>(listing.left_out.size());
  if (more > 0) lines.push_back(absl::StrCat(more, " more"));
  return lines;
}

// OK when nothing is left out, or when options.skip_links allows it and something remains.
absl::Status CheckLeftOut(const std::string& path, const SourceDescription& description,
                          const TensorSourceOptions& options) {
  if (description.left_out.empty()) return absl::OkStatus();
  const bool is_empty = description.tensors.empty() && description.texts.empty();
  if (options.skip_links && !is_empty) return absl::OkStatus();
  const std::string rest = is_empty ? "there is nothing else in it: put the datasets themselves into the file"
                                    : "put the datasets themselves in their places, or set "
                                      "TensorSourceOptions::skip_links to go without them";
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": only datasets are read, and links are not followed, so these ",
                   "would be left out: ", absl::StrJoin(description.left_out, ", "), "; ", rest));
}

}  // namespace

absl::StatusOr<SourceDescription> DescribeHdf5File(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const Hdf5Listing listing, ListUntrustedHdf5(path));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, PosixFileSystem().Open(path));
  SourceDescription description;
  description.left_out = LeftOutOf(listing);
  description.files.emplace_back().name = SplitPath(path).name;
  FSDP_ASSIGN_OR_RETURN(description.files[0].nbytes, file->Size());
  for (const Hdf5Dataset& dataset : listing.datasets) FSDP_RETURN_IF_ERROR(AddDataset(path, dataset, description));
  ByteTotal total;
  for (const StoredTensor& tensor : description.tensors) {
    const absl::Status fits = total.Add(tensor.key, tensor.dtype, tensor.shape);
    if (!fits.ok()) return Annotate(fits, path);
  }
  FSDP_RETURN_IF_ERROR(AddAliases(path, listing, description));
  TakeAttributes(listing.attributes, description);
  return description;
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenHdf5FileSource(const std::string& path,
                                                                 const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const SourceDescription description, DescribeHdf5File(path));
  FSDP_RETURN_IF_ERROR(CheckLeftOut(path, description, options));
  // The child parsed its own descriptor. If the file was replaced since, reads stay inside its checked size or fail.
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, PosixFileSystem().Open(path));
  auto source = std::make_unique<Hdf5FileSource>(path, std::make_unique<NearbyReads>(std::move(file)));
  FSDP_RETURN_IF_ERROR(source->Add(description));
  return source;
}

const FormatTraits& Hdf5FileTraits() {
  static const auto* traits = new FormatTraits{.name = "hdf5 file",
                                               .headline = "an HDF5 file without a manifest, so without digests",
                                               .in_directory = {},
                                               .file = "an HDF5 file",
                                               .is_hdf5 = true};
  return *traits;
}

}  // namespace fsdp
