/* SPDX-License-Identifier: Apache-2.0
 *
 * libdl.so.2 as before glibc 2.34, only for the linker: the functions that libfsdp_checkpoint.so calls, with the
 * versions of older_glibc.map. See older_glibc.cc. */
void dlclose(void) {}
void dlerror(void) {}
void dlopen(void) {}
void dlsym(void) {}
