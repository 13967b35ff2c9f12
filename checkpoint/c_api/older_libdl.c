/* SPDX-License-Identifier: Apache-2.0
 *
 * libdl.so.2 as it was before glibc 2.34, for the linker alone: the functions that libfsdp_checkpoint.so calls, with the
 * versions of older_glibc.map. See older_glibc.cc. */
void dlclose(void) {}
void dlerror(void) {}
void dlopen(void) {}
void dlsym(void) {}
