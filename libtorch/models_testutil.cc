// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/models_testutil.h"

#include <algorithm>
#include <mutex>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"

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

}  // namespace fsdp
