// SPDX-License-Identifier: Apache-2.0
//
// dlopen(3) for static programs, which always fails. The C library's own would load the machine's libcurl.so.4 or HDF5
// plugin, and with it the machine's C library next to this program's, and crash.
#include <dlfcn.h>

extern "C" {

void* dlopen(const char* /*path*/, int /*mode*/) { return nullptr; }

void* dlsym(void* /*library*/, const char* /*name*/) { return nullptr; }

int dlclose(void* /*library*/) { return -1; }

char* dlerror() {
  static char text[] = "this program is static and loads no library; take the one that is not static";
  return text;
}

}  // extern "C"
