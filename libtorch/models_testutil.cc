// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/models_testutil.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/tensor_bridge.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;

// Sizes such as 33 and 5 give ranks shards of unequal size.
// Units of two classes in one Sequential, which calls them itself: no CallUnit is involved.
struct MlpImpl : nn::Module {
  MlpImpl() {
    layers = register_module("layers",
                             nn::Sequential(nn::Linear(16, 33), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({33})),
                                            nn::Linear(33, 16), nn::Tanh(), nn::Linear(16, 5)));
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers{nullptr};
};

// MultiheadAttention passes the weights of its output projection to a function instead of calling the child.
struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t width) {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    attention = register_module("attention", nn::MultiheadAttention(nn::MultiheadAttentionOptions(width, 2)));
    in = register_module("in", nn::Linear(width, 4 * width));
    out = register_module("out", nn::Linear(4 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor n = norm(x);
    const at::Tensor y = x + std::get<0>(attention(n, n, n));
    return y + out(torch::gelu(in(y)));
  }
  nn::LayerNorm norm{nullptr};
  nn::MultiheadAttention attention{nullptr};
  nn::Linear in{nullptr}, out{nullptr};
};
TORCH_MODULE(Block);

// One parameter under two names, and a buffer.
struct TiedTransformerImpl : nn::Module {
  TiedTransformerImpl() {
    embed = register_module("embed", nn::Embedding(11, 12));
    for (int i = 0; i < 3; ++i) blocks->push_back(Block(12));
    register_module("blocks", blocks);
    scale = register_buffer("scale", torch::full({1}, 1.5));
    head = register_parameter("head", embed->weight);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = embed(tokens);
    // As a plain program would: without CallUnit.
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return x.matmul(head.t()) * scale;
  }
  nn::Embedding embed{nullptr};
  nn::ModuleList blocks;
  at::Tensor scale, head;
};

// LibTorch's own encoder, whose layers it clones and calls by their class.
struct EncoderImpl : nn::Module {
  EncoderImpl() {
    nn::TransformerEncoderLayer layer(nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32).dropout(0));
    encoder = register_module("encoder", nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 3)));
  }
  at::Tensor forward(const at::Tensor& x) { return encoder(x); }
  nn::TransformerEncoder encoder{nullptr};
};

// Batch norm has buffers that forward changes: they must stay whole and equal on all ranks with the same rows.
struct ConvNetImpl : nn::Module {
  ConvNetImpl() {
    conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(3, 6, 3).padding(1)));
    norm = register_module("norm", nn::BatchNorm2d(6));
    conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(6, 4, 3).stride(2)));
    fc = register_module("fc", nn::Linear(4 * 3 * 3, 7));
  }
  at::Tensor forward(const at::Tensor& x) { return fc(torch::relu(conv2(torch::relu(norm(conv1(x))))).flatten(1)); }
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Linear fc{nullptr};
};

// oneDNN's LSTM computes gradients in a wider dtype than its weights'.
struct LstmNetImpl : nn::Module {
  LstmNetImpl() {
    lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(8, 12).num_layers(2).batch_first(true)));
    head = register_module("head", nn::Linear(12, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return head(std::get<0>(lstm(x))); }
  nn::LSTM lstm{nullptr};
  nn::Linear head{nullptr};
};

struct ExpertImpl : nn::Module {
  ExpertImpl() {
    up = register_module("up", nn::Linear(8, 16));
    down = register_module("down", nn::Linear(16, 8));
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }
  nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Expert);

// Routes each row to one of six experts; with three rows some experts get no work.
struct MixtureImpl : nn::Module {
  MixtureImpl() {
    gate = register_module("gate", nn::Linear(8, 6));
    for (int i = 0; i < 6; ++i) experts->push_back(Expert());
    register_module("experts", experts);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor weights = torch::softmax(gate(x), -1), choice = weights.argmax(-1);
    at::Tensor y = torch::zeros_like(x);
    for (int64_t e = 0; e < 6; ++e) {
      const at::Tensor rows = (choice == e).nonzero().squeeze(1);
      // Ranks with the same rows skip the same experts, so gathering stays collective.
      if (rows.numel() == 0) continue;
      const at::Tensor out = experts[e]->as<Expert>()->forward(x.index_select(0, rows));
      y = y.index_add(0, rows, out * weights.index_select(0, rows).select(1, e).unsqueeze(1));
    }
    return y;
  }
  nn::Linear gate{nullptr};
  nn::ModuleList experts;
};

