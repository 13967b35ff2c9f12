// SPDX-License-Identifier: Apache-2.0
//
// The two macros that propagate absl::Status; Debian 12's Abseil predates ABSL_RETURN_IF_ERROR and
// ABSL_ASSIGN_OR_RETURN. The prefix FSDP_ avoids clashes with macros of a program that includes this header. To add a
// place to an error, see annotate.h.
#ifndef FSDP_BASE_STATUS_MACROS_H_
#define FSDP_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status from the enclosing function if `expr`, an absl::Status, is not OK. Evaluates `expr` once.
#define FSDP_RETURN_IF_ERROR(expr)                                \
  do {                                                            \
    if (absl::Status fsdp_status_ = (expr); !fsdp_status_.ok()) { \
      return fsdp_status_;                                        \
    }                                                             \
  } while (false)

// Evaluates `expr`, an absl::StatusOr<T>; returns its status if it is not OK, else moves the value into `lhs`, which
// may be a declaration. A type that contains commas must be put in parentheses or named with `auto`. Expands to several
// statements: not for the body of an `if` without braces. `expr` may contain commas. The enclosing function returns
// absl::Status or any absl::StatusOr.
#define FSDP_ASSIGN_OR_RETURN(lhs, ...) \
  FSDP_ASSIGN_OR_RETURN_(FSDP_CONCAT_(fsdp_statusor_, __LINE__), lhs, (__VA_ARGS__))

// Two levels, so that __LINE__ is replaced by its number before it is pasted to a name.
#define FSDP_CONCAT_INNER_(a, b) a##b
#define FSDP_CONCAT_(a, b) FSDP_CONCAT_INNER_(a, b)
#define FSDP_ASSIGN_OR_RETURN_(statusor, lhs, expr) \
  auto statusor = expr;                             \
  if (!statusor.ok()) {                             \
    return std::move(statusor).status();            \
  }                                                 \
  lhs = *std::move(statusor)

#endif  // FSDP_BASE_STATUS_MACROS_H_
