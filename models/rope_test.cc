// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/rope.h"

#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int64_t kMaxPositions = 2048;

absl::StatusOr<RopeConfig> Parse(const std::string& fields) {
  FSDP_ASSIGN_OR_RETURN(const ConfigReader reader, ConfigReader::Parse("llama", "{" + fields + "}"));
  FSDP_ASSIGN_OR_RETURN(const RopeConfig rope, ParseRope(reader, kMaxPositions));
  FSDP_RETURN_IF_ERROR(CheckRope("llama", rope));
  return rope;
}

// The expected numbers are inv_freq of Hugging Face's LlamaRotaryEmbedding (transformers 5.23.0). A power of theta may
// be one unit off in the last place; PyTorch's own vectorised power is not better.
void ExpectFrequencies(const RopeConfig& rope, const std::vector<float>& expected) {
  const std::vector<float> frequencies = InverseFrequencies(rope, 2 * static_cast<int64_t>(expected.size()));
  ASSERT_EQ(frequencies.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(frequencies[i], expected[i], 2.5e-7f * expected[i]) << i;
}

TEST(RopeTest, DefaultFrequenciesAreHuggingFaces) {
  ASSERT_OK_AND_ASSIGN(const RopeConfig rope, Parse(""));
  ExpectFrequencies(rope, {1.f, 0.398107171f, 0.158489317f, 0.0630957261f, 0.0251188632f, 0.00999999978f,
                           0.00398107059f, 0.00158489333f, 0.000630957307f, 0.0002511887f});
}

TEST(RopeTest, LinearScalingDividesEachFrequency) {
  ASSERT_OK_AND_ASSIGN(const RopeConfig rope,
                       Parse(R"("rope_theta": 500000.0, "rope_scaling": {"rope_type": "linear", "factor": 3.0})"));
  ExpectFrequencies(rope, {0.333333343f, 0.0897391066f, 0.0241593197f, 0.00650410727f, 0.00175101857f, 0.000471404492f,
                           0.000126910221f, 3.41664454e-05f, 9.19819649e-06f, 2.47631488e-06f});
}

constexpr char kLlama3[] = R"("rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0)";

TEST(RopeTest, Llama3ScalesLowFrequenciesOnly) {
  ASSERT_OK_AND_ASSIGN(const RopeConfig rope,
                       Parse(R"("rope_theta": 500000.0, "rope_scaling": {)" + std::string(kLlama3) +
                             R"(, "original_max_position_embeddings": 512})"));
  ExpectFrequencies(rope, {1.f, 0.269217312f, 0.0724779591f, 0.00579682551f, 0.00065663195f, 0.000176776681f,
                           4.7591333e-05f, 1.28124175e-05f, 3.44932369e-06f, 9.28618078e-07f});
}

TEST(RopeTest, NewAndOldSpellingsAreReadInHuggingFacesOrder) {
  ASSERT_OK_AND_ASSIGN(RopeConfig rope, Parse(R"("rope_theta": 7.0, "rope_parameters": {"rope_theta": 9.0})"));
  EXPECT_EQ(rope.theta, 9);
  ASSERT_OK_AND_ASSIGN(rope, Parse(R"("rope_parameters": {"type": "linear", "factor": 2}, "rope_scaling": null)"));
  EXPECT_EQ(rope.type, RopeConfig::Type::kLinear);
  EXPECT_EQ(rope.factor, 2);
  ASSERT_OK_AND_ASSIGN(rope, Parse(R"("rope_parameters": {"rope_type": "linear", "factor": 2},
                                      "rope_scaling": {"rope_type": "default"})"));
  EXPECT_EQ(rope.type, RopeConfig::Type::kDefault);
  ASSERT_OK_AND_ASSIGN(rope, Parse(R"("rope_scaling": {)" + std::string(kLlama3) + "}"));
  EXPECT_EQ(rope.original_max_position_embeddings, kMaxPositions);
  ASSERT_OK_AND_ASSIGN(rope, Parse(R"("original_max_position_embeddings": 99, "rope_scaling": {)" +
                                   std::string(kLlama3) + R"(, "original_max_position_embeddings": 512})"));
  EXPECT_EQ(rope.original_max_position_embeddings, 99);
}

TEST(RopeTest, UnsupportedFieldsAreRefusedByName) {
  const std::pair<std::string, std::string> refusals[] = {
      {R"("rope_scaling": {"rope_type": "yarn", "factor": 2})",
       "rope_type \"yarn\" is not any of default, linear, llama3"},
      {R"("rope_scaling": {"type": "dynamic", "factor": 2})", "rope_type \"dynamic\""},
      {R"("rope_scaling": {"rope_type": "longrope"})", "rope_type \"longrope\""},
      {R"("rope_scaling": {"rope_type": "linear"})", "factor is missing, which is required together with rope_type"},
      {R"("rope_scaling": {"rope_type": "linear", "factor": "2"})", "factor is \"2\", wanted a number"},
      {R"("rope_scaling": {"rope_type": "linear", "factor": 0})", "factor is 0, wanted a positive number"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4})",
       "high_freq_factor is 4, wanted more than low_freq_factor, 4"},
      {R"("rope_scaling": 2)", "rope_scaling is 2, wanted an object or null"},
      {R"("rope_theta": -1)", "rope_theta is -1, wanted a positive number"},
      {R"("partial_rotary_factor": 0.5)", "partial_rotary_factor is 0.5, wanted 1"},
      {R"("rope_parameters": {"partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5, wanted 1"},
  };
  for (const auto& [fields, message] : refusals) {
    EXPECT_THAT(Parse(fields).status().message(), HasSubstr(message)) << fields;
  }
}

}  // namespace
}  // namespace fsdp
