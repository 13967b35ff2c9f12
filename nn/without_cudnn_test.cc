// SPDX-License-Identifier: Apache-2.0
//
// Linked into a test, keeps cuDNN out of it: on a machine that has cuDNN the test is of our own kernels all the same.
// CudnnGpuTest is of cuDNN.
#include <stdlib.h>

namespace fsdp {
namespace {

// Before main, and so before the first call of attention asks for cuDNN.
[[maybe_unused]] const int set = setenv("FSDP_CUDNN", "0", /*overwrite=*/1);

}  // namespace
}  // namespace fsdp
