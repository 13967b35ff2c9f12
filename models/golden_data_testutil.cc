// SPDX-License-Identifier: Apache-2.0
//
// ReadWeights has its own safetensors parser instead of calling checkpoint/foreign/safetensors: a test that reads its
// expected values through the code under test could not see an error of that code. The format: 8 bytes, little-endian,
// with the length of a JSON header; the header; the payload, in which the header's data_offsets count.
#include "fsdp/models/golden_data_testutil.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include "fsdp/base/check.h"
#include "nlohmann/json.hpp"

namespace fsdp {

std::string ReadTestFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  Check(stream.good(), path);
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

std::map<std::string, std::vector<float>> ReadWeights(const std::string& path) {
  const std::string file = ReadTestFile(path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const char* payload = file.data() + sizeof(header_bytes) + header_bytes;
  std::map<std::string, std::vector<float>> weights;
  const nlohmann::json header = nlohmann::json::parse(file.substr(sizeof(header_bytes), header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    Check(entry["dtype"] == "F32", "weights are float32");
    const auto offsets = entry["data_offsets"].get<std::vector<uint64_t>>();
    std::vector<float>& values = weights[name];
    values.resize((offsets[1] - offsets[0]) / sizeof(float));
    std::memcpy(values.data(), payload + offsets[0], offsets[1] - offsets[0]);
  }
  return weights;
}

std::vector<int32_t> ReadTokens(const std::string& path) {
  const std::string file = ReadTestFile(path);
  std::vector<uint16_t> stored(file.size() / sizeof(uint16_t));
  std::memcpy(stored.data(), file.data(), stored.size() * sizeof(uint16_t));
  return {stored.begin(), stored.end()};
}

GoldenLosses ReadLosses(const std::string& path) {
  const nlohmann::json json = nlohmann::json::parse(ReadTestFile(path));
  return {json["loss"].get<std::vector<double>>(), json["grad_norm"].get<std::vector<double>>()};
}

}  // namespace fsdp
