// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/keras/keras_source.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/keras/keras_files.h"
#include "fsdp/checkpoint/foreign/keras/keras_names.h"
#include "fsdp/checkpoint/foreign/keras/keras_optimizer.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/source/tensor_views.h"

namespace fsdp {
namespace {

constexpr size_t kMaxConfigText = size_t{1} << 20;  // of an extra value

class KerasSource final : public TensorSource, public CoveringChecksums {
 public:
  KerasSource(std::string path, KerasFiles files) : path_(std::move(path)), files_(std::move(files)) {}

  absl::Status ReadContents(const TensorSourceOptions& options) {
    const KerasNames names = NamesOfKeras(files_.listing);
    left_out_ = std::move(files_.left_out);
    for (const KerasVariable& variable : names.model) {
      FSDP_RETURN_IF_ERROR(Add(StateKey::Model(variable.name), variable.dataset));
    }
    if (!options.model_only) FSDP_RETURN_IF_ERROR(AddOptimizer(names));
    const bool has_config = !files_.config.empty() && files_.config.size() <= kMaxConfigText;
    if (has_config && CheckUtf8(files_.config, "config.json").ok()) {
      contents_.Set(StateKey::Extra("config.json"), files_.config);
    }
    FSDP_RETURN_IF_ERROR(CheckLeftOut(options));
    files_.listing = {};
    files_.config.clear();
    return absl::OkStatus();
  }