// A weight that a custom autograd Function saves.
struct Scale : torch::autograd::Function<Scale> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    ctx->save_for_backward({x, w});
    // autograd saves w itself, so backward reads the storage of the parameter.
    return x * w;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               const torch::autograd::tensor_list& g) {
    const auto saved = ctx->get_saved_variables();
    return {g[0] * saved[1], (g[0] * saved[0]).sum_to_size(saved[1].sizes())};
  }
};

// `unused` never gets a gradient.
struct OddBlockImpl : nn::Module {
  OddBlockImpl() {
    a = register_module("a", nn::Linear(16, 16));
    unused = register_module("unused", nn::Linear(16, 16));
    w = register_parameter("w", torch::full({16}, 0.9));
  }
  at::Tensor forward(const at::Tensor& x) { return Scale::apply(torch::tanh(a(x)), w); }
  nn::Linear a{nullptr}, unused{nullptr};
  at::Tensor w;
};
// A weight of the block itself, and a child that forward never uses.
TORCH_MODULE(OddBlock);

// Two branches, a unit that runs twice in a forward, and one that never runs.
struct OddNetImpl : nn::Module {
  OddNetImpl() {
    left = register_module("left", OddBlock());
    right = register_module("right", OddBlock());
    twice = register_module("twice", OddBlock());
    never = register_module("never", OddBlock());
    // Frozen within a unit that is trained.
    left->a->bias.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor l = left(x), r = right(x);
    return twice(twice(l * r) + l);
  }
  OddBlock left{nullptr}, right{nullptr}, twice{nullptr}, never{nullptr};
};

// Two blocks and a head of TorchScript, saved and loaded as from a file.
std::shared_ptr<torch::jit::Module> ScriptNet() {
  // TorchScript names types with this prefix; wrap policies see the part after it.
  const auto linear = [](const std::string& type, int64_t in, int64_t out, const std::string& code) {
    torch::jit::Module module("__torch__." + type);
    module.register_parameter("weight", (torch::randn({out, in}) * 0.3).requires_grad_(), /*is_buffer=*/false);
    module.register_parameter("bias", (torch::randn({out}) * 0.1).requires_grad_(), false);
    module.define(code);
    return module;
  };
  const std::string block = "def forward(self, x):\n  return x + torch.gelu(torch.linear(x, self.weight, self.bias))\n";
  torch::jit::Module net("__torch__.Net");
  net.register_module("block0", linear("ScriptBlock", 16, 16, block));
  net.register_module("block1", linear("ScriptBlock", 16, 16, block));
  net.register_module(
      "head", linear("Head", 16, 3, "def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n"));
  net.define("def forward(self, x):\n  return self.head.forward(self.block1.forward(self.block0.forward(x)))\n");
  // A module that was loaded has no C++ class and no source, only its archive.
  std::stringstream file;
  net.save(file);
  return std::make_shared<torch::jit::Module>(torch::jit::load(file));
}

at::Tensor Normal(int seed, at::IntArrayRef sizes) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(1000 + seed));
}

// How to make a model, its input, and which classes are units.
struct Spec {
  std::function<TestModel()> make;
  std::function<at::Tensor(int)> input;
  std::vector<std::string> units;
};

// The module is kept by the function that calls it.
template <typename Impl>
Spec SpecOf(std::vector<int64_t> sizes, std::vector<std::string> units) {
  return {[] {
            auto module = std::make_shared<Impl>();
            return TestModel{.module = module,
                             .script = nullptr,
                             .forward = [module](const at::Tensor& x) { return module->forward(x); },
                             .input = {},
                             .unit_types = {}};
          },
          [sizes](int seed) { return Normal(seed, sizes); }, std::move(units)};
}

Spec ScriptSpec() {
  return {[] {
            auto script = ScriptNet();
            return TestModel{.module = nullptr,
                             .script = script,
                             .forward = [script](const at::Tensor& x) { return script->forward({x}).toTensor(); },
                             .input = {},
                             .unit_types = {}};
          },
          [](int seed) {
            return Normal(seed, {6, 16});
          },
          {"ScriptBlock"}};
}

