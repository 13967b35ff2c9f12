// SPDX-License-Identifier: Apache-2.0
//
// Linked into host_matmul_avx2_test: oneDNN is limited to AVX2 before its first use, so that it has no bfloat16 and the
// conversion path of HostMatmul runs.
#include "dnnl.hpp"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

const dnnl::status kLimited = dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);

TEST(OnlyAvx2Test, OneDnnHasNoBFloat16) {
  using dnnl::memory;
  ASSERT_EQ(kLimited, dnnl::status::success);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const memory::desc matrix({8, 8}, memory::data_type::bf16, memory::format_tag::ab);
  try {
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc made(engine, matrix, matrix, matrix);
#else
    const dnnl::matmul::primitive_desc made(dnnl::matmul::desc(matrix, matrix, matrix), engine);
#endif
    FAIL() << "oneDNN has " << made.impl_info_str();
  } catch (const dnnl::error& error) {
    EXPECT_EQ(error.status, dnnl_unimplemented);
  }
}

}  // namespace
}  // namespace fsdp
