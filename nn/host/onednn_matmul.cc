// SPDX-License-Identifier: Apache-2.0
//
// oneDNN compiles code for a shape when a primitive is made, which takes milliseconds, and then runs it at each call.
// Primitives are therefore kept, by everything they depend on (Key): a model has a few dozen shapes. They take any
// address and any distance between rows, so nothing here depends on the operands' addresses.
//
// Threads: Find holds the lock while it makes a primitive, and Execute runs without it, on working memory of the
// calling thread. Exceptions: oneDNN's C++ interface throws; Run is the boundary.
#include "fsdp/nn/host/onednn_matmul.h"

#include <cstddef>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dnnl.hpp"
#include "fsdp/tensor/kernel_threads.h"

namespace fsdp {
namespace {

using dnnl::memory;

memory::data_type DataType(DType dtype) {
  return dtype == DType::kBFloat16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// rows x cols as used, `stride` elements between rows in memory.
memory::desc MatrixDesc(int64_t rows, int64_t cols, DType dtype, int64_t stride, bool transposed) {
  const memory::dims strides = transposed ? memory::dims{1, stride} : memory::dims{stride, 1};
  return memory::desc({rows, cols}, DataType(dtype), strides);
}

// All that a primitive depends on: a Gemm without its addresses.
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, DType, DType, bool, bool, bool, bool>;

Key KeyOf(const Gemm& g) {
  return {g.m,     g.n,       g.k,           g.lda,         g.ldb,        g.ldc,
          g.dtype, g.c_dtype, g.transpose_a, g.transpose_b, g.accumulate, g.bias != nullptr};
}

struct Primitive {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul matmul;
};

// oneDNN 3 has no description of an operation apart from its primitive's.
dnnl::matmul::primitive_desc Describe(const memory::desc& a, const memory::desc& b, const memory::desc* bias,
                                      const memory::desc& c, const dnnl::primitive_attr& attr,
                                      const dnnl::engine& engine) {
  using dnnl::matmul;
#if DNNL_VERSION_MAJOR >= 3
  return bias == nullptr ? matmul::primitive_desc(engine, a, b, c, attr)
                         : matmul::primitive_desc(engine, a, b, *bias, c, attr);
#else
  return {bias == nullptr ? matmul::desc(a, b, c) : matmul::desc(a, b, *bias, c), attr, engine};
#endif
}

Primitive MakePrimitive(const Gemm& g, const dnnl::engine& engine) {
  dnnl::primitive_attr attr;
  // The library's own scratchpad may not be used by a thread other than the primitive's maker.
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (g.accumulate) {
    dnnl::post_ops sum;
    // c = a b + 1 c, inside the primitive: no temporary for the product.
    sum.append_sum(1.0f);
    attr.set_post_ops(sum);
  }
  const memory::desc a = MatrixDesc(g.m, g.k, g.dtype, g.lda, g.transpose_a);
  const memory::desc b = MatrixDesc(g.k, g.n, g.dtype, g.ldb, g.transpose_b);
  const memory::desc c = MatrixDesc(g.m, g.n, g.c_dtype, g.ldc, /*transposed=*/false);
  const memory::desc bias = g.bias == nullptr ? memory::desc() : MatrixDesc(1, g.n, g.dtype, g.n, /*transposed=*/false);
  const dnnl::matmul::primitive_desc desc = Describe(a, b, g.bias == nullptr ? nullptr : &bias, c, attr, engine);
  return {desc, dnnl::matmul(desc)};
}

void Execute(const Primitive& primitive, const Gemm& g, const dnnl::engine& engine) {
  // Kept, and grown to the largest size that a primitive needed on this thread.
  thread_local std::vector<std::byte> scratchpad;
  const memory::desc scratchpad_desc = primitive.desc.scratchpad_desc();
  if (scratchpad.size() < scratchpad_desc.get_size()) scratchpad.resize(scratchpad_desc.get_size());
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, memory(primitive.desc.src_desc(), engine, const_cast<void*>(g.a))},
      {DNNL_ARG_WEIGHTS, memory(primitive.desc.weights_desc(), engine, const_cast<void*>(g.b))},
      {DNNL_ARG_DST, memory(primitive.desc.dst_desc(), engine, g.c)},
      {DNNL_ARG_SCRATCHPAD, memory(scratchpad_desc, engine, scratchpad.data())}};
  if (g.bias != nullptr) {
    arguments.emplace(DNNL_ARG_BIAS, memory(primitive.desc.bias_desc(), engine, const_cast<void*>(g.bias)));
  }
  dnnl::stream stream(engine);
  primitive.matmul.execute(stream, arguments);
  stream.wait();
}

}  // namespace

class OneDnnMatmul::Primitives {
 public:
  explicit Primitives(int threads) : threads_(threads), engine_(dnnl::engine::kind::cpu, 0) {}

  absl::Status Run(const Gemm& gemm) {
    SetKernelThreads(threads_);
    try {
      const Primitive* primitive = Find(gemm);
      if (primitive == nullptr) return absl::UnimplementedError("oneDNN has no bfloat16 for this processor");
      Execute(*primitive, gemm, engine_);
      return absl::OkStatus();
    } catch (const dnnl::error& error) {
      return absl::InternalError(absl::StrCat("oneDNN matmul [", gemm.m, ", ", gemm.k, "] x [", gemm.k, ", ", gemm.n,
                                              "] ", std::string(DTypeName(gemm.dtype)), ": ", error.what()));
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("oneDNN matmul: out of host memory");
    }
  }

 private:
  // The primitive for `gemm`, made if need be; null if oneDNN has no bfloat16. Entries never move or go.
  const Primitive* Find(const Gemm& gemm) {
    const Key key = KeyOf(gemm);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = made_.find(key);
    if (found == made_.end()) found = made_.emplace(key, Make(gemm)).first;
    return found->second.has_value() ? &*found->second : nullptr;
  }

  // A missing primitive is kept as well, so that oneDNN is queried once for each shape.
  std::optional<Primitive> Make(const Gemm& gemm) const {
    try {
      return MakePrimitive(gemm, engine_);
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented || gemm.dtype != DType::kBFloat16) throw;
      return std::nullopt;
    }
  }

  const int threads_;
  const dnnl::engine engine_;
  std::mutex mutex_;
  std::map<Key, std::optional<Primitive>> made_;  // Guarded by mutex_.
};

OneDnnMatmul::OneDnnMatmul(int threads) : primitives_(std::make_unique<Primitives>(threads)) {}

OneDnnMatmul::~OneDnnMatmul() = default;

absl::Status OneDnnMatmul::Run(const Gemm& gemm) const { return primitives_->Run(gemm); }

}  // namespace fsdp
