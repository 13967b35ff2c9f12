// SPDX-License-Identifier: Apache-2.0
//
// The age and the date of a file, for people: a date of one clock (of the host or server that changed the file)
// compared with another clock, either of which may be wrong or have been set. So no age decides about a file: locks and
// proofs do.
#ifndef FSDP_CHECKPOINT_STORAGE_FILE_AGE_H_
#define FSDP_CHECKPOINT_STORAGE_FILE_AGE_H_

#include <string>

#include "absl/time/time.h"

namespace fsdp {

// The time since `path` was changed, by this host's clock; negative if the file's date is later. Zero if the date
// cannot be read.
absl::Duration AgeOf(const std::string& path);

// "3h ago", in the largest unit, which is precise enough to recognise a crash; "at a time that is 58m after this
// host's clock" for a negative age.
std::string AgeText(absl::Duration age);

// When `path` was changed: "2026-11-27 07:20 UTC". Empty if the date cannot be read.
std::string DateText(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_FILE_AGE_H_