  const FormatTraits& traits() const override { return KerasTraits(); }
  const StateDict& contents() const override { return contents_; }
  const SourceLayout& layout() const override { return layout_; }
  int64_t step() const override { return step_; }
  int world_size() const override { return 1; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::vector<std::string> left_out() const override { return left_out_; }
  bool has_checksums() const override { return !files_.checksums->empty(); }
  const CoveringChecksums* covering_checksums() const override { return this; }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    if (!files_.index.empty()) paths.push_back(files_.index);
    for (const KerasFiles::Part& part : files_.parts) paths.push_back(part.file->path());
    return paths;
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const Value* const value, Find(key));
    const ShardedTensor& tensor = *contents_.FindTensor(key);
    FSDP_RETURN_IF_ERROR(CheckElements(key, interval, tensor.shape.numel()));
    const int64_t size = SizeOf(tensor.dtype);
    const File& file = *files_.parts[value->part].file;
    absl::Status status = file.Read(value->offset + interval.begin * size,
                                    absl::MakeSpan(static_cast<std::byte*>(out), interval.size() * size));
    if (status.ok() && tensor.dtype == DType::kBool) status = CheckBoolBytes(out, interval);
    return status.ok() ? status : Annotate(status, absl::StrCat(Describe(key), " of ", file.path()));
  }

  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const Value* const value, Find(key));
    const absl::Span<const int64_t> dims = contents_.FindTensor(key)->shape.dims();
    Box whole = {std::vector<int64_t>(dims.size(), 0), {dims.begin(), dims.end()}};
    return std::vector<TensorPlace>{{files_.parts[value->part].file->path(), value->offset, std::move(whole)}};
  }

  absl::Status VerifyRest() const override {
    if (files_.checksums->empty()) return absl::OkStatus();
    const absl::Status status = ReadForChecksums(*files_.parts[0].file, files_.checksums->Missing());
    return status.ok() ? status : Annotate(status, path_);
  }

 private:
  // The place of a dataset's values.
  struct Value {
    int part = 0;
    int64_t offset = 0;  // in the file
  };

  absl::StatusOr<const Value*> Find(const StateKey& key) const {
    const auto at = values_.find(key);
    if (at != values_.end()) return &at->second;
    return absl::NotFoundError(absl::StrCat(path_, " holds no ", Describe(key)));
  }

  // A dataset that cannot be a tensor is left out, by name.
  absl::Status Add(const StateKey& key, size_t number) {
    const Hdf5Dataset& dataset = files_.listing.datasets[number];
    const bool is_tensor = !dataset.type.empty() && dataset.type != "text";
    if (!dataset.layout.empty() || !is_tensor) {
      left_out_.push_back(absl::StrCat(Quote(dataset.path), " (",
                                       dataset.layout.empty()
                                           ? "its type is none of a tensor"
                                           : absl::StrCat("it is ", dataset.layout, ", expected contiguous values"),
                                       ")"));
      return absl::OkStatus();
    }
    FSDP_RETURN_IF_ERROR(CheckStateKey(key));
    if (contents_.contains(key)) {
      return absl::DataLossError(absl::StrCat(path_, ": ", Quote(key.ToString()), " occurs twice"));
    }
    ShardedTensor tensor;
    FSDP_ASSIGN_OR_RETURN(tensor.dtype, ParseDType(dataset.type));
    FSDP_ASSIGN_OR_RETURN(tensor.shape, Shape::Create(dataset.dims));
    const int part = files_.part_of[number];
    values_[key] = {part, files_.parts[part].begin + dataset.offset};
    contents_.Set(key, std::move(tensor));
    return absl::OkStatus();
  }

  // Iteration and learning rate are the first two variables of every optimizer and need no config; the rest does.
  absl::Status AddOptimizer(const KerasNames& names) {
    const std::string prefix = names.optimizer_name.empty() ? "optimizer" : names.optimizer_name;
    std::vector<bool> is_added(files_.listing.datasets.size(), false);
    constexpr const char* kScalars[] = {"iteration", "learning_rate"};
    for (size_t i = 0; i < names.optimizer.size() && i < 2; ++i) {
      if (!files_.listing.datasets[names.optimizer[i]].dims.empty()) break;
      FSDP_RETURN_IF_ERROR(Add(StateKey::Extra(absl::StrCat(prefix, "/", kScalars[i])), names.optimizer[i]));
      is_added[names.optimizer[i]] = true;
    }
    FSDP_RETURN_IF_ERROR(ReadStep(StateKey::Extra(absl::StrCat(prefix, "/iteration"))));
    if (names.optimizer.size() > 2) {
      absl::StatusOr<std::vector<KerasSlot>> slots =
          absl::InvalidArgumentError("the order of the variables is in .keras archives only");
      if (!files_.config.empty()) slots = SlotsOfKeras(files_.config, files_.listing, names);
      if (!slots.ok() && absl::IsDataLoss(slots.status()))
        return Annotate(slots.status(), absl::StrCat(path_, ": config.json"));
      for (const KerasSlot& slot : slots.ok() ? *slots : std::vector<KerasSlot>()) {
        FSDP_RETURN_IF_ERROR(Add(StateKey::OptimState(slot.variable, slot.slot), slot.dataset));
        is_added[slot.dataset] = true;
      }
      if (!slots.ok()) {
        layout_.notes.push_back(absl::StrCat("the optimizer's variables became extra values, by their numbers: ",
                                             std::string(slots.status().message())));
      }
    }
    std::vector<size_t> others = names.others;
    others.insert(others.end(), names.optimizer.begin(), names.optimizer.end());
    for (const size_t dataset : others) {
      if (is_added[dataset]) continue;
      FSDP_RETURN_IF_ERROR(Add(StateKey::Extra(KerasPath(files_.listing.datasets[dataset])), dataset));
    }
    return absl::OkStatus();
  }

  absl::Status ReadStep(const StateKey& key) {
    const ShardedTensor* const tensor = contents_.FindTensor(key);
    if (tensor == nullptr || (tensor->dtype != DType::kInt64 && tensor->dtype != DType::kInt32))
      return absl::OkStatus();
    int64_t value = 0;  // little-endian, so an int32 that is not negative fills its first half
    FSDP_RETURN_IF_ERROR(Read(key, {0, 1}, &value));
    const bool is_negative = tensor->dtype == DType::kInt32 && value > INT32_MAX;
    if (value >= 0 && !is_negative) step_ = value;
    return absl::OkStatus();
  }

  // Nothing is left out without a word: by default such a file is refused, with the names.
  absl::Status CheckLeftOut(const TensorSourceOptions& options) const {
    if (contents_.empty()) return absl::InvalidArgumentError(absl::StrCat(path_, " has no variables of Keras"));
    if (left_out_.empty() || options.skip_links) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(path_, ": these would be left out: ", absl::StrJoin(left_out_, ", "),
                                                   "; set TensorSourceOptions::skip_links to go without them"));
  }

  const std::string path_;
  KerasFiles files_;
  StateDict contents_;
  std::map<StateKey, Value> values_;
  SourceLayout layout_;
  std::vector<std::string> left_out_;
  const std::map<std::string, std::string> metadata_ = {};
  int64_t step_ = -1;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenKerasSource(const std::string& path,
                                                              const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(KerasFiles files, OpenKerasFiles(path, options));
  auto source = std::make_unique<KerasSource>(path, std::move(files));
  FSDP_RETURN_IF_ERROR(source->ReadContents(options));
  return source;
}

const FormatTraits& KerasTraits() {
  static const auto* traits =
      new FormatTraits{.name = "keras", .headline = "weights of Keras", .in_directory = {}, .file = "a file of Keras"};
  return *traits;
}

}  // namespace fsdp