const std::vector<std::pair<std::string, Spec>>& Specs() {
  static const auto& specs = *new std::vector<std::pair<std::string, Spec>>{
      {"mlp", SpecOf<MlpImpl>({12, 16}, {"Linear", "LayerNorm"})},
      {"tied_transformer", SpecOf<TiedTransformerImpl>({}, {"Block"})},
      {"transformer_encoder", SpecOf<EncoderImpl>({6, 4, 16}, {"TransformerEncoderLayer"})},
      {"conv_net", SpecOf<ConvNetImpl>({4, 3, 8, 8}, {"Conv2d", "Linear"})},
      {"lstm", SpecOf<LstmNetImpl>({4, 5, 8}, {"LSTM", "Linear"})},
      {"mixture_of_experts", SpecOf<MixtureImpl>({3, 8}, {"Expert"})},
      {"odd_net", SpecOf<OddNetImpl>({6, 16}, {"OddBlock"})},
      {"script", ScriptSpec()},
  };
  return specs;
}

const Spec& SpecNamed(const std::string& name) {
  const auto& specs = Specs();
  // Tests name models by constants, so the name exists.
  return std::find_if(specs.begin(), specs.end(), [&](const auto& s) { return s.first == name; })->second;
}

std::unique_ptr<torch::optim::Optimizer> OptimizerOf(const std::vector<at::Tensor>& tensors, const TestTraining& t) {
  namespace optim = torch::optim;
  if (t.adamw) {
    return std::make_unique<optim::AdamW>(tensors, optim::AdamWOptions(t.lr).weight_decay(t.weight_decay));
  }
  return std::make_unique<optim::SGD>(tensors, optim::SGDOptions(t.lr).momentum(0.9).weight_decay(t.weight_decay));
}

// One step; `forward` is plain or within ShardedModule::Forward.
void Step(const std::function<at::Tensor(const at::Tensor&)>& forward, const std::function<at::Tensor(int)>& input,
          int step, const TestTraining& t, const std::function<void(int backward)>& before_backward) {
  for (int b = 0; b < t.backwards; ++b) {
    before_backward(b);
    // In float32: losses of several forwards are summed, and their outputs may be bfloat16.
    at::Tensor loss = at::zeros({});
    for (int f = 0; f < t.forwards; ++f) {
      // Each forward of each backward has its own input.
      loss = loss + forward(input(step + 100 * f + 1000 * b)).to(at::kFloat).square().mean();
    }
    loss.backward();
  }
}

template <typename Module>
TorchValues ValuesOf(const Module& module) {
  TorchValues values;
  // A copy, since the training continues to change the tensors.
  const auto copy = [](const at::Tensor& tensor) { return tensor.detach().cpu().clone(); };
  if constexpr (std::is_same_v<Module, torch::jit::Module>) {
    for (const auto& item : module.named_parameters()) values[item.name] = copy(item.value);
    for (const auto& item : module.named_buffers()) values[item.name] = copy(item.value);
  } else {
    for (const auto& item : module.named_parameters()) values[item.key()] = copy(item.value());
    for (const auto& item : module.named_buffers()) values[item.key()] = copy(item.value());
  }
  return values;
}

}  // namespace

std::vector<at::Tensor> TestModel::parameters() const {
  std::vector<at::Tensor> all;
  const auto add = [&all](const at::Tensor& tensor) {
    // parameters() of a module of TorchScript may have a tied tensor twice.
    const bool known = std::any_of(all.begin(), all.end(), [&](const at::Tensor& t) { return t.is_same(tensor); });
    // Optimizers refuse a tensor that is given twice.
    if (!known && tensor.requires_grad()) all.push_back(tensor);
  };
  if (module != nullptr) {
    for (const at::Tensor& tensor : module->parameters()) add(tensor);
  } else {
    for (const at::Tensor& tensor : script->parameters()) add(tensor);
  }
  return all;
}

