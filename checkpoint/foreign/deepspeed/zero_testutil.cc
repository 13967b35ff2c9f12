// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/zero_testutil.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"
#include "fsdp/checkpoint/foreign/torch/state/literal_tensor.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"
#include "fsdp/checkpoint/source/zero_payload_testutil.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

int64_t NumelOf(const std::vector<int64_t>& dims) {
  int64_t numel = 1;
  for (const int64_t dim : dims) numel *= dim;
  return numel;
}

PythonJson OrderedDict(const PythonJson& pairs) { return {{kPythonTag, "OrderedDict"}, {"items", pairs}}; }

// A flat tensor of zeros that WriteTorchValue writes without having them in memory.
PythonJson ZeroTensor(int64_t numel) { return {{kPythonTag, kReferenceTag}, {"name", absl::StrCat(numel)}}; }

PythonJson ByNumber(const std::vector<PythonJson>& values) {
  PythonJson pairs = PythonJson::array();
  for (const PythonJson& value : values) pairs.push_back(PythonJson::array({pairs.size(), value}));
  return {{kPythonTag, "dict"}, {"items", pairs}};
}

}  // namespace

void WriteTorchValue(const std::string& path, const PythonJson& value) {
  const StateKey zeros = StateKey::Model("zeros");
  std::vector<TorchStorageSource> storages;
  PickleWriter pickle;
  pickle.write_tensor = [&](const LiteralTensor& tensor) {
    EncodeTorchTensor(pickle, absl::StrCat(storages.size()), tensor.dtype, tensor.shape);
    storages.push_back(
        {.elements = tensor.bytes, .interval = {0, tensor.shape.numel()}, .element_size = SizeOf(tensor.dtype)});
  };
  pickle.write_reference = [&](const std::string& numel) {
    const Shape shape = {std::stoll(numel)};
    EncodeTorchTensor(pickle, absl::StrCat(storages.size()), DType::kFloat32, shape);
    storages.push_back({.elements = &zeros, .interval = {0, shape.numel()}, .element_size = sizeof(float)});
  };
  pickle.Python(value);
  std::vector<TorchArchivePlan> archives;
  archives.emplace_back(0, std::move(pickle).Finish(), std::move(storages));
  std::filesystem::remove(path);
  ASSERT_OK_AND_ASSIGN(const auto file, PosixFileSystem().Create(path));
  ASSERT_OK(WriteTorchArchives(*file, archives, ZeroPayload(), {}));
}

