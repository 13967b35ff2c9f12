// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tests/libtorch/models.h"

#include <cstdlib>
#include <numeric>

#include "fsdp/libtorch/unit_call.h"

namespace fsdp {
namespace {

namespace F = torch::nn::functional;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Embedding;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using torch::nn::Linear;
using torch::nn::LinearOptions;
using torch::nn::ModuleList;

// models.py computes the same hashes: 32-bit multiply and xor-shift, exact in both languages.
std::vector<uint32_t> Hashes(int64_t seed, int64_t count) {
  std::vector<uint32_t> hashes(count);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t h = static_cast<uint32_t>((static_cast<uint64_t>(i) + seed * 1000003) * 2654435761u);
    h = (h ^ (h >> 15)) * 2246822519u;
    hashes[i] = h ^ (h >> 13);
  }
  return hashes;
}

int64_t NumelOf(at::IntArrayRef shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Sizes such as 61 give shards of unequal size.
class Mlp final : public TestModel {
 public:
  // Every child is a unit, so each step gathers three.
  std::vector<std::string> units() const override { return {"fc1", "fc2", "fc3"}; }
  Batch BatchOf(int64_t step) const override { return {Uniform(2 * step, {8, 24}), Integers(2 * step + 1, 10, {8})}; }
  at::Tensor Output(int64_t, const at::Tensor& x) override {
    return CallUnit(fc3_, F::gelu(CallUnit(fc2_, F::gelu(CallUnit(fc1_, x)))));
  }

 private:
  Linear fc1_ = register_module("fc1", Linear(24, 61)), fc2_ = register_module("fc2", Linear(61, 61)),
         fc3_ = register_module("fc3", Linear(61, 10));
};

class BlockImpl final : public torch::nn::Module {
 public:
  BlockImpl(int64_t width, int64_t heads)
      : heads_(heads),
        norm1_(register_module("norm1", LayerNorm(LayerNormOptions({width})))),
        norm2_(register_module("norm2", LayerNorm(LayerNormOptions({width})))),
        qkv_(register_module("qkv", Linear(width, 3 * width))),
        proj_(register_module("proj", Linear(width, width))),
        up_(register_module("up", Linear(width, 4 * width))),
        down_(register_module("down", Linear(4 * width, width))) {}

  at::Tensor forward(at::Tensor x) {
    const int64_t b = x.size(0), t = x.size(1), w = x.size(2);
    std::vector<at::Tensor> qkv = qkv_(norm1_(x)).chunk(3, -1);
    // As models.py: one product for q, k and v, then views of it.
    for (at::Tensor& part : qkv) part = part.view({b, t, heads_, w / heads_}).transpose(1, 2);
    const at::Tensor y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    x = x + proj_(y.transpose(1, 2).reshape({b, t, w}));
    return x + down_(F::gelu(up_(norm2_(x))));
  }

 private:
  int64_t heads_;
  LayerNorm norm1_, norm2_;
  Linear qkv_, proj_, up_, down_;
};
TORCH_MODULE(Block);

// A Linear without bias that uses another module's weight.
class HeadImpl final : public torch::nn::Module {
 public:
  explicit HeadImpl(const at::Tensor& weight) : weight_(register_parameter("weight", weight)) {}
  at::Tensor forward(const at::Tensor& x) { return F::linear(x, weight_); }

 private:
  at::Tensor weight_;
};
TORCH_MODULE(Head);

class Transformer final : public TestModel {
 public:
  Transformer(const TransformerSize& size, bool calls_units)
      : size_(size),
        calls_units_(calls_units),
        token_(register_module("token", Embedding(size.vocab, size.width))),
        position_(register_module("position", Embedding(size.length, size.width))),
        blocks_(register_module("blocks", ModuleList())),
        norm_(register_module("norm", LayerNorm(LayerNormOptions({size.width})))),
        head_(register_module("head", Head(token_->weight))) {
    for (int64_t i = 0; i < size.blocks; ++i) blocks_->push_back(Block(size.width, size.heads));
  }
  std::vector<std::string> units() const override {
    std::vector<std::string> units;
    for (int64_t i = 0; i < size_.blocks; ++i) units.push_back("blocks." + std::to_string(i));
    return units;
  }
  Batch BatchOf(int64_t step) const override {
    // One token more than the length: the targets are the same tokens, shifted by one.
    const at::Tensor tokens = Integers(step, size_.vocab, {size_.rows, size_.length + 1});
    return {tokens.slice(1, 0, size_.length), tokens.slice(1, 1)};
  }
  at::Tensor Output(int64_t, const at::Tensor& tokens) override {
    at::Tensor x = token_(tokens) + position_(at::arange(size_.length, tokens.options()));
    for (const auto& module : *blocks_) {
      BlockImpl& block = *module->as<BlockImpl>();
      x = calls_units_ ? CallUnit(block, x) : block.forward(x);
    }
    return head_(norm_(x));
  }

 private:
  const TransformerSize size_;
  const bool calls_units_;
  Embedding token_, position_;
  ModuleList blocks_;
  LayerNorm norm_;
  Head head_;
};

// A unit of two units in mixed precision: batch norm keeps float32.
class StemImpl final : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) { return F::relu(CallUnit(norm_, CallUnit(conv_, x))); }