TestModel MakeTestModel(const std::string& name, c10::Device device, at::ScalarType dtype) {
  // All threads draw from one default generator, so the seed holds only under a lock.
  static std::mutex& mutex = *new std::mutex;
  const Spec& spec = SpecNamed(name);
  const std::lock_guard<std::mutex> lock(mutex);
  torch::manual_seed(5);
  TestModel model = spec.make();
  model.unit_types = spec.units;
  model.input = spec.input;
  if (absl::StrContains(name, "transformer")) model.row_dimension = 1;  // dimension 0 is the sequence
  // An embedding takes token numbers, so the input of this model is not normally distributed.
  if (name == "tied_transformer") {
    model.input = [](int seed) {
      return at::randint(0, 11, {4, 6}, at::make_generator<at::CPUGeneratorImpl>(1000 + seed),
                         at::TensorOptions().dtype(at::kLong));
    };
  }
  if (dtype != at::kFloat) {
    model.input = [input = model.input, dtype](int seed) {
      const at::Tensor x = input(seed);
      return x.is_floating_point() ? x.to(dtype) : x;
    };
    if (model.module != nullptr) {
      model.module->to(dtype);
    } else {
      model.script->to(dtype);
    }
  }
  // Made on the host and moved, so that the values are the same on every device.
  if (device.is_cpu()) return model;
  model.device = device;
  model.input = [input = model.input, device](int seed) { return input(seed).to(device); };
  if (model.module != nullptr) {
    model.module->to(device);
  } else {
    model.script->to(device);
  }
  return model;
}

const std::vector<std::string>& TestModelNames() {
  static const auto& names = *[] {
    auto* all = new std::vector<std::string>();
    for (const auto& [name, spec] : Specs()) all->push_back(name);
    return all;
  }();
  return names;
}

double LargestDifference(const TorchValues& a, const TorchValues& b) {
  double largest = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    if (other == b.end() || !other->second.sizes().equals(value.sizes())) {
      return std::numeric_limits<double>::infinity();
    }
    // max() of an empty tensor throws.
    if (value.numel() == 0) continue;
    const at::Tensor difference = (value.to(at::kDouble) - other->second.to(at::kDouble)).abs();
    largest = std::max(largest, difference.max().item<double>());
  }
  return largest;
}

TorchValues TrainPlain(const std::string& name, const TestTraining& training, c10::Device device) {
  at::set_num_threads(1);  // sums by several threads differ in the last bit
  const TestModel model = MakeTestModel(name, device);
  const auto optimizer = OptimizerOf(model.parameters(), training);
  for (int step = 0; step < training.steps; ++step) {
    optimizer->zero_grad();
    Step(model.forward, model.input, step, training, [](int) {});
    optimizer->step();
  }
  return model.module != nullptr ? ValuesOf(*model.module) : ValuesOf(*model.script);
}

absl::StatusOr<std::unique_ptr<ShardedModule>> ShardTestModel(const TestModel& model,
                                                              std::shared_ptr<ProcessGroup> group,
                                                              const TestSharding& sharding) {
  const std::vector<std::string> types = sharding.unit_types.empty() ? model.unit_types : sharding.unit_types;
  const ModulePredicate units = [types](const Module& module) {
    return std::find(types.begin(), types.end(), module.type_name()) != types.end();
  };
  if (sharding.use_fsdp2) {
    const std::vector<int> sizes = sharding.mesh.empty() ? std::vector<int>{group->size()} : sharding.mesh;
    std::vector<std::string> names = {"replicate", "shard"};
    // The names of the last dimensions: a mesh of one has only "shard".
    names.erase(names.begin(), names.end() - sizes.size());
    FSDP_ASSIGN_OR_RETURN(auto mesh, DeviceMesh::Create(group, sizes, names));
    return model.module != nullptr ? FullyShard(*model.module, mesh, units, sharding.fsdp2)
                                   : FullyShard(*model.script, mesh, units, sharding.fsdp2);
  }
  FsdpOptions options = sharding.fsdp1;
  // A test may bring its own policy; the default wraps the classes of the model.
  if (!options.auto_wrap_policy) options.auto_wrap_policy = LambdaWrapPolicy(units);
  return model.module != nullptr ? Shard(*model.module, std::move(group), options)
                                 : Shard(*model.script, std::move(group), options);
}

absl::Status Caught(const std::function<absl::Status()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return absl::InternalError(MessageOf(error));
  }
}

std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return MessageOf(error);
  }
  return "";
}

