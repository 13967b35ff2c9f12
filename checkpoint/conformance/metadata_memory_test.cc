// SPDX-License-Identifier: Apache-2.0
//
// The price of hostile metadata of other programs, whole as a path is opened and described: at most four times its size
// and 64 MiB of memory (decode_memory_testutil.h), whether it is accepted or refused. Our own metadata and the headers
// of safetensors have such tests next to their decoders.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/decode_memory_testutil.h"
#include "fsdp/checkpoint/source/source_description.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

class MetadataMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!CanMeasurePeak()) GTEST_SKIP() << "peak memory is not measured here";
  }

  // Describes `path` ("" for the directory) with `text` in the file `name`.
  void ExpectCheap(const std::string& name, std::string text, bool is_accepted, const std::string& path = "") {
    constexpr int64_t kAllowance = int64_t{64} << 20;
    fs::create_directories(fs::path(directory_ + "/" + name).parent_path());
    WriteAll(directory_ + "/" + name, text);
    const std::string shown = absl::StrCat(name, ", ", absl::CHexEscape(text.substr(0, 60)));
    const auto nbytes = static_cast<int64_t>(text.size());
    text = std::string();  // the reader has a copy, which counts
    const int64_t before = ResetPeak();
    const absl::Status status = Describe(directory_ + "/" + path);
    EXPECT_LE(PeakBytes() - before, 4 * nbytes + kAllowance) << shown;
    EXPECT_EQ(status.ok(), is_accepted) << shown << ": " << status;
  }

  static absl::Status Describe(const std::string& path) {
    FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(path));
    return driver->Describe(path, {.skip_links = true}).status();
  }

  const std::string directory_ = NewTestDirectory();
};

std::string Number(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i & 0xFF);
  return text;
}

std::string GgufText(std::string_view text) { return absl::StrCat(Number(text.size(), 8), std::string(text)); }

// A GGUF file without tensors; key(i) is a key with its type and value.
std::string Gguf(absl::FunctionRef<std::string(int)> key) {
  std::string keys;
  int count = 0;
  while (keys.size() < kCostlyTextBytes) keys += key(count++);
  std::string file = absl::StrCat("GGUF", Number(3, 4), Number(0, 8), Number(count, 8), keys);
  return file.append((32 - file.size() % 32) % 32, '\0');
}

TEST_F(MetadataMemoryTest, KeysOfGguf) {
  const auto short_texts = [](int i) {
    return absl::StrCat(GgufText(absl::StrCat(i)), Number(8, 4), GgufText("01234567890123456789"));
  };
  const auto numbers = [](int i) { return absl::StrCat(GgufText(absl::StrCat(i)), Number(0, 4), "\1"); };
  const auto arrays = [](int i) {
    constexpr int kCount = 100'000;  // each byte is "255," in JSON
    return absl::StrCat(GgufText(absl::StrCat(i)), Number(9, 4), Number(0, 4), Number(kCount, 8),
                        std::string(kCount, '\xFF'));
  };
  ExpectCheap("model.gguf", Gguf(short_texts), /*is_accepted=*/false, "model.gguf");
  ExpectCheap("model.gguf", Gguf(numbers), /*is_accepted=*/false, "model.gguf");
  ExpectCheap("model.gguf", Gguf(arrays), /*is_accepted=*/true, "model.gguf");
}

TEST_F(MetadataMemoryTest, IndexesOfKeras) {
  const std::string name = "model.weights.json";
  const auto group = [](int i) { return absl::StrCat("\"", i, R"(":["f.h5"])"); };
  const auto file = [](int i) { return absl::StrCat("\"", i, "\""); };
  ExpectCheap(name, ManyItems(R"({"weight_map":{)", group, "}}"), /*is_accepted=*/false, name);
  ExpectCheap(name, ManyItems(R"({"weight_map":{"a":[)", file, "]}}"), /*is_accepted=*/false, name);
}

TEST_F(MetadataMemoryTest, TreesOfOrbax) {
  const auto leaf_of = [](int i, const char* type) {
    return absl::StrCat("\"", i, R"(":{"key_metadata":[{"key":")", i, R"("}],"value_metadata":{"value_type":")", type,
                        "\"}}");
  };
  const auto empty = [&](int i) { return leaf_of(i, "None"); };
  const auto array = [&](int i) { return leaf_of(i, "jax.Array"); };
  const auto text = [&](int i) { return leaf_of(i, "string"); };
  const auto pair = [](int i) { return absl::StrCat("\"", i, "\":\"\""); };
  const auto nothing = [](int) { return std::string("{}"); };
  ExpectCheap("_METADATA", ManyItems(R"({"tree_metadata":{)", empty, "}}"), /*is_accepted=*/true);
  ExpectCheap("_METADATA", ManyItems(R"({"tree_metadata":{)", array, "}}"), /*is_accepted=*/false);
  ExpectCheap("_METADATA", ManyItems(R"({"tree_metadata":{},"more":[)", nothing, "]}"), /*is_accepted=*/true);
  ExpectCheap("step/_CHECKPOINT_METADATA", ManyItems(R"({"item_handlers":{)", pair, "}}"), /*is_accepted=*/false,
              "step");
  WriteAll(directory_ + "/_METADATA", absl::StrCat(R"({"tree_metadata":{)", leaf_of(5, "string"), "}}"));
  ExpectCheap("_strings.json", ManyItems("{", pair, "}"), /*is_accepted=*/false);
  WriteAll(directory_ + "/_strings.json", R"({"1":"one"})");
  ExpectCheap("_METADATA", ManyItems(R"({"tree_metadata":{)", text, "}}"), /*is_accepted=*/false);
}

// Pickles of protocol 2: a list of empty dicts, and one of tuples of one number.
TEST_F(MetadataMemoryTest, PicklesOfTrainers) {
  for (const char* const item : {"}", "K\1\x85"}) {
    std::string pickle = "\x80\x02](";
    while (pickle.size() < kCostlyTextBytes) pickle += item;
    pickle += "e.";
    ExpectCheap("items/metadata.pkl", pickle, /*is_accepted=*/false, "items");
    fs::copy("checkpoint/foreign/megatron/testdata/gpt_tp1_w1/iter_0000007", directory_ + "/iter_0000007",
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    fs::permissions(directory_ + "/iter_0000007/.metadata", fs::perms::owner_write, fs::perm_options::add);
    ExpectCheap("iter_0000007/.metadata", pickle, /*is_accepted=*/false, "iter_0000007");
    ExpectCheap("model.pt", pickle, /*is_accepted=*/false, "model.pt");
    fs::remove_all(directory_ + "/iter_0000007");
  }
}

TEST_F(MetadataMemoryTest, TextsNextToAModel) {
  fs::create_directories(directory_ + "/hub");
  WriteAll(directory_ + "/hub/model.safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  const auto nothing = [](int) { return std::string("{}"); };
  const auto not_a_number = [](int) { return std::string("{\"l\": NaN}"); };
  ExpectCheap("hub/trainer_state.json", ManyItems(R"({"log_history":[)", nothing, "]}"), /*is_accepted=*/true, "hub");
  ExpectCheap("hub/trainer_state.json", ManyItems(R"({"log_history":[)", not_a_number, "]}"), /*is_accepted=*/true,
              "hub");
}

}  // namespace
}  // namespace fsdp
