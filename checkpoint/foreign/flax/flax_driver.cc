// SPDX-License-Identifier: Apache-2.0
//
// MessagePack has no magic. A file of Flax begins with a map whose first key is a text; an array near the beginning, or
// the suffix if the first ones are behind many other values, distinguishes it from others' files.
#include "fsdp/checkpoint/foreign/flax/flax_driver.h"

#include <cctype>
#include <memory>
#include <string>
#include <string_view>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/flax/flax_array.h"
#include "fsdp/checkpoint/foreign/flax/flax_source.h"
#include "fsdp/checkpoint/source/source_description.h"

namespace fsdp {
namespace {

int Byte(std::string_view head, size_t at) { return at < head.size() ? static_cast<uint8_t>(head[at]) : -1; }

// True if a map that is not empty begins here, and its first key is a text of letters, digits and the like.
bool BeginsWithANamedMap(std::string_view head) {
  const int code = Byte(head, 0);
  size_t at = code == 0xde ? 3 : code == 0xdf ? 5 : 1;
  if (at == 1 && (code <= 0x80 || code > 0x8f)) return false;
  const int text = Byte(head, at++);
  size_t length = text >= 0xa1 && text <= 0xbf ? text & 31 : 0;
  if (text == 0xd9) length = Byte(head, at++);
  if (length == 0 || at + length > head.size()) return false;
  for (const char c : head.substr(at, length)) {
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) return false;
  }
  return true;
}

// The number of bytes of the integer that begins at `at`, which is not negative; 0 for another value.
size_t IntegerBytes(std::string_view head, size_t at) {
  const int code = Byte(head, at);
  if (code >= 0 && code < 0x80) return 1;
  return code >= 0xcc && code <= 0xcf ? 1 + (size_t{1} << (code - 0xcc)) : 0;
}

// True if the message of an array is at `at`: 3 parts, of which the first is a shape and the second the name of a
// dtype.
bool IsArray(std::string_view head, size_t at) {
  const int shape = Byte(head, at + 1);
  if (Byte(head, at) != 0x93 || shape < 0x90 || shape > 0x9f) return false;
  size_t next = at + 2;
  for (int d = 0; d < (shape & 15); ++d) {
    const size_t nbytes = IntegerBytes(head, next);
    if (nbytes == 0) return false;
    next += nbytes;
  }
  const int name = Byte(head, next);
  return name > 0xa3 && name <= 0xbf && std::isalpha(Byte(head, next + 1)) != 0;
}

bool HasArray(std::string_view head) {
  for (size_t at = 1; at < head.size(); ++at) {
    const int extension = Byte(head, at - 1);
    if ((extension == kFlaxArray || extension == kFlaxScalar) && IsArray(head, at)) return true;
  }
  return false;
}

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(FlaxTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (probe.is_directory) {
      FSDP_ASSIGN_OR_RETURN(const bool has_model, HasEntry(probe.path, kFlaxModelName));
      return has_model ? true : HasEntry(probe.path, kFlaxIndexName);
    }
    return BeginsWithANamedMap(probe.head) && (HasSuffix(probe.path) || HasArray(probe.head));
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenFlaxSource(path, options);
  }

  // Names the leaves that would be left out, whether or not options allow that.
  absl::StatusOr<SourceDescription> Describe(const std::string& path,
                                             const TensorSourceOptions& options) const override {
    TensorSourceOptions described = options;
    described.skip_links = true;
    return FormatDriver::Describe(path, described);
  }

  bool ReadsFileName(const std::string& name) const override { return HasSuffix(name) || name == kFlaxIndexName; }
};

}  // namespace

const FormatDriver& FlaxDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

}  // namespace fsdp
