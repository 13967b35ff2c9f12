// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/s3_store.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/checkpoint/object/curl_library.h"
#include "fsdp/checkpoint/object/fake_object_store.h"
#include "fsdp/checkpoint/object/fake_s3_server.h"
#include "fsdp/checkpoint/object/reference_aws_signature.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Fault = FakeS3Server::Fault;

constexpr int64_t kPartBytes = 1000;

// Amazon's "Signature Calculations for the Authorization Header", the examples of a GET with a range and of a list,
// with the keys of that page.
TEST(ReferenceAwsSignatureTest, TheVectorsThatAmazonPublishedAreMet) {
  const std::string secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
  const std::string empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
  SignedRequest request = {.method = "GET",
                           .path = "/test.txt",
                           .query = "",
                           .headers = {{"host", "examplebucket.s3.amazonaws.com"},
                                       {"range", "bytes=0-9"},
                                       {"x-amz-content-sha256", empty},
                                       {"x-amz-date", "20130524T000000Z"}},
                           .signed_headers = {"host", "range", "x-amz-content-sha256", "x-amz-date"},
                           .payload = empty,
                           .region = "us-east-1"};
  EXPECT_EQ(AwsSignature(request, secret), "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  request.path = "/";
  request.query = "prefix=J&max-keys=2";
  request.headers.erase("range");
  request.signed_headers = {"host", "x-amz-content-sha256", "x-amz-date"};
  EXPECT_EQ(AwsSignature(request, secret), "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

class S3StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const absl::StatusOr<const CurlLibrary*> curl = CurlLibrary::Load(); !curl.ok()) {
      GTEST_SKIP() << curl.status().message();
    }
    ASSERT_OK_AND_ASSIGN(server_, FakeS3Server::Start(bucket_));
    ASSERT_OK_AND_ASSIGN(store_, Open(server_->config()));
  }

  void TearDown() override {
    if (server_ != nullptr) {
      EXPECT_EQ(server_->refused(), expected_refusals_);
    }
  }

  static absl::StatusOr<std::unique_ptr<ObjectStore>> Open(const AwsConfig& config,
                                                           const std::string& bucket = "models",
                                                           absl::Duration stall_timeout = absl::Seconds(30)) {
    S3Options options;
    options.attempts = 3;
    options.first_pause = absl::Milliseconds(1);
    options.part_bytes = kPartBytes;
    options.threads = 2;
    options.stall_timeout = stall_timeout;
    return OpenS3Store(bucket, config, options);
  }

  absl::StatusOr<std::string> GetRange(const std::string& key, const ByteRange& range) {
    std::string bytes;
    FSDP_RETURN_IF_ERROR(store_->Get(key, range, [&](absl::Span<const std::byte> piece) {
      bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      return absl::OkStatus();
    }));
    return bytes;
  }

  FakeObjectStore bucket_{kPartBytes * 100};
  std::unique_ptr<FakeS3Server> server_;
  std::unique_ptr<ObjectStore> store_;
  int expected_refusals_ = 0;
};

// Bytes that depend on their position.
std::string Bytes(size_t nbytes) {
  std::string bytes(nbytes, '\0');
  for (size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  return bytes;
}

TEST_F(S3StoreTest, WhatIsPutIsThereWithItsSize) {
  const std::string bytes = Bytes(777);
  EXPECT_OK(store_->Put("run/a b+c&d=e(é)~.json", TextBody(bytes)));
  EXPECT_EQ(bucket_.objects().at("run/a b+c&d=e(é)~.json"), bytes);
  EXPECT_OK(store_->Put("run/empty", TextBody("")));
  ASSERT_OK_AND_ASSIGN(const int64_t nbytes, store_->Size("run/a b+c&d=e(é)~.json"));
  EXPECT_EQ(nbytes, 777);
  ASSERT_OK_AND_ASSIGN(const std::string read, GetObject(*store_, "run/a b+c&d=e(é)~.json", 777));
  EXPECT_EQ(read, bytes);
  ASSERT_OK_AND_ASSIGN(const std::string empty, GetObject(*store_, "run/empty", 10));
  EXPECT_EQ(empty, "");
  EXPECT_THAT(GetObject(*store_, "run/a b+c&d=e(é)~.json", 776),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("777 bytes, expected at most 776")));
}

