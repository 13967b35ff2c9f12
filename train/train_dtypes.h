// SPDX-License-Identifier: Apache-2.0
//
// NameTrainDTypes: the flags of dtypes may have names of other programs, such as bf16; a run, its checks and what it
// records have PyTorch's.
#ifndef FSDP_TRAIN_TRAIN_DTYPES_H_
#define FSDP_TRAIN_TRAIN_DTYPES_H_

namespace fsdp {

// Sets --dtype, --param_dtype, --reduce_dtype, --buffer_dtype and --output_dtype to PyTorch's names of what they have.
// One that is no floating-point dtype stays.
void NameTrainDTypes();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAIN_DTYPES_H_
