// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/aws_config.h"

#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class AwsConfigTest : public testing::Test {
 protected:
  AwsConfigTest() {
    home_ = absl::StrCat(testing::TempDir(), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(home_ + "/.aws");
    variables_["HOME"] = home_;
  }

  void Write(const std::string& name, const std::string& text) { std::ofstream(home_ + "/" + name) << text; }

  absl::StatusOr<AwsConfig> Load() const {
    return LoadAwsConfig([this](const char* name) -> std::optional<std::string> {
      const auto variable = variables_.find(name);
      return variable == variables_.end() ? std::nullopt : std::optional<std::string>(variable->second);
    });
  }

  std::string home_;
  std::map<std::string, std::string> variables_;
};

constexpr char kCredentials[] = R"(# mine
[default]
aws_access_key_id = AKIDDEFAULT
aws_secret_access_key=default/secret
[ work ]
aws_access_key_id=AKIDWORK
aws_secret_access_key=work+secret
aws_session_token = token==
)";

constexpr char kConfig[] = R"([default]
region = eu-central-1
s3 =
  addressing_style = path
  region = nested
[profile work]
region=us-west-2
endpoint_url = https://minio.example.org:9000/
ca_bundle = /etc/work.pem
)";

TEST_F(AwsConfigTest, TheEnvironmentWinsOverTheFiles) {
  Write(".aws/credentials", kCredentials);
  Write(".aws/config", kConfig);
  variables_["AWS_ACCESS_KEY_ID"] = "AKIDENV";
  variables_["AWS_SECRET_ACCESS_KEY"] = "env";
  variables_["AWS_DEFAULT_REGION"] = "ap-south-1";
  variables_["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9000";
  ASSERT_OK_AND_ASSIGN(AwsConfig config, Load());
  EXPECT_EQ(config.credentials.access_key_id, "AKIDENV");
  EXPECT_EQ(config.credentials.secret_access_key, "env");
  EXPECT_EQ(config.credentials.session_token, "");
  EXPECT_EQ(config.region, "ap-south-1");
  EXPECT_EQ(config.endpoint, "http://127.0.0.1:9000");
  variables_["AWS_REGION"] = "ap-south-2";
  variables_["AWS_ENDPOINT_URL_S3"] = "http://127.0.0.1:9001";
  ASSERT_OK_AND_ASSIGN(config, Load());
  EXPECT_EQ(config.region, "ap-south-2");
  EXPECT_EQ(config.endpoint, "http://127.0.0.1:9001");
  EXPECT_EQ(config.ca_bundle, "");
  variables_["AWS_CA_BUNDLE"] = "/etc/own.pem";
  ASSERT_OK_AND_ASSIGN(config, Load());
  EXPECT_EQ(config.ca_bundle, "/etc/own.pem");
}

TEST_F(AwsConfigTest, TheDefaultProfileIsRead) {
  Write(".aws/credentials", kCredentials);
  Write(".aws/config", kConfig);
  ASSERT_OK_AND_ASSIGN(const AwsConfig config, Load());
  EXPECT_EQ(config.credentials.access_key_id, "AKIDDEFAULT");
  EXPECT_EQ(config.credentials.secret_access_key, "default/secret");
  EXPECT_EQ(config.region, "eu-central-1");
  EXPECT_EQ(config.endpoint, "");
}

TEST_F(AwsConfigTest, ANamedProfileIsReadFromTheFilesThatTheEnvironmentNames) {
  Write("keys", kCredentials);
  Write("settings", kConfig);
  variables_["AWS_SHARED_CREDENTIALS_FILE"] = home_ + "/keys";
  variables_["AWS_CONFIG_FILE"] = home_ + "/settings";
  variables_["AWS_PROFILE"] = "work";
  ASSERT_OK_AND_ASSIGN(const AwsConfig config, Load());
  EXPECT_EQ(config.credentials.access_key_id, "AKIDWORK");
  EXPECT_EQ(config.credentials.secret_access_key, "work+secret");
  EXPECT_EQ(config.credentials.session_token, "token==");
  EXPECT_EQ(config.region, "us-west-2");
  EXPECT_EQ(config.endpoint, "https://minio.example.org:9000");
  EXPECT_EQ(config.ca_bundle, "/etc/work.pem");
}

TEST_F(AwsConfigTest, WithoutAnythingTheErrorSaysWhereItLooked) {
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kUnauthenticated,
                               AllOf(HasSubstr("AWS_ACCESS_KEY_ID"), HasSubstr(home_ + "/.aws/credentials"),
                                     HasSubstr("export-credentials"))));
  variables_["AWS_PROFILE"] = "absent";
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("AWS_PROFILE=absent")));
}

TEST_F(AwsConfigTest, NoMessageHoldsASecret) {
  variables_["AWS_SECRET_ACCESS_KEY"] = "squeamish";
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("a secret key without its key id"), Not(HasSubstr("squeamish")))));
  variables_["AWS_ACCESS_KEY_ID"] = "AKID";
  variables_["AWS_SECRET_ACCESS_KEY"] = "squeamish\r\nX-Header: 1";
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("control characters"), Not(HasSubstr("squeamish")))));
}

TEST_F(AwsConfigTest, NoMessageHoldsThePasswordOfAnEndpoint) {
  variables_["AWS_ACCESS_KEY_ID"] = "AKID";
  variables_["AWS_SECRET_ACCESS_KEY"] = "secret";
  for (const char* endpoint : {"http://user:squeamish@host", "https://user:x@squeamish@host:9000/path",
                               "user:squeamish@host", "ftp://squeamish@host", "http://user:squeamish/@host"}) {
    variables_["AWS_ENDPOINT_URL"] = endpoint;
    EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("***@host"), HasSubstr("expected http://HOST"),
                                       Not(HasSubstr("squeamish")), Not(HasSubstr("user")))))
        << endpoint;
  }
}

TEST_F(AwsConfigTest, ABadEndpointOrRegionIsRefusedByItsValue) {
  variables_["AWS_ACCESS_KEY_ID"] = "AKID";
  variables_["AWS_SECRET_ACCESS_KEY"] = "secret";
  for (const char* endpoint : {"127.0.0.1:9000", "file:///etc", "http://", "http://host/path", "http://a b"}) {
    variables_["AWS_ENDPOINT_URL"] = endpoint;
    EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected http://HOST"))) << endpoint;
  }
  variables_.erase("AWS_ENDPOINT_URL");
  variables_["AWS_REGION"] = "us east";
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("us-east-1")));
}

}  // namespace
}  // namespace fsdp
