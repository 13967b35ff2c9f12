// SPDX-License-Identifier: Apache-2.0
//
// Protobuf has no magic, and messages of other schemas begin alike (TensorFlow's saved_model.pb). A model of ONNX
// begins with ir_version and has, before its graph, only fields of a ModelProto in their order, which are short. The
// suffix decides if the graph is behind the first bytes.
#include "fsdp/checkpoint/foreign/onnx/onnx_driver.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "fsdp/base/utf8.h"
#include "fsdp/checkpoint/foreign/onnx/onnx_model.h"
#include "fsdp/checkpoint/foreign/onnx/onnx_source.h"
#include "fsdp/checkpoint/source/source_description.h"

namespace fsdp {
namespace {

constexpr uint64_t kMaxIrVersion = 100;  // 13 in 2026

// The bytes of a head, of which a number may be cut off.
class Head {
 public:
  explicit Head(std::string_view bytes) : rest_(bytes) {}

  bool Varint(uint64_t& number) {
    number = 0;
    for (int shift = 0; shift < 63 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      number |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  bool Text(uint64_t nbytes) {
    if (nbytes > rest_.size() || !IsUtf8(rest_.substr(0, nbytes))) return false;
    rest_.remove_prefix(nbytes);
    return true;
  }

 private:
  std::string_view rest_;
};

// True if the head has all fields before the graph, and the graph's beginning.
bool HasGraph(std::string_view bytes) {
  Head head(bytes);
  uint64_t tag = 0, value = 0;
  if (!head.Varint(tag) || tag != kOnnxIrVersion << 3 || !head.Varint(value) || value > kMaxIrVersion) return false;
  while (head.Varint(tag) && head.Varint(value)) {
    if (tag == (kOnnxGraph << 3 | 2)) return value > 0;
    const bool is_text =
        (tag & 7) == 2 && (tag >> 3 == kOnnxProducerName || tag >> 3 == 3 || tag >> 3 == 4 || tag >> 3 == 6);
    const bool is_version = tag == 5 << 3;
    if (!is_version && !(is_text && head.Text(value))) return false;
  }
  return false;
}

// True for the tags of the fields that a file may begin with: ir_version, producer_name, graph.
bool MayBeModel(std::string_view bytes) {
  constexpr std::string_view kTags("\x08\x12\x3a");
  return !bytes.empty() && kTags.find(bytes[0]) != kTags.npos;
}

class Driver final : public FormatDriver {
 public:
  Driver() : FormatDriver(OnnxTraits()) {}

  absl::StatusOr<bool> Recognises(const PathProbe& probe) const override {
    if (probe.is_directory) return HasEntry(probe.path, kOnnxModelName);
    return HasGraph(probe.head) || (HasSuffix(probe.path) && MayBeModel(probe.head));
  }

  absl::StatusOr<std::unique_ptr<TensorSource>> Open(const std::string& path,
                                                     const TensorSourceOptions& options) const override {
    return OpenOnnxSource(path, options);
  }

  // Names the tensors that would be left out, whether or not options allow that.
  absl::StatusOr<SourceDescription> Describe(const std::string& path,
                                             const TensorSourceOptions& options) const override {
    TensorSourceOptions described = options;
    described.skip_links = true;
    return FormatDriver::Describe(path, described);
  }

  bool ReadsFileName(const std::string& name) const override { return HasSuffix(name); }
};

}  // namespace

const FormatDriver& OnnxDriver() {
  static const auto* driver = new Driver;
  return *driver;
}

}  // namespace fsdp
