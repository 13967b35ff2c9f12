// SPDX-License-Identifier: Apache-2.0
//
// The device that tests of kernels run on, chosen by the test's dependency: //nn:host_test_device, or
// //nn:cuda_test_device, which skips all tests if there is no GPU, or its emulated twin.
#ifndef FSDP_NN_DEVICE_TESTUTIL_H_
#define FSDP_NN_DEVICE_TESTUTIL_H_

#include <functional>
#include <memory>
#include <vector>

#include "fsdp/tensor/device.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// The device is made at the first call and serves the whole program. Thread-safe.
const std::shared_ptr<Device>& TestDevice();

// The dtypes that the device's kernels compute in.
std::vector<DType> ActivationDTypes();

// Calls `body` once for each instruction set that the device's kernels choose from: on a GPU that is one.
void ForEachInstructionSet(const std::function<void()>& body);

}  // namespace fsdp

#endif  // FSDP_NN_DEVICE_TESTUTIL_H_
