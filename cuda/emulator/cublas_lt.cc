// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt's product as three loops, in column-major terms, with float32 sums in the order of k. Operands are first
// read into float32. The emulator is as strict as the library's contract: an algorithm that was chosen for an alignment
// refuses operands that lack it and requires all of the workspace that it may have, and layouts must fit.

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "fsdp/cuda/emulator/device_memory.h"
#include "fsdp/cuda/emulator/emulated_stream.h"
#include "fsdp/cuda/emulator/runtime.h"

namespace {

// A column-major matrix at its address in the kernels' view.
struct Matrix {
  cublasLtMatrixLayoutOpaque_t layout;
  void* data;

  float Get(uint64_t row, uint64_t column) const {
    const uint64_t i = row + column * static_cast<uint64_t>(layout.stride);
    if (layout.type == CUDA_R_32F) return static_cast<const float*>(data)[i];
    if (layout.type == CUDA_R_16F) return __half2float(static_cast<const __half*>(data)[i]);
    return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  }
  void Set(uint64_t row, uint64_t column, float value) const {
    const uint64_t i = row + column * static_cast<uint64_t>(layout.stride);
    if (layout.type == CUDA_R_32F) {
      static_cast<float*>(data)[i] = value;
    } else if (layout.type == CUDA_R_16F) {
      static_cast<__half*>(data)[i] = __float2half_rn(value);
    } else {
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
    }
  }
};

// op(matrix), row by row.
std::vector<float> RowsOf(const Matrix& matrix, bool transposed, uint64_t rows, uint64_t columns) {
  std::vector<float> values(rows * columns);
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t c = 0; c < columns; ++c) {
      values[r * columns + c] = transposed ? matrix.Get(c, r) : matrix.Get(r, c);
    }
  }
  return values;
}

void Multiply(const cublasLtMatmulDescOpaque_t& desc, float alpha, const Matrix& a, const Matrix& b, float beta,
              const Matrix& c, const Matrix& d) {
  const bool transpose_a = desc.transpose_a == CUBLAS_OP_T;
  const uint64_t m = d.layout.rows, n = d.layout.columns;
  const uint64_t k = transpose_a ? a.layout.rows : a.layout.columns;
  // Both operands are copied with k contiguous, so that the inner loop is the same for all transpositions.
  const std::vector<float> a_rows = RowsOf(a, transpose_a, m, k);
  const std::vector<float> b_columns = RowsOf(b, desc.transpose_b != CUBLAS_OP_T, n, k);
  // The bias has a value for each row of d; it is read as a matrix of one column.
  const Matrix bias = {{d.layout.type, m, 1, static_cast<int64_t>(m)}, const_cast<void*>(desc.bias)};
  for (uint64_t j = 0; j < n; ++j) {
    for (uint64_t i = 0; i < m; ++i) {
      float sum = 0;
      for (uint64_t l = 0; l < k; ++l) sum += a_rows[i * k + l] * b_columns[j * k + l];
      sum *= alpha;
      // With beta = 0, c is not read: it may hold NaN.
      if (beta != 0) sum += beta * c.Get(i, j);
      if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += bias.Get(i, 0);
      d.Set(i, j, sum);
    }
  }
}

// Products for which cuBLASLt has no fast kernel, and those that read c.
std::atomic<int64_t> misaligned_products{0}, adding_products{0};

// Whether every column of 16-bit elements begins at a multiple of 16 bytes, as a GPU's copy engines and widest loads
// require.
bool HasAlignedColumns(const cublasLtMatrixLayoutOpaque_t& layout, const void* data) {
  if (layout.type == CUDA_R_32F) return true;
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && layout.stride * 2 % 16 == 0;
}

// Large, and with a size that is not a multiple of 8. The speed of a small or thin product does not matter.
bool HasOddSize(uint64_t m, uint64_t n, uint64_t k) {
  const bool is_large = m >= 64 && n >= 64 && k >= 64 && static_cast<double>(m) * n * k >= (1 << 28);
  return is_large && (m % 8 != 0 || n % 8 != 0 || k % 8 != 0);
}

bool IsAligned(const void* data, uint32_t to) { return reinterpret_cast<uintptr_t>(data) % to == 0; }

