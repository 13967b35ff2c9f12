// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/curl_library.h"

#include "gtest/gtest.h"

#if __has_include(<curl/curl.h>)
#define CURL_DISABLE_DEPRECATION
#include <curl/curl.h>
#endif

namespace fsdp {
namespace {

TEST(CurlLibraryTest, TheNumbersAreThoseOfTheInstalledHeader) {
#ifdef LIBCURL_VERSION_NUM
  EXPECT_EQ(curl::kAwsSigV4, CURLOPT_AWS_SIGV4);
  EXPECT_EQ(curl::kBufferSize, CURLOPT_BUFFERSIZE);
  EXPECT_EQ(curl::kCaInfo, CURLOPT_CAINFO);
  EXPECT_EQ(curl::kConnectTimeoutMs, CURLOPT_CONNECTTIMEOUT_MS);
  EXPECT_EQ(curl::kCustomRequest, CURLOPT_CUSTOMREQUEST);
  EXPECT_EQ(curl::kErrorBuffer, CURLOPT_ERRORBUFFER);
  EXPECT_EQ(curl::kHeaderData, CURLOPT_HEADERDATA);
  EXPECT_EQ(curl::kHeaderFunction, CURLOPT_HEADERFUNCTION);
  EXPECT_EQ(curl::kHttpHeader, CURLOPT_HTTPHEADER);
  EXPECT_EQ(curl::kHttpVersion, CURLOPT_HTTP_VERSION);
  EXPECT_EQ(curl::kInFileSizeLarge, CURLOPT_INFILESIZE_LARGE);
  EXPECT_EQ(curl::kLowSpeedLimit, CURLOPT_LOW_SPEED_LIMIT);
  EXPECT_EQ(curl::kLowSpeedTime, CURLOPT_LOW_SPEED_TIME);
  EXPECT_EQ(curl::kNoBody, CURLOPT_NOBODY);
  EXPECT_EQ(curl::kNoSignal, CURLOPT_NOSIGNAL);
  EXPECT_EQ(curl::kPassword, CURLOPT_PASSWORD);
  EXPECT_EQ(curl::kPathAsIs, CURLOPT_PATH_AS_IS);
  EXPECT_EQ(curl::kPost, CURLOPT_POST);
  EXPECT_EQ(curl::kPostFields, CURLOPT_POSTFIELDS);
  EXPECT_EQ(curl::kPostFieldSizeLarge, CURLOPT_POSTFIELDSIZE_LARGE);
  EXPECT_EQ(curl::kProtocols, CURLOPT_PROTOCOLS);
  EXPECT_EQ(curl::kRange, CURLOPT_RANGE);
  EXPECT_EQ(curl::kReadData, CURLOPT_READDATA);
  EXPECT_EQ(curl::kReadFunction, CURLOPT_READFUNCTION);
  EXPECT_EQ(curl::kSeekData, CURLOPT_SEEKDATA);
  EXPECT_EQ(curl::kSeekFunction, CURLOPT_SEEKFUNCTION);
  EXPECT_EQ(curl::kTimeoutMs, CURLOPT_TIMEOUT_MS);
  EXPECT_EQ(curl::kUpload, CURLOPT_UPLOAD);
  EXPECT_EQ(curl::kUploadBufferSize, CURLOPT_UPLOAD_BUFFERSIZE);
  EXPECT_EQ(curl::kUrl, CURLOPT_URL);
  EXPECT_EQ(curl::kUserName, CURLOPT_USERNAME);
  EXPECT_EQ(curl::kWriteData, CURLOPT_WRITEDATA);
  EXPECT_EQ(curl::kWriteFunction, CURLOPT_WRITEFUNCTION);
  EXPECT_EQ(curl::kHttpVersion11, CURL_HTTP_VERSION_1_1);
  EXPECT_EQ(curl::kProtocolsHttpAndHttps, CURLPROTO_HTTP | CURLPROTO_HTTPS);
  EXPECT_EQ(curl::kGlobalDefault, CURL_GLOBAL_DEFAULT);
  EXPECT_EQ(curl::kErrorBufferBytes, CURL_ERROR_SIZE);
  EXPECT_EQ(curl::kReadAbort, CURL_READFUNC_ABORT);
#else
  GTEST_SKIP() << "curl/curl.h is not installed (libcurl4-openssl-dev): there is nothing to compare with";
#endif
}

TEST(CurlLibraryTest, TheLibraryIsFoundOrTheErrorNamesThePackage) {
  const absl::StatusOr<const CurlLibrary*> curl = CurlLibrary::Load();
  if (!curl.ok()) {
    EXPECT_EQ(curl.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(curl.status().message().find("libcurl"), absl::string_view::npos) << curl.status();
    return;
  }
  void* handle = (*curl)->easy_init();
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ((*curl)->easy_setopt(handle, curl::kAwsSigV4, "aws:amz:us-east-1:s3"), 0);
  (*curl)->easy_cleanup(handle);
}

}  // namespace
}  // namespace fsdp
