// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/hdf5/hdf5_library.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

// One lock for the process: distributions build HDF5 without its thread-safety option.
std::mutex& LibraryMutex() {
  static std::mutex mutex;
  return mutex;
}

// A callback of H5Ewalk2 that takes the innermost message of the error stack: outer messages only repeat that a call
// has failed. Walking upward begins with the innermost message, number 0.
herr_t TakeInnermost(unsigned n, const H5E_error2_t* error, void* out) {
  if (n == 0 && error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
  return 0;
}

}  // namespace

Hdf5LibraryCall::Hdf5LibraryCall() : lock_(LibraryMutex()) {
  H5Eget_auto2(H5E_DEFAULT, &print_, &print_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5LibraryCall::~Hdf5LibraryCall() {
  H5Eclear2(H5E_DEFAULT);
  H5Eset_auto2(H5E_DEFAULT, print_, print_data_);
}

absl::Status Hdf5Error(const std::string& operation, const std::string& name) {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, TakeInnermost, &reason);
  return absl::InternalError(absl::StrCat("HDF5 cannot ", operation, " ", Printable(name), ": ", reason));
}

}  // namespace fsdp