 private:
  Conv2d conv_ = register_module("conv", Conv2d(Conv2dOptions(3, 13, 3).padding(1)));
  torch::nn::BatchNorm2d norm_ = register_module("norm", torch::nn::BatchNorm2d(13));
};
TORCH_MODULE(Stem);

class ConvNet final : public TestModel {
 public:
  std::vector<std::string> units() const override { return {"stem", "body"}; }
  // Batch norm takes no bfloat16 weights together with float32 buffers, so it stays in float32 as a unit of its own.
  std::vector<std::string> low_units() const override { return {"stem.conv", "body"}; }
  std::vector<std::string> full_units() const override { return {"stem.norm"}; }
  Batch BatchOf(int64_t step) const override {
    return {Uniform(2 * step, {8, 3, 11, 11}), Integers(2 * step + 1, 5, {8})};
  }
  at::Tensor Output(int64_t, const at::Tensor& x) override {
    return head_(F::relu(CallUnit(body_, CallUnit(stem_, x))).mean({2, 3}));
  }

 private:
  Stem stem_ = register_module("stem", Stem());
  Conv2d body_ = register_module("body", Conv2d(Conv2dOptions(13, 17, 3).stride(2)));
  Linear head_ = register_module("head", Linear(17, 5));
};

class LstmModel final : public TestModel {
 public:
  std::vector<std::string> units() const override { return {"lstm"}; }
  Batch BatchOf(int64_t step) const override {
    // One token more than the length, for the shifted targets.
    const at::Tensor tokens = Integers(step, 29, {8, 10});
    return {tokens.slice(1, 0, 9), tokens.slice(1, 1)};
  }
  at::Tensor Output(int64_t, const at::Tensor& tokens) override {
    return head_(std::get<0>(CallUnit(lstm_, token_(tokens))));
  }

 private:
  Embedding token_ = register_module("token", Embedding(29, 16));
  torch::nn::LSTM lstm_ =
      register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(16, 23).num_layers(2).batch_first(true)));
  Linear head_ = register_module("head", Linear(23, 29));
};

