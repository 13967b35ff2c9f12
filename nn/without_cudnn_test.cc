// SPDX-License-Identifier: Apache-2.0
//
// Linked into a test to keep cuDNN out of it: the test uses our own kernels even on a machine that has cuDNN.
// CudnnGpuTest tests cuDNN.
#include <stdlib.h>

namespace fsdp {
namespace {

// Before main, and so before the first call of attention looks for cuDNN.
[[maybe_unused]] const int set = setenv("FSDP_CUDNN", "0", /*overwrite=*/1);

}  // namespace
}  // namespace fsdp
