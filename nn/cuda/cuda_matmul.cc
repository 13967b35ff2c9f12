// SPDX-License-Identifier: Apache-2.0
//
// Products by cuBLASLt. A plan holds what cuBLASLt needs for one shape (descriptor, layouts, algorithm); the key of a
// plan is everything that the choice of an algorithm depends on (PlanKey: sizes, distances, dtypes, transposes,
// epilogue, and the alignment of each address, since an algorithm may need wide loads). The heuristic is deterministic,
// so a run repeated on one kind of GPU uses the same algorithms and gives the same bits; timing the candidates would
// not.

#include "fsdp/nn/cuda/cuda_matmul.h"

#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/nn/cuda/cuda_gemm_packing.h"
#include "fsdp/nn/cuda/cuda_gemm_parts.h"

namespace fsdp {
namespace {

absl::Status CublasStatus(cublasStatus_t status, const std::string& call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const auto code =
      status == CUBLAS_STATUS_NOT_SUPPORTED ? absl::StatusCode::kUnimplemented : absl::StatusCode::kInternal;
  return absl::Status(code, absl::StrCat(call, ": ", cublasLtGetStatusString(status)));
}

// The largest alignment that cuBLASLt's heuristic distinguishes; a null address has it.
constexpr uint32_t kMaxAlignment = 256;

constexpr int64_t kCublasBytes = int64_t{32} << 20;

uint32_t AlignmentOf(const void* data) {
  if (data == nullptr) return kMaxAlignment;
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & -address, kMaxAlignment));
}

struct DestroyDesc {
  void operator()(cublasLtMatmulDesc_t desc) const { cublasLtMatmulDescDestroy(desc); }
};
struct DestroyLayout {
  void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
};
struct DestroyPreference {
  void operator()(cublasLtMatmulPreference_t preference) const { cublasLtMatmulPreferenceDestroy(preference); }
};
using Desc = std::unique_ptr<cublasLtMatmulDescOpaque_t, DestroyDesc>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, DestroyLayout>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, DestroyPreference>;

template <typename T>
absl::Status Set(const Desc& desc, cublasLtMatmulDescAttributes_t attribute, T value) {
  return CublasStatus(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof(value)),
                      "cublasLtMatmulDescSetAttribute");
}
template <typename T>
absl::Status Set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  return CublasStatus(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
                      "cublasLtMatmulPreferenceSetAttribute");
}

absl::StatusOr<Layout> MakeLayout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  FSDP_RETURN_IF_ERROR(CublasStatus(cublasLtMatrixLayoutCreate(&layout, type, rows, columns, stride),
                                    absl::StrCat("cublasLtMatrixLayoutCreate of ", rows, " by ", columns)));
  return Layout(layout);
}

cudaDataType_t CudaType(DType dtype) {
  if (dtype == DType::kFloat16) return CUDA_R_16F;
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

std::string Describe(const Gemm& gemm) {
  return absl::StrCat("matmul of ", gemm.m, " by ", gemm.k, " and ", gemm.k, " by ", gemm.n, ", ",
                      std::string(DTypeName(gemm.dtype)), " to ", std::string(DTypeName(gemm.c_dtype)));
}

}  // namespace

// Everything that the choice of an algorithm depends on.
struct CudaMatmul::PlanKey {
  explicit PlanKey(const Gemm& g)
      : sizes{g.m, g.n, g.k, g.lda, g.ldb, g.ldc},
        dtypes{g.dtype, g.c_dtype},
        flags{g.transpose_a, g.transpose_b, g.accumulate, g.bias != nullptr},
        alignments{AlignmentOf(g.a), AlignmentOf(g.b), AlignmentOf(g.c), AlignmentOf(g.bias)} {}
  auto operator<=>(const PlanKey&) const = default;

  int64_t sizes[6];
  DType dtypes[2];
  bool flags[4];
  uint32_t alignments[4];
};

struct CudaMatmul::Plan {
  Desc desc;
  Layout a, b, c;
  cublasLtMatmulAlgo_t algo;
};

CudaMatmul::CudaMatmul() = default;

