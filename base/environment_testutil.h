// SPDX-License-Identifier: Apache-2.0
//
// ScopedVariable: sets or unsets an environment variable for a test. Tests of several files share one process, so a
// variable that one test sets must not stay set for the next.
#ifndef FSDP_BASE_ENVIRONMENT_TESTUTIL_H_
#define FSDP_BASE_ENVIRONMENT_TESTUTIL_H_

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace fsdp {

// Destroy the objects for one variable in the reverse order of their construction, so that the original value is
// restored.
class ScopedVariable {
 public:
  // nullopt: unset. Not thread-safe, as setenv.
  ScopedVariable(std::string name, const std::optional<std::string>& value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str()); before != nullptr) before_ = before;
    Set(value);
  }

  // Restores the original value, or unsets the variable.
  ~ScopedVariable() { Set(before_); }

  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

  // Changes the value again; the destructor still restores the original one.
  void Set(const std::optional<std::string>& value) {
    value.has_value() ? setenv(name_.c_str(), value->c_str(), /*overwrite=*/1) : unsetenv(name_.c_str());
  }

 private:
  // The variable, and its value before this object; nullopt: it was unset.
  const std::string name_;
  std::optional<std::string> before_;
};

}  // namespace fsdp

#endif  // FSDP_BASE_ENVIRONMENT_TESTUTIL_H_