template <typename T>
cublasStatus_t Assign(T& to, const void* value, size_t nbytes) {
  if (nbytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, nbytes);
  return CUBLAS_STATUS_SUCCESS;
}

// Whether op(a) op(b) has d's sizes, and columns do not overlap.
bool Fits(const cublasLtMatmulDescOpaque_t& desc, const cublasLtMatrixLayoutOpaque_t& a,
          const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& d) {
  const bool ta = desc.transpose_a == CUBLAS_OP_T, tb = desc.transpose_b == CUBLAS_OP_T;
  for (const auto* layout : {&a, &b, &d}) {
    if (layout->rows == 0 || layout->columns == 0 || static_cast<uint64_t>(layout->stride) < layout->rows) return false;
  }
  return (ta ? a.columns : a.rows) == d.rows && (tb ? b.rows : b.columns) == d.columns &&
         (ta ? a.rows : a.columns) == (tb ? b.columns : b.rows);
}

}  // namespace

int64_t fsdp::EmulatedMisalignedProducts() { return misaligned_products; }
int64_t fsdp::EmulatedAddingProducts() { return adding_products; }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext{fsdp::EmulatedCurrentDevice()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t, cudaDataType_t) {
  *desc = new cublasLtMatmulDescOpaque_t{CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t nbytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Assign(desc->transpose_a, value, nbytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Assign(desc->transpose_b, value, nbytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Assign(desc->epilogue, value, nbytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Assign(desc->bias, value, nbytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  *layout = new cublasLtMatrixLayoutOpaque_t{type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  // cuBLASLt assumes aligned operands unless the preference specifies otherwise.
  *preference = new cublasLtMatmulPreferenceOpaque_t{0, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t nbytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return Assign(preference->workspace_bytes, value, nbytes);
  return Assign(preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, nbytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  // Checked again in cublasLtMatmul, because the caller may pass other layouts there.
  if (!Fits(*desc, *a, *b, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  std::memcpy(results[0].algo.alignments, preference->alignments, sizeof(preference->alignments));
  // The algorithm requires all the workspace that it may have.
  results[0].algo.workspace_bytes = preference->workspace_bytes;
  results[0].workspaceSize = preference->workspace_bytes;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const void* operands[] = {a, b, c, d};
  // The alignments for which the algorithm was chosen.
  for (int i = 0; i < 4; ++i) {
    if (!IsAligned(operands[i], algo->alignments[i])) return CUBLAS_STATUS_INVALID_VALUE;
  }
  fsdp::EmulatedMemory& memory = fsdp::EmulatedMemory::Get();
  if (stream == nullptr || !Fits(*desc, *a_layout, *b_layout, *d_layout) || workspace_bytes < algo->workspace_bytes ||
      !memory.IsValid(workspace, workspace_bytes)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const uint64_t terms = desc->transpose_a == CUBLAS_OP_T ? a_layout->rows : a_layout->columns;
  if (!HasAlignedColumns(*a_layout, a) || !HasAlignedColumns(*b_layout, b) || !HasAlignedColumns(*d_layout, d) ||
      (a_layout->type != CUDA_R_32F && HasOddSize(d_layout->rows, d_layout->columns, terms))) {
    ++misaligned_products;
  }
  if (*static_cast<const float*>(beta) != 0) ++adding_products;
  const auto matrix = [&memory](const cublasLtMatrixLayoutOpaque_t& layout, const void* data) {
    return Matrix{layout, const_cast<void*>(memory.KernelView(data))};
  };
  // All arguments go to the stream by value: the caller may destroy or change its descriptor immediately.
  cublasLtMatmulDescOpaque_t product = *desc;
  product.bias = memory.KernelView(desc->bias);
  stream->Push([product, alpha = *static_cast<const float*>(alpha), beta = *static_cast<const float*>(beta),
                a = matrix(*a_layout, a), b = matrix(*b_layout, b), c = matrix(*c_layout, c),
                d = matrix(*d_layout, d)] { Multiply(product, alpha, a, b, beta, c, d); });
  return CUBLAS_STATUS_SUCCESS;
}
