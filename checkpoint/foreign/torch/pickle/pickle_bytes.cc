// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_bytes.h"

namespace fsdp {
namespace {

// A call as Python writes it, whose text is not ASCII (pickle_builder.cc).
bool IsEncode(PickleValue value) {
  return value.is_call("_codecs.encode") && !value.has_state() && value.arguments().size() == 2 &&
         value.arguments().at(0).is(PickleKind::kString) && value.arguments().at(1).is_string("latin1");
}

}  // namespace

std::optional<std::string> Latin1(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    auto byte = static_cast<uint8_t>(text[i]);
    if (byte >= 0x80) {
      const bool is_latin1 = (byte == 0xc2 || byte == 0xc3) && i + 1 < text.size() && (text[i + 1] & 0xc0) == 0x80;
      if (!is_latin1) return std::nullopt;
      byte = static_cast<uint8_t>(byte << 6 | (text[++i] & 0x3f));
    }
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

int64_t MaxBytesOfPickle(PickleValue value) {
  if (value.is(PickleKind::kBytes)) return static_cast<int64_t>(value.text().size());
  return IsEncode(value) ? static_cast<int64_t>(value.arguments().at(0).text().size()) : 0;
}

std::optional<std::string> BytesOfPickle(PickleValue value) {
  if (value.is(PickleKind::kBytes)) return std::string(value.text());
  return IsEncode(value) ? Latin1(value.arguments().at(0).text()) : std::nullopt;
}

}  // namespace fsdp
