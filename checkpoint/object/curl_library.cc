// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/curl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

// The names of Debian's two builds; git depends on the second.
constexpr const char* kNames[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

// The beginning of curl_version_info_data.
struct VersionInfo {
  int age;
  const char* version;
  unsigned int version_num;  // 0x074B00: 7.75.0
};
constexpr unsigned int kFirstThatSigns = 0x074B00;

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

absl::StatusOr<const CurlLibrary*> LoadOnce() {
  void* library = nullptr;
  for (const char* name : kNames) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("object stores want libcurl.so.4, which is not installed here (",
                                                      dlerror(), "): apt-get install libcurl4"));
  }
  // Never unloaded: threads may be inside the library until the process ends.
  static CurlLibrary curl;
  int (*global_init)(long) = nullptr;  // NOLINT(runtime/int): curl's own type
  const VersionInfo* (*version_info)(int) = nullptr;
  const bool found =
      Find(library, "curl_easy_init", curl.easy_init) && Find(library, "curl_easy_reset", curl.easy_reset) &&
      Find(library, "curl_easy_cleanup", curl.easy_cleanup) && Find(library, "curl_easy_setopt", curl.easy_setopt) &&
      Find(library, "curl_easy_perform", curl.easy_perform) &&
      Find(library, "curl_easy_strerror", curl.easy_strerror) &&
      Find(library, "curl_slist_append", curl.slist_append) &&
      Find(library, "curl_slist_free_all", curl.slist_free_all) && Find(library, "curl_global_init", global_init) &&
      Find(library, "curl_version_info", version_info);
  if (!found) return absl::FailedPreconditionError(absl::StrCat("the installed libcurl.so.4 lacks ", dlerror()));
  const VersionInfo* version = version_info(0);
  if (version->version_num < kFirstThatSigns) {
    return absl::FailedPreconditionError(absl::StrCat(
        "object stores want libcurl 7.75 or later, which signs requests; installed is ", version->version));
  }
  // Before the first handle, and only once: older releases of global_init are not thread-safe. Load's static ensures
  // both.
  if (const int code = global_init(curl::kGlobalDefault); code != 0) {
    return absl::FailedPreconditionError(absl::StrCat("libcurl does not start: ", curl.easy_strerror(code)));
  }
  return &curl;
}

}  // namespace

absl::StatusOr<const CurlLibrary*> CurlLibrary::Load() {
  static const auto* loaded = new absl::StatusOr<const CurlLibrary*>(LoadOnce());
  return *loaded;
}

}  // namespace fsdp