PythonJson FloatTensor(const std::vector<float>& values, const std::vector<int64_t>& dims) {
  std::string bytes(values.size() * sizeof(float), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return JsonOfTensor({DType::kFloat32, *Shape::Create(dims), std::move(bytes)});
}

PythonJson TorchSize(const std::vector<int64_t>& dims) {
  PythonJson sizes = {{kPythonTag, "tuple"}, {"items", PythonJson::array()}};
  for (const int64_t dim : dims) sizes["items"].push_back(dim);
  return {{kPythonTag, "call"}, {"name", "torch.Size"}, {"items", PythonJson::array({sizes})}};
}

ZeroCheckpoint::ZeroCheckpoint(int zero_stage, int ranks, std::vector<std::vector<TestParameter>> parameters)
    : stage(zero_stage), world(ranks), groups(std::move(parameters)) {
  for (int rank = 0; rank < (stage == 3 ? world : 1); ++rank) model.push_back(Model());
  for (int rank = 0; rank < world; ++rank) optim.push_back(Optim(rank));
}

std::string ZeroCheckpoint::ModelName(int rank) const {
  return stage == 3 ? absl::StrCat("zero_pp_rank_", rank, "_mp_rank_00_model_states.pt") : "mp_rank_00_model_states.pt";
}

std::string ZeroCheckpoint::OptimName(int rank) const {
  return absl::StrCat("zero_pp_rank_", rank, "_mp_rank_00_optim_states.pt");
}

void ZeroCheckpoint::Write(const std::string& directory) const {
  std::filesystem::create_directories(directory);
  for (int rank = 0; rank < static_cast<int>(model.size()); ++rank) {
    WriteTorchValue(directory + "/" + ModelName(rank), model[rank]);
  }
  for (int rank = 0; rank < static_cast<int>(optim.size()); ++rank) {
    WriteTorchValue(directory + "/" + OptimName(rank), optim[rank]);
  }
}

std::vector<float> ZeroCheckpoint::Elements(int p) const {
  int number = 0;
  for (const auto& group : groups) {
    for (const auto& [name, dims] : group) {
      if (number++ != p) continue;
      std::vector<float> elements(NumelOf(dims));
      for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(100 * p) + static_cast<float>(i);
      return elements;
    }
  }
  return {};
}

std::vector<float> ZeroCheckpoint::Part(int group, int rank, float added, bool is_padded) const {
  int first = 0;
  for (int g = 0; g < group; ++g) first += static_cast<int>(groups[g].size());
  std::vector<float> part;
  std::vector<float> whole;
  for (int i = 0; i < static_cast<int>(groups[group].size()); ++i) {
    std::vector<float> elements = Elements(first + i);
    for (float& element : elements) element += added;
    whole.insert(whole.end(), elements.begin(), elements.end());
    const size_t piece = (elements.size() + world - 1) / world;
    elements.resize(piece * world, -1);
    part.insert(part.end(), elements.begin() + rank * piece, elements.begin() + (rank + 1) * piece);
  }
  if (stage == 3) return part;
  const size_t numel = whole.size();
  const size_t align = 2 * world;
  whole.resize((numel + align - 1) / align * align, -1);
  const size_t size = whole.size() / world;
  const size_t begin = rank * size;
  const size_t end = is_padded ? begin + size : std::max(begin, std::min(numel, begin + size));
  return {whole.begin() + begin, whole.begin() + end};
}

PythonJson ZeroCheckpoint::Model() const {
  PythonJson module = PythonJson::array();
  PythonJson shapes = PythonJson::array();
  int p = 0;
  for (const auto& group : groups) {
    PythonJson own = PythonJson::array();
    for (const auto& [name, dims] : group) {
      own.push_back(PythonJson::array({name, TorchSize(dims)}));
      const std::vector<float> elements = stage == 3 ? std::vector<float>() : Elements(p);
      module.push_back(PythonJson::array({name, FloatTensor(elements, stage == 3 ? std::vector<int64_t>{0} : dims)}));
      ++p;
    }
    shapes.push_back(OrderedDict(own));
  }
  return {{"module", OrderedDict(module)},
          {"buffer_names", PythonJson::array()},
          {"optimizer", nullptr},
          {"param_shapes", shapes},
          {"frozen_param_shapes", nullptr},
          {"shared_params", PythonJson::object()},
          {"frozen_param_fragments", nullptr},
          {"global_steps", 3},
          {"dp_world_size", world},
          {"mp_world_size", 1},
          {"ds_version", "0.19.8"},
          {"note", "of the program"}};
}

PythonJson ZeroCheckpoint::Optim(int rank) const {
  PythonJson fp32 = PythonJson::array();
  std::vector<PythonJson> states;
  PythonJson param_groups = PythonJson::array();
  PythonJson counts = PythonJson::array();
  for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
    const std::vector<float> part = Part(g, rank, 0, false);
    const std::vector<float> state = Part(g, rank, 0.5F, true);
    fp32.push_back(FloatTensor(part, {static_cast<int64_t>(part.size())}));
    states.push_back(
        {{"step", FloatTensor({3}, {})}, {"exp_avg", FloatTensor(state, {static_cast<int64_t>(state.size())})}});
    param_groups.push_back({{"lr", 0.5}, {"params", PythonJson::array({g})}});
    counts.push_back(world);
  }
  const PythonJson stage_enum = {{kPythonTag, "call"},
                                 {"name", "deepspeed.runtime.zero.config.ZeroStageEnum"},
                                 {"items", PythonJson::array({stage})}};
  const PythonJson optimizer = {{"state", ByNumber(states)}, {"param_groups", param_groups}};
  PythonJson zero = {{"zero_stage", stage_enum}, {"overflow", false}};
  if (stage == 3) {
    zero["partition_count"] = world;
    zero["fp32_flat_groups"] = fp32;
    zero["optimizer_state_dict"] = optimizer;
  } else {
    zero["partition_count"] = counts;
    zero["single_partition_of_fp32_groups"] = fp32;
    zero["base_optimizer_state"] = optimizer;
  }
  return {{"optimizer_state_dict", zero}, {"ds_version", "0.19.8"}};
}

// Every rank's part of every parameter is as long, so one value is the file of all ranks.
void WriteSparseZero3(const std::string& directory, int ranks, int parameters, int64_t numel) {
  std::vector<TestParameter> group;
  for (int i = 0; i < parameters; ++i) group.push_back({absl::StrCat("layers.", i, ".weight"), {1}});
  ZeroCheckpoint zero(3, 1, {group});
  PythonJson& model = zero.model[0];
  model["dp_world_size"] = ranks;
  for (PythonJson& named : model["param_shapes"][0]["items"]) named[1] = TorchSize({numel});
  PythonJson& optimizer = zero.optim[0]["optimizer_state_dict"];
  const PythonJson part = ZeroTensor((numel + ranks - 1) / ranks * parameters);
  optimizer["partition_count"] = ranks;
  optimizer["fp32_flat_groups"][0] = part;
  PythonJson& state = optimizer["optimizer_state_dict"]["state"]["items"][0][1];
  state["exp_avg"] = state["exp_avg_sq"] = part;
  std::filesystem::create_directories(directory);
  const std::string whole = directory + "/whole";
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& [name, value] :
         {std::pair(zero.ModelName(rank), &model), {zero.OptimName(rank), &zero.optim[0]}}) {
      WriteTorchValue(whole, *value);
      ASSERT_EQ(std::system(absl::StrCat("cp --sparse=always ", whole, " ", directory, "/", name).c_str()), 0);
    }
  }
  std::filesystem::remove(whole);
}

}  // namespace fsdp
