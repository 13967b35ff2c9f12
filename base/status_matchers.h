// SPDX-License-Identifier: Apache-2.0
//
// GoogleTest matchers and assertions for absl::Status and absl::StatusOr, with the names of later Abseil. EXPECT_NOT_OK
// is left out on purpose: a test should name the error that it expects.
//
//   EXPECT_OK(stream->Synchronize());
//   ASSERT_OK_AND_ASSIGN(Tensor t, Tensor::Empty(*device, DType::kFloat32, {4}));
//   EXPECT_THAT(ParseDType("float31"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("float31")));
#ifndef FSDP_BASE_STATUS_MATCHERS_H_
#define FSDP_BASE_STATUS_MATCHERS_H_

#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/status_macros.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace status_matchers_internal {

// The status of either type. The overloads let a matcher treat both types alike.
inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

// A polymorphic matcher: works on absl::Status and on any absl::StatusOr. Both the code and the message must match; an
// OK status has an empty message.
class StatusIsMatcher {
 public:
  StatusIsMatcher(testing::Matcher<absl::StatusCode> code, testing::Matcher<const std::string&> message)
      : code_(std::move(code)), message_(std::move(message)) {}

  // GoogleMock prints "Expected: value that ..." and "Actual: value ..." with the texts of these functions.
  void DescribeTo(std::ostream* os) const {
    *os << "has a status code that ";
    code_.DescribeTo(os);
    *os << ", and has an error message that ";
    message_.DescribeTo(os);
  }
  // For Not(StatusIs(...)): a status does not match if either part does not.
  void DescribeNegationTo(std::ostream* os) const {
    *os << "has a status code that ";
    code_.DescribeNegationTo(os);
    *os << ", or has an error message that ";
    message_.DescribeNegationTo(os);
  }

  // `StatusLike` is absl::Status or an absl::StatusOr. The listener gets the status, so a failed test prints it.
  template <typename StatusLike>
  bool MatchAndExplain(const StatusLike& value, testing::MatchResultListener* listener) const {
    const absl::Status& status = StatusOf(value);
    *listener << "which is " << status;
    return code_.Matches(status.code()) && message_.Matches(std::string(status.message()));
  }

 private:
  testing::Matcher<absl::StatusCode> code_;
  testing::Matcher<const std::string&> message_;
};

// Matches an OK StatusOr whose value matches `inner`, which may be a value or a matcher. The type of the StatusOr is
// known only when the matcher is used, so the conversion to testing::Matcher is delayed until then.
template <typename T>
class IsOkAndHoldsMatcher {
 public:
  // Takes a value, which is compared by ==, or a matcher of the value.
  explicit IsOkAndHoldsMatcher(T inner) : inner_(std::move(inner)) {}

  // GoogleMock requests a matcher of the type of the test expression.
  template <typename StatusOr>
  operator testing::Matcher<StatusOr>() const {  // NOLINT: implicit, as gmock wants it
    return testing::Matcher<StatusOr>(new Typed<StatusOr>(inner_));
  }

 private:
  // The matcher for one type of StatusOr.
  template <typename StatusOr>
  class Typed : public testing::MatcherInterface<StatusOr> {
   public:
    // The type inside of the StatusOr; StatusOr itself may be a reference.
    using Value = typename std::decay_t<StatusOr>::value_type;
    explicit Typed(const T& inner) : inner_(testing::SafeMatcherCast<const Value&>(inner)) {}
    void DescribeTo(std::ostream* os) const override {
      *os << "is OK and has a value that ";
      inner_.DescribeTo(os);
    }
    void DescribeNegationTo(std::ostream* os) const override {
      *os << "isn't OK or has a value that ";
      inner_.DescribeNegationTo(os);
    }
    // `inner` is used only if there is a value.
    bool MatchAndExplain(StatusOr value, testing::MatchResultListener* listener) const override {
      if (!value.ok()) {
        *listener << "which is " << value.status();
        return false;
      }
      return inner_.MatchAndExplain(*value, listener);
    }

   private:
    testing::Matcher<const Value&> inner_;
  };

  // A copy of the argument of IsOkAndHolds.
  T inner_;
};

}  // namespace status_matchers_internal

// Matches a Status or StatusOr of code `code` with any message.
inline testing::PolymorphicMatcher<status_matchers_internal::StatusIsMatcher> StatusIs(
    testing::Matcher<absl::StatusCode> code) {
  return testing::MakePolymorphicMatcher(status_matchers_internal::StatusIsMatcher(std::move(code), testing::_));
}

// Matches a Status or StatusOr of code `code` whose message matches `message`. `message` may be a string, for equality,
// or a matcher such as HasSubstr.
inline testing::PolymorphicMatcher<status_matchers_internal::StatusIsMatcher> StatusIs(
    testing::Matcher<absl::StatusCode> code, testing::Matcher<const std::string&> message) {
  return testing::MakePolymorphicMatcher(
      status_matchers_internal::StatusIsMatcher(std::move(code), std::move(message)));
}

// Matches an OK Status or StatusOr. It accepts any value of a StatusOr.
inline testing::PolymorphicMatcher<status_matchers_internal::StatusIsMatcher> IsOk() {
  return StatusIs(absl::StatusCode::kOk);
}

// Matches an OK StatusOr whose value matches `value`.
template <typename T>
status_matchers_internal::IsOkAndHoldsMatcher<std::decay_t<T>> IsOkAndHolds(T&& value) {
  return status_matchers_internal::IsOkAndHoldsMatcher<std::decay_t<T>>(std::forward<T>(value));
}

}  // namespace fsdp

// Expect, or assert, that a Status or StatusOr is OK; a failure prints the status. EXPECT_OK continues after a failure;
// ASSERT_OK returns from the test.
#define EXPECT_OK(expr) EXPECT_THAT(expr, ::fsdp::IsOk())
#define ASSERT_OK(expr) ASSERT_THAT(expr, ::fsdp::IsOk())

// Assigns the value of `expr`, an absl::StatusOr<T>, to `lhs`, which may be a declaration; fails the test if it is not
// OK. Only for functions that return void. The expression is evaluated once.
#define ASSERT_OK_AND_ASSIGN(lhs, ...) \
  FSDP_ASSERT_OK_AND_ASSIGN_(FSDP_CONCAT_(fsdp_statusor_, __LINE__), lhs, (__VA_ARGS__))
// The name of the hidden variable contains the line, so that one scope may have several uses.
#define FSDP_ASSERT_OK_AND_ASSIGN_(statusor, lhs, expr) \
  auto statusor = expr;                                 \
  ASSERT_OK(statusor.status());                         \
  lhs = *std::move(statusor)

#endif  // FSDP_BASE_STATUS_MATCHERS_H_
