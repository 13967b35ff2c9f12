// SPDX-License-Identifier: Apache-2.0
//
// Checks of pages, for tests.
#ifndef FSDP_TOOLS_PAGE_PAGE_TESTUTIL_H_
#define FSDP_TOOLS_PAGE_PAGE_TESTUTIL_H_

#include <string>

#include "fsdp/tools/page/html.h"

namespace fsdp {

// What PageScript::sha256 of `text` must be.
std::string ScriptDigest(const std::string& text);

// Expects that `page` names no place to load from, and that its policy forbids it.
void ExpectLoadsNothing(const std::string& page);

// Expects a closing tag for each opening one, in order, except for elements without content.
void ExpectTagsClose(const std::string& page);

}  // namespace fsdp

#endif  // FSDP_TOOLS_PAGE_PAGE_TESTUTIL_H_