TEST_F(S3StoreTest, NoFunctionTakesAKeyThatIsAnotherKeyAsAPath) {
  for (const std::string key : {"run/../victim", "..", "run/./a", "run//a", "/run", "run/a\n", "run/\x1b[31m"}) {
    const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected no empty, . or .. part"));
    for (ObjectStore* store : {store_.get(), static_cast<ObjectStore*>(&bucket_)}) {
      EXPECT_THAT(store->Put(key, TextBody("x")), refused) << key;
      EXPECT_THAT(store->PutIfAbsent(key, "x"), refused) << key;
      EXPECT_THAT(store->Get(key, {0, 1}, [](absl::Span<const std::byte>) { return absl::OkStatus(); }), refused)
          << key;
      EXPECT_THAT(store->Size(key), refused) << key;
      EXPECT_THAT(store->Delete(key), refused) << key;
      EXPECT_THAT(store->List(key, /*one_level=*/true), refused) << key;
      EXPECT_THAT(store->AbortUploads(key), refused) << key;
    }
  }
  EXPECT_THAT(bucket_.objects(), IsEmpty());
}

TEST_F(S3StoreTest, ALongObjectIsPutInParts) {
  const std::string bytes = Bytes(10 * kPartBytes + 1);
  EXPECT_OK(store_->Put("run/long", TextBody(bytes)));
  EXPECT_EQ(bucket_.objects().at("run/long"), bytes);
  EXPECT_THAT(bucket_.uploads(), IsEmpty());
  EXPECT_EQ(server_->requests().size(), 13u);
}

TEST_F(S3StoreTest, ARangeIsReadAlone) {
  const std::string bytes = Bytes(5000);
  bucket_.SetObject("run/x", bytes);
  ASSERT_OK_AND_ASSIGN(const std::string middle, GetRange("run/x", {1234, 100}));
  EXPECT_EQ(middle, bytes.substr(1234, 100));
  ASSERT_OK_AND_ASSIGN(const std::string nothing, GetRange("run/x", {5000, 0}));
  EXPECT_EQ(nothing, "");
  EXPECT_THAT(GetRange("run/x", {4990, 11}), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("s3://models/run/x")));
  EXPECT_THAT(GetRange("run/x", {6000, 1}), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("416")));
}

TEST_F(S3StoreTest, AListingHasAllPagesOrOneLevel) {
  std::vector<ObjectEntry> all;
  for (int i = 0; i < 8; ++i) {
    const std::string key = absl::StrCat("run/step-", i / 3, "/", i);
    bucket_.SetObject(key, Bytes(i));
    all.push_back({key, i});
  }
  bucket_.SetObject("running", "1");
  ASSERT_OK_AND_ASSIGN(const ObjectListing listing, store_->List("run/", false));
  EXPECT_EQ(listing.objects, all);
  EXPECT_THAT(listing.folders, IsEmpty());
  bucket_.SetObject("run/note", "1");
  ASSERT_OK_AND_ASSIGN(const ObjectListing level, store_->List("run/", true));
  EXPECT_THAT(level.objects, ElementsAre(ObjectEntry{"run/note", 1}));
  EXPECT_THAT(level.folders, ElementsAre("run/step-0/", "run/step-1/", "run/step-2/"));
}

TEST_F(S3StoreTest, OnlyTheFirstConditionalPutSucceeds) {
  EXPECT_OK(store_->PutIfAbsent("run/manifest.json", "first"));
  EXPECT_THAT(store_->PutIfAbsent("run/manifest.json", "second"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("412 PreconditionFailed")));
  EXPECT_EQ(bucket_.objects().at("run/manifest.json"), "first");
}