class ExpertImpl final : public torch::nn::Module {
 public:
  explicit ExpertImpl(int64_t width)
      : up_(register_module("up", Linear(width, 2 * width))),
        down_(register_module("down", Linear(2 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return down_(F::gelu(up_(x))); }

 private:
  Linear up_, down_;
};
TORCH_MODULE(Expert);

// Each row goes to one of two experts, determined by the step; never to the last expert.
class MixtureImpl final : public torch::nn::Module {
 public:
  MixtureImpl(int64_t width, int64_t experts)
      : router_(register_module("router", Linear(width, experts))), experts_(register_module("experts", ModuleList())) {
    for (int64_t e = 0; e < experts; ++e) experts_->push_back(Expert(width));
  }
  at::Tensor forward(const at::Tensor& x, int64_t step) {
    // FSDP2 requires gradients for the same parameters on all ranks, so the router cannot choose the experts.
    const int64_t usable = static_cast<int64_t>(experts_->size()) - 1;
    const at::Tensor gates = router_(x).softmax(-1);
    at::Tensor y = x;
    for (const int64_t i : {0, 1}) {
      const int64_t e = (step + i) % usable;
      // Even rows go to the first expert, odd rows to the second.
      const at::Tensor rows = at::arange(i, x.size(0), 2);
      const at::Tensor gate = gates.index_select(0, rows).select(1, e).unsqueeze(1);
      y = y.index_add(0, rows, experts_->ptr<ExpertImpl>(e)->forward(x.index_select(0, rows)) * gate);
    }
    return y;
  }

 private:
  Linear router_;
  ModuleList experts_;
};
TORCH_MODULE(Mixture);

class MixtureModel final : public TestModel {
 public:
  MixtureModel() {
    for (int i = 0; i < 2; ++i) layers_->push_back(Mixture(24, 5));
  }
  std::vector<std::string> units() const override { return {"layers.0", "layers.1"}; }
  Batch BatchOf(int64_t step) const override { return {Uniform(2 * step, {16, 16}), Integers(2 * step + 1, 7, {16})}; }
  at::Tensor Output(int64_t step, const at::Tensor& rows) override {
    at::Tensor x = inner_(rows);
    // The step is an argument without tensors: CallUnit passes it on unchanged.
    for (const auto& layer : *layers_) x = CallUnit(*layer->as<MixtureImpl>(), x, step);
    return head_(x);
  }

 private:
  Linear inner_ = register_module("inner", Linear(16, 24));
  ModuleList layers_ = register_module("layers", ModuleList());
  Linear head_ = register_module("head", Linear(24, 7));
};

}  // namespace

at::Tensor Uniform(int64_t seed, at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape);
  float* const out = tensor.data_ptr<float>();
  const std::vector<uint32_t> hashes = Hashes(seed, NumelOf(shape));
  // 24 bits divided by 2^24: exact in float32.
  for (size_t i = 0; i < hashes.size(); ++i) out[i] = static_cast<float>(hashes[i] >> 8) / 16777216.0f - 0.5f;
  return tensor;
}

at::Tensor Integers(int64_t seed, int64_t below, at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape, at::kLong);
  int64_t* const out = tensor.data_ptr<int64_t>();
  const std::vector<uint32_t> hashes = Hashes(seed, NumelOf(shape));
  for (size_t i = 0; i < hashes.size(); ++i) out[i] = hashes[i] % below;
  return tensor;
}

Batch Batch::Of(int rank, int ranks) const {
  // Contiguous, since kernels may sum strided rows in another order.
  const int64_t rows = x.size(0) / ranks;
  return {x.slice(0, rank * rows, (rank + 1) * rows).contiguous(),
          y.slice(0, rank * rows, (rank + 1) * rows).contiguous()};
}

std::shared_ptr<TestModel> MakeTransformer(const TransformerSize& size, bool calls_units) {
  return std::make_shared<Transformer>(size, calls_units);
}

std::shared_ptr<TestModel> MakeTestModel(const std::string& name) {
  if (name == "mlp") return std::make_shared<Mlp>();
  if (name == "transformer") return MakeTransformer();
  if (name == "conv_net") return std::make_shared<ConvNet>();
  if (name == "lstm") return std::make_shared<LstmModel>();
  if (name == "mixture") return std::make_shared<MixtureModel>();
  std::abort();
}

}  // namespace fsdp
