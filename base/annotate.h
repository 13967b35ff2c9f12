// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_BASE_ANNOTATE_H_
#define FSDP_BASE_ANNOTATE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace fsdp {

// Adds the place to an error: `status` with the message "`place`: <its message>" and with its code and payloads. An OK
// status stays OK.
//
//   FSDP_RETURN_IF_ERROR(Annotate(ReadHeader(file), absl::StrCat("file ", Quote(path))));
absl::Status Annotate(const absl::Status& status, absl::string_view place);

// A copy of `status` with another message. The code and the payloads, by which a caller may recognise the error, stay.
absl::Status WithMessage(const absl::Status& status, absl::string_view message);

}  // namespace fsdp

#endif  // FSDP_BASE_ANNOTATE_H_