TEST_F(S3StoreTest, ADeletedObjectIsGoneAndMayBeDeletedAgain) {
  bucket_.SetObject("run/x", "1");
  EXPECT_OK(store_->Delete("run/x"));
  EXPECT_OK(store_->Delete("run/x"));
  EXPECT_THAT(bucket_.objects(), IsEmpty());
  EXPECT_THAT(store_->Size("run/x"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("s3://models/run/x")));
}

TEST_F(S3StoreTest, UploadsThatWereLeftAreAbortedByPrefix) {
  for (int i = 0; i < 5; ++i) ASSERT_OK(bucket_.CreateUpload(absl::StrCat("run/", i)).status());
  ASSERT_OK(bucket_.CreateUpload("other/x").status());
  EXPECT_OK(store_->AbortUploads("run/"));
  ASSERT_EQ(bucket_.uploads().size(), 1u);
  EXPECT_EQ(bucket_.uploads().begin()->second, "other/x");
}

TEST_F(S3StoreTest, AListingOfOneKeyAPageIsNotFollowedForever) {
  server_->InjectFaults(std::vector<Fault>(1100, Fault::kOneKeyPage));
  EXPECT_THAT(store_->List("run/", /*one_level=*/false),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("1000 pages have 1000 keys")));
}

TEST_F(S3StoreTest, ARequestIsRepeatedWhileTheStoreIsInTrouble) {
  server_->InjectFaults({Fault::kSlowDown, Fault::kBadGateway});
  EXPECT_OK(store_->Put("run/x", TextBody("1")));
  server_->InjectFaults({Fault::kDrop, Fault::kDropAfter});
  EXPECT_OK(store_->Put("run/y", TextBody("2")));
  EXPECT_EQ(bucket_.objects().size(), 2u);
  server_->InjectFaults({Fault::kSlowDown, Fault::kSlowDown, Fault::kSlowDown});
  EXPECT_THAT(store_->Put("run/z", TextBody("3")),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("s3://models/run/z"), HasSubstr("503 SlowDown"), HasSubstr("3 attempts"))));
  EXPECT_EQ(bucket_.objects().size(), 2u);
}

