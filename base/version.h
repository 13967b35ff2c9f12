// SPDX-License-Identifier: Apache-2.0
//
// The version of this release. It is written in one place, MODULE.bazel, from which a rule makes version.cc.
#ifndef FSDP_BASE_VERSION_H_
#define FSDP_BASE_VERSION_H_

namespace fsdp {

// "0.1.0"; what it promises is in docs/compatibility.md.
extern const char kVersion[];

}  // namespace fsdp

#endif  // FSDP_BASE_VERSION_H_
