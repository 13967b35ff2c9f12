// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/fuzz/mutator.h"

#include <algorithm>
#include <vector>

namespace fsdp {
namespace {

// Words that are meaningful to a parser: JSON's syntax and escapes, members of the formats, numbers at and beyond the
// limits of their types, bytes that are not UTF-8, and nesting. Random bytes would practically never produce them.
const std::vector<std::string>& Words() {
  static const auto* words = new std::vector<std::string>{"{",
                                                          "}",
                                                          "[",
                                                          "]",
                                                          ",",
                                                          ":",
                                                          "\"",
                                                          "\\",
                                                          "\\u0000",
                                                          "\\ud800",
                                                          "0",
                                                          "-1",
                                                          "1e9",
                                                          "4194304",
                                                          "9223372036854775807",
                                                          "18446744073709551615",
                                                          "18446744073709551616",
                                                          "null",
                                                          "true",
                                                          "{}",
                                                          "[]",
                                                          "\"\"",
                                                          "\"dtype\":",
                                                          "\"F32\"",
                                                          "\"F4\"",
                                                          "\"shape\":[",
                                                          "\"data_offsets\":[0,",
                                                          "\"__metadata__\":{",
                                                          "\"begin\":",
                                                          "\"offset\":",
                                                          "\"digests\":[",
                                                          "\"block\":65536,",
                                                          "\"../x\"",
                                                          std::string(1, '\0'),
                                                          std::string(8, '\xFF'),
                                                          "\xFF",
                                                          "\xC3",
                                                          " ",
                                                          "[[[[[[[[[["};
  return *words;
}

}  // namespace

// One case per change; the number of labels is its weight. Truncation is rare, since a text that ends early reaches
// little of a parser.
std::string Mutator::Mutate(std::string text) {
  // Several changes at a time: some checks are reached only by two values that are wrong together.
  const int mutations = 1 + static_cast<int>(random_() % 4);
  for (int i = 0; i < mutations && !text.empty(); ++i) {
    const size_t at = random_() % text.size();
    // random_() % n and no distribution: distributions differ between standard libraries, and seeds must repeat
    // everywhere.
    const size_t length = std::min<size_t>(random_() % 16, text.size() - at);
    switch (random_() % 12) {
      case 0:
      case 1:
        text[at] = static_cast<char>(random_());
        break;
      case 2:
      case 3:
        text[at] = static_cast<char>(text[at] ^ (1 << (random_() % 8)));
        break;
      case 4:
      case 5:
      case 6:
        text.insert(at, Words()[random_() % Words().size()]);
        break;
      case 7:
      case 8:
        text.erase(at, length);
        break;
      case 9:
      case 10:
        text.insert(random_() % text.size(), text.substr(at, length));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

}  // namespace fsdp
