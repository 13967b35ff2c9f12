// SPDX-License-Identifier: Apache-2.0
#include "nn/host_matmul.h"

#include <cstddef>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "dnnl.hpp"
#include "nn/kernel_threads.h"
#include "tensor/convert.h"

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

Primitive MakePrimitive(const Gemm& g, const dnnl::engine& engine) {
  dnnl::primitive_attr attr;
  // The library's own scratchpad may not be used by a thread other than the primitive's maker.
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (g.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attr.set_post_ops(sum);
  }
  const memory::desc a = MatrixDesc(g.m, g.k, g.dtype, g.lda, g.transpose_a);
  const memory::desc b = MatrixDesc(g.k, g.n, g.dtype, g.ldb, g.transpose_b);
  const memory::desc c = MatrixDesc(g.m, g.n, g.c_dtype, g.ldc, /*transposed=*/false);
  const memory::desc bias = g.bias == nullptr ? memory::desc() : MatrixDesc(1, g.n, g.dtype, g.n, /*transposed=*/false);
  const dnnl::matmul::desc operation =
      g.bias == nullptr ? dnnl::matmul::desc(a, b, c) : dnnl::matmul::desc(a, b, bias, c);
  const dnnl::matmul::primitive_desc desc(operation, attr, engine);
  return {desc, dnnl::matmul(desc)};
}

void Execute(const Primitive& primitive, const Gemm& g, const dnnl::engine& engine) {
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

// `rows` rows of `cols` elements, `stride` apart, as dense float32.
absl::StatusOr<std::vector<float>> PackFloats(const void* data, DType dtype, int64_t rows, int64_t cols,
                                              int64_t stride) {
  std::vector<float> packed(rows * cols);
  for (int64_t r = 0; r < rows; ++r) {
    const auto* row = static_cast<const std::byte*>(data) + r * stride * SizeOf(dtype);
    RETURN_IF_ERROR(Convert(dtype, row, DType::kFloat32, &packed[r * cols], cols));
  }
  return packed;
}

absl::Status CheckDTypes(const Gemm& g) {
  const bool known = g.dtype == DType::kFloat32 || g.dtype == DType::kBFloat16;
  if (known && (g.c_dtype == DType::kFloat32 || g.c_dtype == g.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("matmul: no kernel for ", std::string(DTypeName(g.dtype)), " to ",
                                                 std::string(DTypeName(g.c_dtype))));
}

}  // namespace

class HostMatmul::Primitives {
 public:
  explicit Primitives(int threads) : threads_(threads), engine_(dnnl::engine::kind::cpu, 0) {}

  absl::Status Run(const Gemm& gemm) {
    SetKernelThreads(threads_);
    try {
      const Primitive* primitive = Find(gemm);
      if (primitive == nullptr) return RunAsFloat32(gemm);
      Execute(*primitive, gemm, engine_);
      return absl::OkStatus();
    } catch (const dnnl::error& error) {
      return absl::InternalError(absl::StrCat("oneDNN matmul [", gemm.m, ", ", gemm.k, "] x [", gemm.k, ", ", gemm.n,
                                              "] ", std::string(DTypeName(gemm.dtype)), ": ", error.what()));
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("matmul: out of host memory");
    }
  }

 private:
  // The primitive for `gemm`, made if need be; null where oneDNN has no bfloat16. Entries never move or go.
  const Primitive* Find(const Gemm& gemm) {
    const Key key = KeyOf(gemm);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = made_.find(key);
    if (found == made_.end()) found = made_.emplace(key, Make(gemm)).first;
    return found->second.has_value() ? &*found->second : nullptr;
  }

  std::optional<Primitive> Make(const Gemm& gemm) const {
    try {
      return MakePrimitive(gemm, engine_);
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented || gemm.dtype != DType::kBFloat16) throw;
      return std::nullopt;
    }
  }

  absl::Status RunAsFloat32(const Gemm& g) {
    Gemm wide = g;
    wide.dtype = wide.c_dtype = DType::kFloat32;
    wide.lda = g.transpose_a ? g.m : g.k;
    wide.ldb = g.transpose_b ? g.k : g.n;
    wide.ldc = g.n;
    ASSIGN_OR_RETURN(const std::vector<float> a, PackFloats(g.a, g.dtype, g.transpose_a ? g.k : g.m, wide.lda, g.lda));
    ASSIGN_OR_RETURN(const std::vector<float> b, PackFloats(g.b, g.dtype, g.transpose_b ? g.n : g.k, wide.ldb, g.ldb));
    std::vector<float> bias;
    if (g.bias != nullptr) {
      ASSIGN_OR_RETURN(bias, PackFloats(g.bias, g.dtype, 1, g.n, g.n));
      wide.bias = bias.data();
    }
    std::vector<float> c(g.m * g.n);
    if (g.accumulate) {
      ASSIGN_OR_RETURN(c, PackFloats(g.c, g.c_dtype, g.m, g.n, g.ldc));
    }
    wide.a = a.data();
    wide.b = b.data();
    wide.c = c.data();
    RETURN_IF_ERROR(Run(wide));
    for (int64_t r = 0; r < g.m; ++r) {
      auto* row = static_cast<std::byte*>(g.c) + r * g.ldc * SizeOf(g.c_dtype);
      RETURN_IF_ERROR(Convert(DType::kFloat32, &c[r * g.n], g.c_dtype, row, g.n));
    }
    return absl::OkStatus();
  }

  const int threads_;
  const dnnl::engine engine_;
  std::mutex mutex_;
  std::map<Key, std::optional<Primitive>> made_;  // Guarded by mutex_.
};

HostMatmul::HostMatmul(int threads) : primitives_(std::make_unique<Primitives>(threads)) {}

HostMatmul::~HostMatmul() = default;

absl::Status HostMatmul::Run(const Gemm& gemm) const {
  RETURN_IF_ERROR(CheckDTypes(gemm));
  if (gemm.m == 0 || gemm.n == 0 || (gemm.k == 0 && gemm.accumulate)) return absl::OkStatus();
  return primitives_->Run(gemm);
}

}  // namespace fsdp