TEST_F(S3StoreTest, AGetGoesOnWhereItWasCut) {
  const std::string bytes = Bytes(100'000);
  bucket_.SetObject("run/x", bytes);
  server_->InjectFaults({Fault::kCutReply, Fault::kCutReply});
  ASSERT_OK_AND_ASSIGN(const std::string read, GetRange("run/x", {10, 99'000}));
  EXPECT_EQ(read, bytes.substr(10, 99'000));
  EXPECT_EQ(server_->requests().size(), 3u);
}

// Regression: a store that sent a byte a second held a pull for as long as it liked.
TEST_F(S3StoreTest, AStoreThatIsSilentOrTricklesEndsEveryRequestInTime) {
  const std::string bytes = Bytes(100'000);
  bucket_.SetObject("run/x", bytes);
  for (int i = 0; i < 100; ++i) bucket_.SetObject(absl::StrCat("long/", i, std::string(800, 'k')), "");
  ASSERT_OK_AND_ASSIGN(store_, Open(server_->config(), "models", absl::Seconds(1)));
  for (const Fault fault : {Fault::kSilent, Fault::kTrickle, Fault::kTrickleBody}) {
    SCOPED_TRACE(static_cast<int>(fault));
    server_->InjectFaults(std::vector<Fault>(100, fault));
    std::vector<absl::Status> ended(4);
    const std::vector<std::function<absl::Status()>> requests = {
        [&] {
          return GetRange("run/x", {0, 100'000}).status();
        },
        [&] { return store_->List("long/", false).status(); },
        [&] { return store_->Put("run/y", TextBody("1")); },
        [&] { return store_->Size("run/x").status(); },
    };
    const absl::Time began = SteadyNow();
    std::vector<std::thread> threads;
    for (size_t i = 0; i < requests.size(); ++i) threads.emplace_back([&, i] { ended[i] = requests[i](); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_LT(SteadyNow() - began, absl::Seconds(18));
    for (size_t i = 0; i < requests.size(); ++i) {
      // Replies without a body have nothing to trickle but headers, which may end within the second.
      if (i >= 2 && fault != Fault::kSilent) continue;
      EXPECT_THAT(ended[i], StatusIs(absl::StatusCode::kUnavailable,
                                     AllOf(HasSubstr("s3://models/"), HasSubstr("Operation too slow"))))
          << i;
    }
  }
}

TEST_F(S3StoreTest, AnotherRangeThanWasAskedForIsRefused) {
  bucket_.SetObject("run/x", Bytes(100));
  server_->InjectFaults({Fault::kWrongRange});
  EXPECT_THAT(GetRange("run/x", {10, 20}),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("bytes 7-8/9"), HasSubstr("expected bytes 10-"))));
}

TEST_F(S3StoreTest, APutInPartsSurvivesErrorsAndLostReplies) {
  const std::string bytes = Bytes(3 * kPartBytes);
  // The five requests are: begin, three parts, end.
  for (int request = 0; request < 5; ++request) {
    for (const Fault fault : {Fault::kSlowDown, Fault::kDrop, Fault::kDropAfter}) {
      SCOPED_TRACE(absl::StrCat("fault ", static_cast<int>(fault), " at request ", request));
      const std::string key = absl::StrCat("run/", request, "-", static_cast<int>(fault));
      std::vector<Fault> faults(request, Fault::kNone);
      faults.push_back(fault);
      server_->InjectFaults(faults);
      EXPECT_OK(store_->Put(key, TextBody(bytes)));
      EXPECT_EQ(bucket_.objects()[key], bytes);
    }
  }
  server_->InjectFaults({Fault::kNone, Fault::kNone, Fault::kNone, Fault::kNone, Fault::kErrorInSuccess});
  EXPECT_OK(store_->Put("run/last", TextBody(bytes)));
  EXPECT_EQ(bucket_.objects()["run/last"], bytes);
}

TEST_F(S3StoreTest, APutInPartsThatFailsLeavesNoUpload) {
  ObjectBody body = TextBody("");
  body.nbytes = 3 * kPartBytes;
  body.read = [](int64_t offset, absl::Span<std::byte> out) {
    if (offset >= 2 * kPartBytes) return absl::DataLossError("the file ends");
    std::fill(out.begin(), out.end(), std::byte{1});
    return absl::OkStatus();
  };
  EXPECT_THAT(store_->Put("run/x", body), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the file ends")));
  EXPECT_THAT(bucket_.uploads(), IsEmpty());
  EXPECT_THAT(bucket_.objects(), IsEmpty());
}

TEST_F(S3StoreTest, WrongKeysAreAnErrorThatSaysWhatToDoAndShowsNone) {
  AwsConfig config = server_->config();
  config.credentials.secret_access_key = "squeamish";
  expected_refusals_ = 1;
  ASSERT_OK_AND_ASSIGN(store_, Open(config));
  EXPECT_THAT(store_->Put("run/x", TextBody("1")),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("403 SignatureDoesNotMatch"), HasSubstr("AWS_PROFILE"),
                             HasSubstr("s3:GetObject"), Not(HasSubstr("squeamish")), Not(HasSubstr("session/token")))));
}

TEST_F(S3StoreTest, AMissingBucketIsNamed) {
  ASSERT_OK_AND_ASSIGN(store_, Open(server_->config(), "absent"));
  EXPECT_THAT(store_->List("run/", true),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("s3://absent/run/"), HasSubstr("NoSuchBucket"), HasSubstr("make the bucket"))));
}

TEST_F(S3StoreTest, NobodyAtTheEndpointIsAnErrorThatNamesIt) {
  const AwsConfig config = server_->config();
  server_.reset();
  EXPECT_THAT(store_->Size("run/x"),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("s3://models/run/x"), HasSubstr(config.endpoint), HasSubstr("3 attempts"))));
}

}  // namespace
}  // namespace fsdp
