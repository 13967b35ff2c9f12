// SPDX-License-Identifier: Apache-2.0
//
// Debian's libhdf5.a is compiled for programs, as are Abseil's archives: they take the address of the C library's
// stderr and stdout as if they were their own, which no shared library may. BUILD renames the two in copies of the
// archives, and here are the variables. HDF5's own shared library is no choice: it needs libcurl, and its names would
// clash with those of h5py's HDF5.
#include <hdf5.h>

#include <cstdio>

extern "C" {
// Hidden, so that code which is not position-independent reaches them.
[[gnu::visibility("hidden")]] FILE* fsdp_stderr = nullptr;
[[gnu::visibility("hidden")]] FILE* fsdp_stdout = nullptr;
}

namespace {

// Before any function of HDF5 runs: loading the library runs this.
[[gnu::constructor]] void SetStreams() {
  fsdp_stderr = stderr;
  fsdp_stdout = stdout;
  // Every file is closed by who opened it. At the exit of a child that a program has forked while another thread was
  // inside of HDF5, its own handler would wait forever for that thread, which the child has not.
  (void)H5dont_atexit();
}

}  // namespace
