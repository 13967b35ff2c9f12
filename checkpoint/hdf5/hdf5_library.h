// SPDX-License-Identifier: Apache-2.0
//
// The rules and helpers for every caller of HDF5's C API: one call at a time, errors as absl::Status, identifiers that
// close themselves. Only for sources that use HDF5, so that its macros stay in them.
#ifndef FSDP_CHECKPOINT_HDF5_HDF5_LIBRARY_H_
#define FSDP_CHECKPOINT_HDF5_HDF5_LIBRARY_H_

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// Held during every call into the library, which is not thread-safe as distributions build it. The constructor blocks
// until no other thread is inside, and turns off the printing of errors; the destructor restores the setting of the
// surrounding program.
class Hdf5LibraryCall {
 public:
  Hdf5LibraryCall();
  ~Hdf5LibraryCall();
  Hdf5LibraryCall(const Hdf5LibraryCall&) = delete;
  Hdf5LibraryCall& operator=(const Hdf5LibraryCall&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* print_data_ = nullptr;
};

// kInternal, "HDF5 cannot OPERATION NAME: ", with the innermost message of the library's error stack.
absl::Status Hdf5Error(const std::string& operation, const std::string& name);

// Owns an identifier of the library and closes it. Used and destroyed only while a Hdf5LibraryCall is held.
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Handle() { Close(); }

  hid_t get() const { return id_; }
  bool ok() const { return id_ >= 0; }

  // False if the library fails to close it; the last bytes of a file may then be missing. Idempotent.
  bool Close() {
    const hid_t id = std::exchange(id_, -1);
    return id < 0 || close_(id) >= 0;
  }

 private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

// The names of the two fields of a complex number's compound. h5py shows {r, i} as a complex number; it has no complex
// number of half precision, and up to 3.7 cannot open such a pair with these names, so complex32 uses others.
struct ComplexFields {
  const char* real;
  const char* imaginary;
};

// The names for `dtype`, which must be a complex one.
inline ComplexFields ComplexFieldsOf(DType dtype) {
  return dtype == DType::kComplex32 ? ComplexFields{"real", "imag"} : ComplexFields{"r", "i"};
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_HDF5_HDF5_LIBRARY_H_
