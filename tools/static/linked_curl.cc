// SPDX-License-Identifier: Apache-2.0
//
// dlopen(3) for the static ckpt, which has libcurl linked in: it "loads" libcurl.so.4, and nothing else. What loads
// libcurl (checkpoint/object/curl_library.h) is the same in both programs. The C library's own dlopen would load the
// machine's library, and with it the machine's C library next to this program's, and crash.
//
// Debian's archive of libcurl speaks more than HTTP, by libraries of which Debian has no archive (Kerberos) or that
// nothing here uses (SSH, LDAP, RTMP, HTTP/2, ...). //tools/static:absent_functions has a function that returns 0 for
// each that is missing; the two below must return something else. http_client.h asks for HTTP/1.1 only.
#include <dlfcn.h>
#include <unistd.h>

#include <string_view>

extern "C" {

int curl_easy_perform(void* handle);
int curl_easy_setopt(void* handle, int option, ...);
int curl_global_init(long flags);  // NOLINT(runtime/int): curl's own type
const char* curl_easy_strerror(int code);
void curl_easy_cleanup(void* handle);
void curl_easy_reset(void* handle);
void curl_slist_free_all(void* list);
void* curl_easy_init();
void* curl_slist_append(void* list, const char* line);
void* curl_version_info(int age);

// curl_version_info reads the result, the beginning of which is this.
const void* nghttp2_version(int /*least_version*/) {
  static constexpr struct {
    int age;
    int version_num;
    const char* version;
  } kNone = {0, 0, "none"};
  return &kNone;
}

// An error: a host name that is not ASCII is refused.
int idn2_lookup_ul(const char* /*name*/, char** /*ascii*/, int /*flags*/) { return -1; }

}  // extern "C"

namespace {

constexpr int kCaInfo = 10065;  // CURLOPT_CAINFO

// The archive knows only Debian's place of the certificates, and a static program runs everywhere.
constexpr const char* kCertificates[] = {
    "/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",    // Fedora, Red Hat
    "/etc/ssl/ca-bundle.pem",              // openSUSE
    "/etc/ssl/cert.pem",                   // Alpine
};

void SetCertificates(void* handle) {
  for (const char* path : kCertificates) {
    if (access(path, R_OK) != 0) continue;
    curl_easy_setopt(handle, kCaInfo, path);
    return;
  }
}

void* NewHandle() {
  void* const handle = curl_easy_init();
  if (handle != nullptr) SetCertificates(handle);
  return handle;
}

void ResetHandle(void* handle) {
  curl_easy_reset(handle);
  SetCertificates(handle);
}

struct Symbol {
  std::string_view name;
  void* function;
};
const Symbol kCurl[] = {
    {"curl_easy_cleanup", reinterpret_cast<void*>(curl_easy_cleanup)},
    {"curl_easy_init", reinterpret_cast<void*>(NewHandle)},
    {"curl_easy_perform", reinterpret_cast<void*>(curl_easy_perform)},
    {"curl_easy_reset", reinterpret_cast<void*>(ResetHandle)},
    {"curl_easy_setopt", reinterpret_cast<void*>(curl_easy_setopt)},
    {"curl_easy_strerror", reinterpret_cast<void*>(curl_easy_strerror)},
    {"curl_global_init", reinterpret_cast<void*>(curl_global_init)},
    {"curl_slist_append", reinterpret_cast<void*>(curl_slist_append)},
    {"curl_slist_free_all", reinterpret_cast<void*>(curl_slist_free_all)},
    {"curl_version_info", reinterpret_cast<void*>(curl_version_info)},
};

}  // namespace

extern "C" {

void* dlopen(const char* path, int /*mode*/) {
  const bool is_curl = path != nullptr && std::string_view(path) == "libcurl.so.4";
  return is_curl ? const_cast<Symbol*>(kCurl) : nullptr;
}

void* dlsym(void* library, const char* name) {
  if (library != kCurl) return nullptr;
  for (const Symbol& symbol : kCurl) {
    if (symbol.name == name) return symbol.function;
  }
  return nullptr;
}

int dlclose(void* library) { return library == kCurl ? 0 : -1; }

char* dlerror() {
  static char text[] = "this program is static and loads no library; take the one that is not static";
  return text;
}

}  // extern "C"
