// SPDX-License-Identifier: Apache-2.0
//
// foreign_stream.h in a build without CUDA.

#include "fsdp/cuda/foreign_stream.h"

namespace fsdp {
namespace {

absl::Status NoCuda() {
  return absl::UnimplementedError("a stream of another library on a GPU: this program was built without CUDA");
}

}  // namespace

absl::StatusOr<Event> RecordForeign(CUstream_st*, int) { return NoCuda(); }

absl::Status MakeForeignWait(CUstream_st*, int, const Event&) { return NoCuda(); }

}  // namespace fsdp
