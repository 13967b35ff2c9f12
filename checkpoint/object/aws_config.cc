// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/aws_config.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 20;

using Settings = std::map<std::string, std::string>;

// The settings of one profile, from the credentials file and then from the config file, and the files that were
// searched.
struct Profile {
  std::string name;
  Settings settings;
  std::string places;  // "~/.aws/credentials, ~/.aws/config"
  bool found = false;
};

std::string Variable(const EnvironmentReader& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::optional<std::string> value = environment(name);
    if (value && !value->empty()) return *value;
  }
  return "";
}

// Adds the settings of `section` in `text`, an INI file, that are not set yet. Returns true if the section exists.
// Indented lines belong to a nested table (`s3 =`), which has no setting that is needed here.
bool AddSection(const std::string& text, const std::string& section, Settings& settings) {
  bool is_in_section = false;
  bool found = false;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    const absl::string_view line = absl::StripTrailingAsciiWhitespace(raw);
    if (line.empty() || line[0] == '#' || line[0] == ';' || absl::ascii_isspace(line[0])) continue;
    if (line[0] == '[') {
      const absl::string_view name = absl::StripSuffix(absl::StripPrefix(line, "["), "]");
      is_in_section = std::vector<std::string>(absl::StrSplit(name, ' ', absl::SkipEmpty())) ==
                      std::vector<std::string>(absl::StrSplit(section, ' ', absl::SkipEmpty()));
      found = found || is_in_section;
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> setting = absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (!is_in_section || !absl::StrContains(line, "=")) continue;
    settings.emplace(absl::AsciiStrToLower(absl::StripAsciiWhitespace(setting.first)),
                     std::string(absl::StripAsciiWhitespace(setting.second)));
  }
  return found;
}

absl::Status AddFile(const std::string& path, const std::string& section, Profile& profile) {
  if (path.empty()) return absl::OkStatus();
  absl::StrAppend(&profile.places, profile.places.empty() ? "" : ", ", path);
  const absl::StatusOr<std::string> text = ReadFile(PosixFileSystem(), path, kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(text.status());
  if (AddSection(*text, section, profile.settings)) profile.found = true;
  return absl::OkStatus();
}

absl::StatusOr<Profile> ReadProfile(const EnvironmentReader& environment) {
  const std::string wanted = Variable(environment, {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
  Profile profile = {.name = wanted.empty() ? "default" : wanted, .settings = {}, .places = {}};
  const std::string home = Variable(environment, {"HOME"});
  const std::string folder = home.empty() ? "" : JoinPath(home, ".aws");
  std::string credentials = Variable(environment, {"AWS_SHARED_CREDENTIALS_FILE"});
  std::string config = Variable(environment, {"AWS_CONFIG_FILE"});
  if (credentials.empty() && !folder.empty()) credentials = JoinPath(folder, "credentials");
  if (config.empty() && !folder.empty()) config = JoinPath(folder, "config");
  // The credentials file first: AddSection keeps the first value of a setting.
  FSDP_RETURN_IF_ERROR(AddFile(credentials, profile.name, profile));
  // The config file spells sections "profile NAME", except the default one.
  const std::string section = profile.name == "default" ? "default" : absl::StrCat("profile ", profile.name);
  FSDP_RETURN_IF_ERROR(AddFile(config, section, profile));
  // Without AWS_PROFILE a missing default profile is not an error: the keys may be in the environment.
  if (!profile.found && !wanted.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("AWS_PROFILE=", Printable(wanted), ": ", profile.places,
                                                   " have no such profile; see `aws configure list-profiles`"));
  }
  return profile;
}

std::string Setting(const Profile& profile, const char* name) {
  const auto setting = profile.settings.find(name);
  return setting == profile.settings.end() ? "" : setting->second;
}

// Keys and region become part of a header, so they must not contain characters that end its line.
bool IsPlain(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isgraph(c); });
}

