// SPDX-License-Identifier: Apache-2.0
//
// Chooses how a product is computed: float32 always by oneDNN; bfloat16 by oneDNN if the processor has fast
// instructions for it, else converted (converted_matmul.h); float16, which oneDNN 2.6 lacks, always converted. The
// choice depends on the processor's features, not on timing, so all ranks on one kind of machine compute the same bits.
#include "fsdp/nn/host/host_matmul.h"

#include <cpuid.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/nn/host/converted_matmul.h"

namespace fsdp {
namespace {

absl::Status CheckDTypes(const Gemm& g) {
  const bool known = g.dtype == DType::kFloat32 || g.dtype == DType::kBFloat16 || g.dtype == DType::kFloat16;
  if (known && (g.c_dtype == DType::kFloat32 || g.c_dtype == g.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("matmul: no kernel for ", std::string(DTypeName(g.dtype)), " to ",
                                                 std::string(DTypeName(g.c_dtype))));
}

// Sapphire Rapids and later, known by their float16 instructions, in a virtual machine that hides the matrix unit:
// their vector bfloat16 product then has half of float32's rate (measured: 70 against 130 GFLOP/s a core).
bool HasSlowVectorBFloat16() {
  constexpr unsigned kAmxBFloat16 = 1u << 22, kAvx512Float16 = 1u << 23;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0 || ebx != signature_INTEL_ebx) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kAvx512Float16) != 0 && (edx & kAmxBFloat16) == 0;
}

}  // namespace

BFloat16Products FastBFloat16Products() {
  return HasSlowVectorBFloat16() ? BFloat16Products::kConverted : BFloat16Products::kNative;
}

HostMatmul::HostMatmul(int threads, BFloat16Products products) : products_(products), onednn_(threads) {}

absl::Status HostMatmul::Run(const Gemm& gemm) const {
  if (absl::Status status = CheckDTypes(gemm); !status.ok()) return status;
  if (gemm.m == 0 || gemm.n == 0 || (gemm.k == 0 && gemm.accumulate)) return absl::OkStatus();
  const bool native = gemm.dtype == DType::kBFloat16 && products_ == BFloat16Products::kNative;
  if (gemm.dtype == DType::kFloat32 || native) {
    absl::Status status = onednn_.Run(gemm);
    if (status.code() != absl::StatusCode::kUnimplemented) return status;
  }
  return ConvertedMatmul(gemm, onednn_);
}

}  // namespace fsdp
