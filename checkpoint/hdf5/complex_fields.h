// SPDX-License-Identifier: Apache-2.0
//
// ComplexFields: what the two fields of a complex number's compound are called. h5py shows {r, i} as a complex number;
// of halves it has none, and up to 3.7 cannot open such a pair by these names, so they have others.
#ifndef FSDP_CHECKPOINT_HDF5_COMPLEX_FIELDS_H_
#define FSDP_CHECKPOINT_HDF5_COMPLEX_FIELDS_H_

#include "fsdp/tensor/dtype.h"

namespace fsdp {

struct ComplexFields {
  const char* real;
  const char* imaginary;
};

// Of a complex dtype.
inline ComplexFields ComplexFieldsOf(DType dtype) {
  return dtype == DType::kComplex32 ? ComplexFields{"real", "imag"} : ComplexFields{"r", "i"};
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_HDF5_COMPLEX_FIELDS_H_