absl::StatusOr<AwsCredentials> FindCredentials(const EnvironmentReader& environment, const Profile& profile) {
  // Key, secret and token are taken from one place only: a token with keys of another place would be rejected by the
  // store.
  AwsCredentials keys = {.access_key_id = Variable(environment, {"AWS_ACCESS_KEY_ID"}),
                         .secret_access_key = Variable(environment, {"AWS_SECRET_ACCESS_KEY"}),
                         .session_token = Variable(environment, {"AWS_SESSION_TOKEN"})};
  std::string place = "the environment";
  if (keys.access_key_id.empty() && keys.secret_access_key.empty()) {
    keys = {Setting(profile, "aws_access_key_id"), Setting(profile, "aws_secret_access_key"),
            Setting(profile, "aws_session_token")};
    place = absl::StrCat("profile ", Printable(profile.name));
  }
  if (keys.access_key_id.empty() && keys.secret_access_key.empty()) {
    return absl::UnauthenticatedError(absl::StrCat(
        "no keys for the object store: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment nor ",
        "keys of profile ", Printable(profile.name), " in ", profile.places.empty() ? "~/.aws" : profile.places,
        "; keys of SSO, a role or an instance are given by: eval $(aws configure export-credentials --format env)"));
  }
  if (keys.access_key_id.empty() || keys.secret_access_key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        place, " has ", keys.access_key_id.empty() ? "a secret key without its key id" : "a key id without its secret",
        ", expected both"));
  }
  if (!IsPlain(keys.access_key_id) || !IsPlain(keys.secret_access_key) || !IsPlain(keys.session_token)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the keys in ", place, " hold blanks or control characters, expected none"));
  }
  return keys;
}

// Accepts only "scheme://host[:port]": a path would have to be signed with each key.
absl::StatusOr<std::string> CheckEndpoint(const std::string& endpoint) {
  absl::string_view host = endpoint;
  const bool has_scheme = absl::ConsumePrefix(&host, "http://") || absl::ConsumePrefix(&host, "https://");
  host = absl::StripSuffix(host, "/");
  const bool is_host = !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains(".-:[]", absl::string_view(&c, 1));
  });
  if (endpoint.empty() || (has_scheme && is_host)) return std::string(absl::StripSuffix(endpoint, "/"));
  return absl::InvalidArgumentError(absl::StrCat("endpoint URL ", Quote(WithoutPassword(endpoint)),
                                                 ": expected http://HOST[:PORT] or https://HOST[:PORT]; see "
                                                 "AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL and endpoint_url in ~/.aws"));
}

}  // namespace

EnvironmentReader ProcessEnvironment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

absl::StatusOr<AwsConfig> LoadAwsConfig(const EnvironmentReader& environment) {
  FSDP_ASSIGN_OR_RETURN(const Profile profile, ReadProfile(environment));
  AwsConfig config;
  FSDP_ASSIGN_OR_RETURN(config.credentials, FindCredentials(environment, profile));
  config.region = Variable(environment, {"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (config.region.empty()) config.region = Setting(profile, "region");
  if (config.region.empty()) config.region = "us-east-1";
  const auto is_name = [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; };
  if (!std::all_of(config.region.begin(), config.region.end(), is_name)) {
    return absl::InvalidArgumentError(absl::StrCat("region ", Quote(config.region), ": expected a name such as ",
                                                   "us-east-1; see AWS_REGION and region in ~/.aws/config"));
  }
  std::string endpoint = Variable(environment, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (endpoint.empty()) endpoint = Setting(profile, "endpoint_url");
  FSDP_ASSIGN_OR_RETURN(config.endpoint, CheckEndpoint(endpoint));
  config.ca_bundle = Variable(environment, {"AWS_CA_BUNDLE"});
  if (config.ca_bundle.empty()) config.ca_bundle = Setting(profile, "ca_bundle");
  return config;
}

}  // namespace fsdp
