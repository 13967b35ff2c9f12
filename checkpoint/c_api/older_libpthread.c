/* SPDX-License-Identifier: Apache-2.0
 *
 * libpthread.so.0 as before glibc 2.34, only for the linker: the functions that libfsdp_checkpoint.so calls, with
 * the versions of older_glibc.map. See older_glibc.cc. */
void pthread_create(void) {}
void pthread_getspecific(void) {}
void pthread_join(void) {}
void pthread_key_create(void) {}
void pthread_once(void) {}
void pthread_setname_np(void) {}
void pthread_setspecific(void) {}
void pthread_sigmask(void) {}
