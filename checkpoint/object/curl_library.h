// SPDX-License-Identifier: Apache-2.0
//
// CurlLibrary: the part of libcurl that http_client.h uses, found in the installed shared library when the first object
// store is opened. Only users of object stores need libcurl, so no program is linked with it: a program that was built
// without its headers can upload if the library is installed, and on a machine without it the program runs and names
// the package to install.
//
// The numbers below are libcurl's binary interface (libcurl.so.4, unchanged since 2006); curl_library_test.cc compares
// them with curl/curl.h if it is installed.
#ifndef FSDP_CHECKPOINT_OBJECT_CURL_LIBRARY_H_
#define FSDP_CHECKPOINT_OBJECT_CURL_LIBRARY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

// Values of CURLoption, CURLINFO and CURLcode, by curl's names.
namespace curl {
inline constexpr int kAwsSigV4 = 10305;  // 7.75.0
inline constexpr int kBufferSize = 98;
inline constexpr int kCaInfo = 10065;
inline constexpr int kConnectTimeoutMs = 156;
inline constexpr int kCustomRequest = 10036;
inline constexpr int kErrorBuffer = 10010;
inline constexpr int kHeaderData = 10029;
inline constexpr int kHeaderFunction = 20079;
inline constexpr int kHttpHeader = 10023;
inline constexpr int kHttpVersion = 84;
inline constexpr int kInFileSizeLarge = 30115;
inline constexpr int kLowSpeedLimit = 19;
inline constexpr int kLowSpeedTime = 20;
inline constexpr int kNoBody = 44;
inline constexpr int kNoSignal = 99;
inline constexpr int kPassword = 10174;
inline constexpr int kPathAsIs = 234;
inline constexpr int kPost = 47;
inline constexpr int kPostFields = 10015;
inline constexpr int kPostFieldSizeLarge = 30120;
inline constexpr int kProtocols = 181;
inline constexpr int kRange = 10007;
inline constexpr int kReadData = 10009;
inline constexpr int kReadFunction = 20012;
inline constexpr int kSeekData = 10168;
inline constexpr int kSeekFunction = 20167;
inline constexpr int kTimeoutMs = 155;
inline constexpr int kUpload = 46;
inline constexpr int kUploadBufferSize = 280;
inline constexpr int kUrl = 10002;
inline constexpr int kUserName = 10173;
inline constexpr int kWriteData = 10001;
inline constexpr int kWriteFunction = 20011;

inline constexpr int kHttpVersion11 = 2;
inline constexpr int kProtocolsHttpAndHttps = 3;
inline constexpr int kGlobalDefault = 3;
inline constexpr int kErrorBufferBytes = 256;
inline constexpr size_t kReadAbort = 0x10000000;
}  // namespace curl

// libcurl's functions; handles are CURL* and curl_slist*. Pointers are valid for the life of the process.
struct CurlLibrary {
  void* (*easy_init)() = nullptr;
  void (*easy_reset)(void* handle) = nullptr;
  void (*easy_cleanup)(void* handle) = nullptr;
  int (*easy_setopt)(void* handle, int option, ...) = nullptr;
  int (*easy_perform)(void* handle) = nullptr;
  const char* (*easy_strerror)(int code) = nullptr;
  void* (*slist_append)(void* list, const char* line) = nullptr;
  void (*slist_free_all)(void* list) = nullptr;

  // Loads the library at the first call. kFailedPrecondition, with the package to install, if it is missing or older
  // than 7.75, which cannot sign. Thread-safe.
  static absl::StatusOr<const CurlLibrary*> Load();
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_CURL_LIBRARY_H_
