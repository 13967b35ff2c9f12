// SPDX-License-Identifier: Apache-2.0
//
// The border between the C functions and ours: every function of fsdp_checkpoint.h runs in Guard, which keeps
// exceptions inside, turns a status into a code, and stores the text of a failure for fsdp_error_message. Thread-safe.
#ifndef FSDP_CHECKPOINT_C_API_C_STATUS_H_
#define FSDP_CHECKPOINT_C_API_C_STATUS_H_

#include <cxxabi.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "fsdp/checkpoint/source/source_layout.h"

namespace fsdp {

// Stores the message of a failure for this thread, and returns the code of any status.
int32_t CodeOf(const absl::Status& status);

// A thread that ends while a program's callback runs (pthread_exit, pthread_cancel; CPython ends threads this way while
// it exits) unwinds these frames. Guard rethrows it: the C library ends a process whose code catches it.
template <typename Function>
int32_t Guard(const Function& function) {
  try {
    return CodeOf(function());
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const std::bad_alloc&) {
    return CodeOf(absl::ResourceExhaustedError("out of memory"));
  } catch (const std::exception& error) {
    return CodeOf(absl::InternalError(error.what()));
  } catch (...) {
    return CodeOf(absl::InternalError("an exception of no known type"));
  }
}

// kInvalidArgument, by name, for a pointer that must not be null.
absl::Status CheckPointer(const void* pointer, const char* name);

// Copies a caller's struct of options: members that an older caller does not know keep their default. kInvalidArgument
// without a size, with a size that only a newer header could have, or with one that no sizeof can be: it could end
// within a pointer. New members are added at the end, never in a struct's padding: its bytes are copied too.
template <typename Options>
absl::Status CopyOptions(const Options* given, const char* name, Options& options) {
  if (given == nullptr) return absl::OkStatus();
  if (given->struct_size < sizeof(size_t) || given->struct_size > sizeof(Options) ||
      given->struct_size % alignof(Options) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, "->struct_size is ", given->struct_size, ", wanted sizeof(",
                                                   name, "), which is ", sizeof(Options),
                                                   " in this release of the library"));
  }
  std::memcpy(&options, given, given->struct_size);
  return absl::OkStatus();
}

// `text` with options of ours by names that a caller of C has: {"ConvertOptions::force", "options->force"}. The longest
// that fits is replaced.
using OptionNames = std::initializer_list<std::pair<absl::string_view, absl::string_view>>;
std::string NameOptionsOfC(absl::string_view text, OptionNames names);
absl::Status NameOptionsOfC(const absl::Status& status, OptionNames names);

// The roles of a caller's options->map, one per line; none for NULL. kInvalidArgument quotes one that does not parse.
absl::StatusOr<std::vector<TensorRole>> RolesOf(const char* map);

// Sets *out, unless `out` is null, to a copy of `text` for fsdp_free.
absl::Status GiveString(const std::string& text, char** out);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_C_API_C_STATUS_H_