absl::StatusOr<TorchValues> FullValues(ShardedModule& sharded) {
  FSDP_ASSIGN_OR_RETURN(const StateDict state, sharded.fsdp().GetStateDict());
  Stream& stream = sharded.stream();
  TorchValues values;
  for (const auto& [key, value] : state.entries()) {
    // The default state dict type is FULL, so shards[0] is the whole tensor.
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr || key.section != StateKey::Section::kModel) continue;
    const Tensor& data = tensor->shards[0].data;
    at::Tensor& copy = values[key.fqn];
    copy = at::empty(SizesOf(tensor->shape), ScalarTypeOf(data.dtype()));
    stream.CopyAsync(copy.data_ptr(), data.data(), data.nbytes());
  }
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  // A state dict has a shared parameter once, a module under each of its names.
  for (const auto& [alias, name] : state.aliases) values[alias] = values.at(name);
  return values;
}

absl::StatusOr<TrainedModel> TrainSharded(const std::string& name, std::shared_ptr<ProcessGroup> group,
                                          const TestSharding& sharding, const TestTraining& training) {
  at::set_num_threads(1);
  const TestModel model = MakeTestModel(name, TorchDeviceOf(*group->device()));
  TrainedModel trained;
  for (const at::Tensor& tensor : model.parameters()) trained.total_bytes += static_cast<int64_t>(tensor.nbytes());
  FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, sharding));
  const auto optimizer = OptimizerOf(sharded->LocalParameters(), training);
  // Rows must not depend on each other along row_dimension.
  const auto input = [&](int seed) {
    const at::Tensor all = model.input(seed);
    if (!training.split_rows) return all;
    const int64_t rows = all.size(model.row_dimension) / group->size();
    return all.narrow(model.row_dimension, rows * group->rank(), rows);
  };
  const auto forward = [&](const at::Tensor& x) { return sharded->Forward(model.forward, x); };
  FSDP_RETURN_IF_ERROR(Caught([&] {
    for (int step = 0; step < training.steps; ++step) {
      optimizer->zero_grad();
      // The guard must cover forward and backward of each backward except the last.
      std::optional<NoSyncGuard> no_sync;
      Step(forward, input, step, training, [&](int backward) {
        no_sync.reset();
        if (training.no_sync && backward + 1 < training.backwards) no_sync.emplace(sharded->fsdp());
      });
      optimizer->step();
    }
    return absl::OkStatus();
  }));
  // Before FullValues, which is not part of the training.
  trained.peak_bound_bytes = sharded->TakePeakBoundBytes();
  trained.bound_after = sharded->bound_bytes();
  trained.plan = sharded->fsdp().memory_plan();
  trained.warnings = sharded->fsdp().warnings();
  FSDP_ASSIGN_OR_RETURN(trained.values, FullValues(*sharded));
  return trained;
}

absl::StatusOr<PlannedMemory> TakePlannedMemory(std::shared_ptr<ProcessGroup> group, const TestSharding& sharding) {
  Device& device = *group->device();
  const TestModel model = MakeTestModel("tied_transformer", TorchDeviceOf(device));
  // The model's own tensors are LibTorch's, and are not counted.
  const int64_t before = device.allocated_bytes();
  FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, sharding));
  PlannedMemory memory{.planned = sharded->fsdp().memory_plan().DeviceBytes(false)};
  for (const at::Tensor& buffer : model.module->buffers()) memory.planned += static_cast<int64_t>(buffer.nbytes());
  // Counts the steps only: Shard itself reads the unsharded model.
  device.ResetPeak();
  FSDP_RETURN_IF_ERROR(Caught([&] {
    for (int step = 0; step < 3; ++step) {
      sharded->Forward(model.forward, model.input(step)).to(at::kFloat).square().mean().backward();
    }
    return absl::OkStatus();
  }));
  FSDP_RETURN_IF_ERROR(sharded->stream().Synchronize());
  memory.taken = device.peak_allocated_bytes() - before;
  return memory;
}

absl::Status RunHostRanks(int ranks,
                          const std::function<absl::Status(std::shared_ptr<ProcessGroup> group)>& rank_main) {
  return RunRanks(ranks, rank_main);
}

absl::StatusOr<TrainedModel> TrainOnThreads(const std::string& model, int ranks, const TestSharding& sharding,
                                            const TestTraining& training, const RunTestRanks& run) {
  TrainedModel first;
  FSDP_RETURN_IF_ERROR(run(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const bool is_first = group->rank() == 0;
    FSDP_ASSIGN_OR_RETURN(TrainedModel trained, TrainSharded(model, group, sharding, training));
    if (is_first) first = std::move(trained);
    return absl::OkStatus();
  }));
  return first;
}

}  // namespace fsdp
