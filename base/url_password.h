// SPDX-License-Identifier: Apache-2.0
//
// HidePasswords: keeps the secrets of URLs out of messages. A URL may be where a path is expected, and then be named by
// any error, so all that programs print (terminal.h) goes through here.
#ifndef FSDP_BASE_URL_PASSWORD_H_
#define FSDP_BASE_URL_PASSWORD_H_

#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

// `text` with "***" for what is between "://" and the "@" of "scheme://user:password@host"; also if one slash is left
// of the two, as in a path that was made from a URL, and there is a colon between. Also for the values of parameters
// that give access ("?X-Amz-Signature=", "&sig=", "&access_token="), as presigned URLs have them.
std::string HidePasswords(std::string_view text);

// The same, but nullopt if there is nothing to hide: a long text is then not copied.
std::optional<std::string> FindAndHidePasswords(std::string_view text);

}  // namespace fsdp

#endif  // FSDP_BASE_URL_PASSWORD_H_
