// SPDX-License-Identifier: Apache-2.0
//
// SetThreadName: the name under which debuggers, profilers and `top -H` show a thread.
#ifndef FSDP_BASE_THREAD_NAME_H_
#define FSDP_BASE_THREAD_NAME_H_

#include <pthread.h>

#include <cstddef>
#include <string>

namespace fsdp {

// Names the calling thread. Linux refuses names of more than 15 bytes, so a longer name is cut to its first 15. The
// name is only for people: nothing in the library reads it.
inline void SetThreadName(const std::string& name) {
  constexpr size_t kMaxThreadName = 15;
  pthread_setname_np(pthread_self(), name.substr(0, kMaxThreadName).c_str());
}

}  // namespace fsdp

#endif  // FSDP_BASE_THREAD_NAME_H_
