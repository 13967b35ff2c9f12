// SPDX-License-Identifier: Apache-2.0
//
// Debian's libhdf5.a is compiled for programs, as are Abseil's archives: they take the address of the C library's
// stderr and stdout as if they were part of the same program, which a shared library must not. BUILD renames the two in
// copies of the archives; these are the renamed variables. HDF5's own shared library is not an option: it needs
// libcurl, and its names would clash with h5py's HDF5.
#include <hdf5.h>

#include <cstdio>

extern "C" {
// Hidden, so that code that is not position-independent can reference them.
[[gnu::visibility("hidden")]] FILE* fsdp_stderr = nullptr;
[[gnu::visibility("hidden")]] FILE* fsdp_stdout = nullptr;
}

namespace {

// Before any function of HDF5 runs: the loader calls this.
[[gnu::constructor]] void SetStreams() {
  fsdp_stderr = stderr;
  fsdp_stdout = stdout;
  // Every file is closed by its owner, so HDF5's exit handler is not needed. In a child that was forked while another
  // thread was inside HDF5, it would wait forever for that thread, which does not exist in the child.
  (void)H5dont_atexit();
}

}  // namespace
