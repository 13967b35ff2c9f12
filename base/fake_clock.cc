// SPDX-License-Identifier: Apache-2.0
//
// A test that links :fake_clock, or a program that libfake_clock.so is preloaded into, has a system's clock that is an
// hour ahead and an hour behind in turns of 10 ms, as if it were set all the time and differed from every other host's.
// The definition here precedes the C library's; the kernel's own waits and the times of files are not affected.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result != 0 || clock != CLOCK_REALTIME) return result;
  timespec steady;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &steady);
  time->tv_sec += steady.tv_nsec / 10'000'000 % 2 == 0 ? 3600 : -3600;
  return 0;
}
