// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_source.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_tree.h"
#include "fsdp/checkpoint/foreign/deepspeed/model_states.h"
#include "fsdp/checkpoint/foreign/deepspeed/stored_tensors.h"
#include "fsdp/checkpoint/foreign/deepspeed/trained_states.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/source/weight_files.h"

namespace fsdp {
namespace {

class DeepSpeedSource final : public TensorSource, public TensorViews, public CoveringChecksums {
 public:
  DeepSpeedSource(const DeepSpeedFiles& files, const TensorSourceOptions& options)
      : files_(files), tensors_(files.directory, options) {}

  // The model files say which parameters there are, the optimizer files where their float32 elements are; both become
  // one tree with the form of a torch checkpoint, which the code for those makes a state dict.
  absl::Status ReadContents(const std::string& path, const TensorSourceOptions& options) {
    ModelStates model;
    if (!files_.model.empty()) {
      FSDP_ASSIGN_OR_RETURN(model, ReadModelStates(files_, options, tensors_));
    }
    TrainedStates trained;
    if (files_.is_universal) {
      FSDP_ASSIGN_OR_RETURN(trained, ReadUniversalStates(files_, model, options, tensors_));
    } else if (!model.groups.empty()) {
      FSDP_ASSIGN_OR_RETURN(trained, ReadZeroStates(files_, model, options, tensors_));
    }
    world_size_ = model.world_size;
    const std::optional<int64_t> step = model.step;
    const TorchLeafTypes types = tensors_.types();
    const TorchTensorReader read = [this](int tensor, const Interval& interval, std::byte* out) {
      return tensors_.Read(tensor, interval, out);
    };
    absl::StatusOr<DeepSpeedTree> tree = TreeOfDeepSpeed(std::move(model), std::move(trained), files_, options, types);
    if (!tree.ok()) return Annotate(tree.status(), path);
    absl::StatusOr<TorchState> state = StateOfTree(std::move(tree->root), types,
                                                   {.read = read,
                                                    .model_only = options.model_only,
                                                    .skip_objects = options.model_only || options.skip_links,
                                                    .skip_weights = options.skip_links,
                                                    .map = tree->roles});
    if (!state.ok()) return Annotate(state.status(), path);
    state_ = *std::move(state);
    state_.path = path;
    SetStep(step);
    if (options.map.empty()) {
      // The format says what is what.
      state_.layout.text.clear();
      state_.layout.is_usual = true;
    }
    if (!files_.note.empty()) state_.layout.notes.push_back(files_.note);
    for (std::string& note : tree->notes) state_.layout.notes.push_back(std::move(note));
    for (std::string& left_out : tree->left_out) state_.left_out.push_back(std::move(left_out));
    return absl::OkStatus();
  }

  const FormatTraits& traits() const override { return DeepSpeedTraits(); }
  const StateDict& contents() const override { return state_.contents; }
  const SourceLayout& layout() const override { return state_.layout; }
  int64_t step() const override { return state_.step.value_or(-1); }
  int world_size() const override { return world_size_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  std::vector<std::string> files() const override { return tensors_.files(); }
  bool has_checksums() const override { return tensors_.pool().has_checksums(); }
  const TensorViews* views() const override { return this; }
  const CoveringChecksums* covering_checksums() const override { return this; }

  // A file of the save that was not needed is part of what is read: a copy, or the optimizer.
  std::vector<std::string> left_out() const override {
    std::vector<std::string> own = files();
    own.emplace_back(kDeepSpeedZero3ModelFile);
    for (const auto* names : {&files_.model, &files_.optim}) own.insert(own.end(), names->begin(), names->end());
    std::vector<std::string> left_out = state_.left_out;
    for (std::string& beside : WeightsBesideStep(state_.path, files_.directory, own)) {
      left_out.push_back(std::move(beside));
    }
    return left_out;
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    const TorchTensorReader read = [&](int tensor, const Interval& elements, std::byte* to) {
      return Annotate(tensors_.Read(tensor, elements, to), absl::StrCat("tensor ", Quote(key.ToString())));
    };
    return state_.Read(key, interval, read, static_cast<std::byte*>(out));
  }

  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, state_.FindLeaf(key));
    const TorchTensorPart* const part = leaf->tensor_part();
    if (part == nullptr) return absl::UnimplementedError("it is a number in the pickle, not a tensor");
    return tensors_.Places(part->tensor);
  }

  std::optional<TensorStorage> Storage(const StateKey& key) const override {
    const absl::StatusOr<const TorchLeaf*> leaf = state_.FindLeaf(key);
    const TorchTensorPart* const part = leaf.ok() ? (*leaf)->tensor_part() : nullptr;
    return part == nullptr ? std::nullopt : tensors_.Storage(part->tensor);
  }

  absl::Status ReadDistinct(const StateKey&, const Interval&, void*) const override {
    return absl::UnimplementedError("distinct elements of a view in a checkpoint of DeepSpeed");
  }

  absl::Status VerifyRest() const override { return tensors_.pool().VerifyRest(); }

 private:
  // The engine's own count takes the place of what the program's entries may say.
  void SetStep(std::optional<int64_t> step) {
    if (!step) return;
    std::vector<std::string>& notes = state_.layout.notes;
    const bool is_known = state_.step == step;
    if (!is_known) {
      notes.erase(std::remove_if(notes.begin(), notes.end(),
                                 [](const std::string& note) {
                                   return note.rfind("step ", 0) == 0 || note.rfind("the step is", 0) == 0;
                                 }),
                  notes.end());
      notes.push_back(absl::StrCat("step ", *step, " is \"global_steps\""));
    }
    state_.step = step;
  }

  const DeepSpeedFiles files_;
  StoredTensors tensors_;
  TorchState state_;
  int world_size_ = 1;
  const std::map<std::string, std::string> metadata_ = {};  // not in this format
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenDeepSpeedSource(const std::string& path,
                                                                  const TensorSourceOptions& options) {
  std::string note;
  FSDP_ASSIGN_OR_RETURN(const std::string tag, DeepSpeedTag(path, &note));
  FSDP_ASSIGN_OR_RETURN(DeepSpeedFiles files, ListDeepSpeedFiles(tag));
  files.note = std::move(note);
  auto source = std::make_unique<DeepSpeedSource>(files, options);
  FSDP_RETURN_IF_ERROR(source->ReadContents(path, options));
  return source;
}

const FormatTraits& DeepSpeedTraits() {
  static const auto* traits = new FormatTraits{.name = "deepspeed",
                                               .headline = "a DeepSpeed checkpoint",
                                               .in_directory = "DeepSpeed's latest or model_states.pt files",
                                               .has_writers = true,
                                               .keeps_step = true,
                                               .has_layout = true};
  return *traits;
}

}  // namespace fsdp
