// SPDX-License-Identifier: Apache-2.0
//
// Debian's libhdf5.a is compiled for programs: it takes the address of the C library's stderr and stdout as if they
// were its own, which no shared library may. BUILD renames the two in a copy of the archive, and here are the
// variables. HDF5's own shared library is no choice: it needs libcurl, and its names would clash with those of h5py's
// HDF5.
#include <cstdio>

extern "C" {
// Hidden, so that code which is not position-independent reaches them.
[[gnu::visibility("hidden")]] FILE* fsdp_hdf5_stderr = nullptr;
[[gnu::visibility("hidden")]] FILE* fsdp_hdf5_stdout = nullptr;
}

namespace {

// Before any function of HDF5 runs: loading the library runs this.
[[gnu::constructor]] void SetStreams() {
  fsdp_hdf5_stderr = stderr;
  fsdp_hdf5_stdout = stdout;
}

}  // namespace