CudaMatmul::~CudaMatmul() {
  plans_.clear();
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

absl::Status CudaMatmul::Open() {
  if (handle_ != nullptr) return absl::OkStatus();
  return CublasStatus(cublasLtCreate(&handle_), "cublasLtCreate");
}

// cuBLASLt's matrices are column-major. The bytes of our row-major c [m, n] are, column by column, the matrix c^T [n,
// m]:
//
//   our rows   | c00 c01 c02 |      memory   c00 c01 c02 c10 c11 c12      cuBLASLt's   | c00 c10 |
//              | c10 c11 c12 |                                            columns      | c01 c11 |
//                                                                                      | c02 c12 |
//
// So we request c^T = b^T a^T, [n, m] = [n, k] [k, m], and nothing is copied: cuBLASLt's first operand is our b and its
// second our a, each with our transpose flag, and a bias for each of our columns is a bias for each of its rows, as in
// its epilogue.
absl::StatusOr<const CudaMatmul::Plan*> CudaMatmul::PlanFor(const Gemm& gemm) {
  std::unique_ptr<const Plan>& kept = plans_[PlanKey(gemm)];
  if (kept != nullptr) return kept.get();
  auto plan = std::make_unique<Plan>();
  cublasLtMatmulDesc_t desc = nullptr;
  FSDP_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate"));
  plan->desc.reset(desc);
  FSDP_RETURN_IF_ERROR(Set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, gemm.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  FSDP_RETURN_IF_ERROR(Set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, gemm.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  if (gemm.bias != nullptr) {
    FSDP_RETURN_IF_ERROR(Set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    FSDP_RETURN_IF_ERROR(Set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias));
  }
  const cudaDataType_t type = CudaType(gemm.dtype);
  FSDP_ASSIGN_OR_RETURN(plan->a, gemm.transpose_b ? MakeLayout(type, gemm.k, gemm.n, gemm.ldb)
                                                  : MakeLayout(type, gemm.n, gemm.k, gemm.ldb));
  FSDP_ASSIGN_OR_RETURN(plan->b, gemm.transpose_a ? MakeLayout(type, gemm.m, gemm.k, gemm.lda)
                                                  : MakeLayout(type, gemm.k, gemm.m, gemm.lda));
  FSDP_ASSIGN_OR_RETURN(plan->c, MakeLayout(CudaType(gemm.c_dtype), gemm.n, gemm.m, gemm.ldc));

  cublasLtMatmulPreference_t made = nullptr;
  FSDP_RETURN_IF_ERROR(CublasStatus(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate"));
  const Preference preference(made);
  FSDP_RETURN_IF_ERROR(Set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<size_t>(kCublasBytes)));
  FSDP_RETURN_IF_ERROR(Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(gemm.b)));
  FSDP_RETURN_IF_ERROR(Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(gemm.a)));
  FSDP_RETURN_IF_ERROR(Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(gemm.c)));
  FSDP_RETURN_IF_ERROR(Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(gemm.c)));
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  FSDP_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulAlgoGetHeuristic(handle_, plan->desc.get(), plan->a.get(), plan->b.get(),
                                                  plan->c.get(), plan->c.get(), preference.get(), 1, &best, &found),
                   Describe(gemm)));
  if (found == 0) return absl::UnimplementedError(absl::StrCat(Describe(gemm), ": cuBLASLt has no algorithm for it"));
  plan->algo = best.algo;
  kept = std::move(plan);
  return kept.get();
}

int64_t CudaMatmul::WorkspaceBytes(const Gemm& gemm) { return kCublasBytes + GemmPacking(gemm).nbytes(); }

absl::Status CudaMatmul::Run(const Gemm& gemm, const Buffer& workspace, CUstream_st* stream) {
  if (gemm.m == 0 || gemm.n == 0) return absl::OkStatus();
  const GemmPacking packing(gemm);
  const Gemm packed = packing.In(workspace.data() + kCublasBytes, stream);
  for (const Gemm& part : GemmParts(packed)) {
    FSDP_RETURN_IF_ERROR(Multiply(part, workspace.data(), stream));
  }
  packing.Out(packed, stream);
  return absl::OkStatus();
}

absl::Status CudaMatmul::Multiply(const Gemm& gemm, std::byte* workspace, CUstream_st* stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  FSDP_RETURN_IF_ERROR(Open());
  FSDP_ASSIGN_OR_RETURN(const Plan* plan, PlanFor(gemm));
  if (gemm.bias != nullptr) FSDP_RETURN_IF_ERROR(Set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias));
  const float alpha = 1;
  const float beta = gemm.accumulate ? 1 : 0;
  return CublasStatus(cublasLtMatmul(handle_, plan->desc.get(), &alpha, gemm.b, plan->a.get(), gemm.a, plan->b.get(),
                                     &beta, gemm.c, plan->c.get(), gemm.c, plan->c.get(), &plan->algo, workspace,
                                     static_cast<size_t>(kCublasBytes), stream),
                      Describe(gemm));
}

}  // namespace fsdp
