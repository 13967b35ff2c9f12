// SPDX-License-Identifier: Apache-2.0
//
// Text of a manifest, a tensor's name, a file's or a directory's name reaches no output of a subcommand in a form that
// a terminal obeys or that hides or moves what is around it. The places in a manifest are found in the manifest itself,
// so a new member is tested too.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/escape_text.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_writer.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/format/sealed_json.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/source/zero_payload_testutil.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

// ESC, BEL, CR, CSI, a right-to-left override, a space of no width and a byte order mark.
constexpr char kHostile[] = "a\x1b[31m\x07\r\xC2\x9B\xE2\x80\xAE\xE2\x80\x8B\xEF\xBB\xBFz";
constexpr char kSurrogate[] = "a\xED\xA0\x80z";  // half of a pair, and so not UTF-8

class UntrustedTextTest : public CkptTest {
 protected:
  // A sharded checkpoint with every member that a manifest can have, but for mesh.
  void Save(const std::string& path) const {
    StateDict state;
    ShardedTensor tensor;
    tensor.shape = {6, 2};
    state.Set(StateKey::Model("w"), tensor);
    state.Set(StateKey::OptimState("w", "exp_avg"), tensor);
    state.Set(StateKey::ParamGroups(), "[]");
    state.aliases = {{"v", "w"}};
    state.units = {{"unit", {{"w", 0, 12}}, 12}};
    state.attributes["name"] = std::string("text");
    ASSERT_OK(WriteCheckpointDirectory(path, state, ZeroPayload(),
                                       {.type = StateDictType::kSharded, .world_size = 2, .step = 1, .parity = 1}));
  }

  // Runs every subcommand that reads `path`, and a page of it.
  void ExpectNothingHidden(const std::string& path, const std::string& shown) const {
    const std::vector<Words> commands = {{"inspect", path, "--tensors"},
                                         {"inspect", path, "--tensors", "--json"},
                                         {"inspect", path, "--html=" + Path("page.html")},
                                         {"inspect", "--diff_options", path, path},
                                         {"verify", path},
                                         {"verify", path, "--json"},
                                         {"repair", path, "--dry_run"},
                                         {"diff", path, Path("good")},
                                         {"diff", path, Path("good"), "--json"},
                                         {"prune", path, "--keep_last=1", "--dry_run"},
                                         {"convert", path, Path("out.safetensors"), "--force"},
                                         {"view", path, Path("out.h5"), "--force"}};
    for (const Words& words : commands) {
      fs::remove(Path("page.html"));
      const Outcome outcome = Ckpt(words);
      ExpectClean(outcome.out, shown, words);
      ExpectClean(outcome.err, shown, words);
      if (fs::exists(Path("page.html"))) ExpectClean(ReadFile(Path("page.html")), shown, words);
    }
  }

  static void ExpectClean(const std::string& text, const std::string& shown, const Words& words) {
    EXPECT_EQ(text, EscapeText(text, "\n\t\"'\\")) << shown << ": " << testing::PrintToString(words);
    for (const char* part : {"\x1b", "\x07", "\r", "\xC2\x9B", "\xE2\x80\xAE", "\xE2\x80\x8B", "\xED\xA0\x80"}) {
      EXPECT_THAT(text, Not(HasSubstr(part))) << shown << ": " << testing::PrintToString(words);
    }
  }
};

// The pointers to every text of `value`, and to every object, which gets another member.
void AddPlaces(const Json& value, const Json::json_pointer& at, std::vector<Json::json_pointer>& places) {
  if (value.is_string() || value.is_object()) places.push_back(at);
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) AddPlaces(member, at / name, places);
  }
  // The elements of an array are of one kind.
  if (value.is_array() && !value.empty()) AddPlaces(value[0], at / size_t{0}, places);
}

TEST_F(UntrustedTextTest, NoPlaceOfAManifestReachesATerminal) {
  Save(Path("good"));
  fs::copy(Path("good"), Path("bad"));
  Json manifest = Json::parse(ReadFile(Path("good/manifest.json")));
  manifest.erase("digest");
  std::vector<Json::json_pointer> places;
  AddPlaces(manifest, Json::json_pointer(), places);
  EXPECT_GT(places.size(), 30u);
  for (const Json::json_pointer& place : places) {
    Json changed = manifest;
    Json& value = changed[place];
    value.is_string() ? value = kHostile : value[kHostile] = kHostile;
    std::string text = changed.dump();
    text.pop_back();
    WriteFile(Path("bad/manifest.json"), Seal(text));
    ExpectNothingHidden(Path("bad"), place.to_string());
  }
  const std::string text = absl::StrReplaceAll(manifest.dump(), {{"\"text\"", "\"\\ud800\""}});
  WriteFile(Path("bad/manifest.json"), Seal(text.substr(0, text.size() - 1)));
  ExpectNothingHidden(Path("bad"), "half of a pair");
}

TEST_F(UntrustedTextTest, NoNameInAnyFormatReachesATerminal) {
  Save(Path("good"));
  StateDict state;
  ShardedTensor tensor;
  tensor.shape = {2};
  state.Set(StateKey::Model(kHostile), tensor);
  const std::string source = Path("a.safetensors");
  SafetensorsOptions options;
  options.metadata = {{kHostile, kHostile}};
  ASSERT_OK(WriteSafetensors(source, state, ZeroPayload(), options));
  ExpectNothingHidden(source, "safetensors");
  for (const Format& format : Formats()) {
    if (!format.target) continue;
    const std::string name = format.driver->name();
    const Words words = {"convert", source, Path(name), "--to=" + name};
    const Outcome outcome = Ckpt(words);
    ExpectClean(outcome.err, name, words);
    EXPECT_EQ(outcome.status, name == "deepspeed" ? 1 : 0) << name << ": " << outcome.err;  // there a name is a folder
    if (outcome.status == 0) ExpectNothingHidden(Path(name), name);
  }
  MustCkpt({"convert", source, Path("one.h5")});
  ExpectNothingHidden(Path("one.h5"), "one HDF5 file");
  // Not UTF-8: only a file that others made can have it.
  WriteFile(source, absl::StrReplaceAll(ReadFile(source), {{"a\\u001b[31m\\u0007", "\xED\xA0\x80"}}));
  ExpectNothingHidden(source, "not UTF-8");
}

// A small text by which other programs' directories are known and described, in which "?" is the hostile text, and the
// file that must be next to it for the text to be read.
struct SmallText {
  std::string name;
  std::string pattern;
  std::string companion = {};
};

std::vector<SmallText> SmallTexts() {
  const std::string adapter = "adapter_model.safetensors", model = "model.safetensors";
  return {
      {"adapter_config.json", R"({"peft_type": "LORA", "?": "?", "base_model_name_or_path": "?", "r": 1})", adapter},
      {"adapter_config.json", R"({"peft_type": "?", "target_modules": ["?"], "modules_to_save": ["?"]})", adapter},
      {"adapter_config.json", R"({"peft_type": "LORA", "target_modules": "?", "rank_pattern": {"?": "?"}})", adapter},
      {"adapter_config.json", "?", adapter},
      {"trainer_state.json", R"({"global_step": "?", "?": 1})", model},
      {"trainer_state.json", "?", model},
      {"config.json", R"({"model_type": "?", "?": "?"})", model},
      {"model.safetensors.index.json", R"({"metadata": {"?": "?"}, "weight_map": {"?": "?"}})"},
      {"latest", "?", "global_step1/mp_rank_00_model_states.pt"},
      {"latest_checkpointed_iteration.txt", "?"},
      {"metadata.json", R"({"sharded_backend": "?", "?": "?"})", "common.pt"},
      {"_METADATA",
       R"({"tree_metadata": {"?": {"key_metadata": [{"key": "?"}], "value_metadata": {"value_type": "?"}}}})"},
      {"_CHECKPOINT_METADATA", R"({"item_handlers": {"?": "?"}, "custom": {"?": "?"}})"},
      {"model.weights.json", R"({"weight_map": {"?": ["?"]}})"},
      {"metadata.pkl", "?"},
      {"model.gguf", "GGUF?"},
  };
}

TEST_F(UntrustedTextTest, NoTextOfAnotherProgramReachesATerminal) {
  Save(Path("good"));
  MustCkpt({"convert", Path("good"), Path("w.safetensors"), "--model_only"});
  const std::string weights = ReadFile(Path("w.safetensors")), directory = Path("directory");
  const std::string quoted = Json(kHostile).dump();
  for (const SmallText& text : SmallTexts()) {
    const std::string shown = text.name + ": " + text.pattern, path = directory + "/" + text.name;
    fs::remove_all(directory);
    fs::create_directories(fs::path(directory + "/" + text.companion).parent_path());
    if (!text.companion.empty()) WriteFile(directory + "/" + text.companion, weights);
    for (const std::string& hostile : {quoted.substr(1, quoted.size() - 2), std::string(kSurrogate)}) {
      WriteFile(path, absl::StrReplaceAll(text.pattern, {{"?", hostile}}));
      ExpectNothingHidden(directory, shown);
      ExpectNothingHidden(path, shown);
      for (const Words& words : {Words{"merge", Path("good"), directory, Path("merged")},
                                 Words{"verify", Path("good"), "--flat_layout=" + path}}) {
        const Outcome outcome = Ckpt(words);
        ExpectClean(outcome.out + outcome.err, shown, words);
        fs::remove_all(Path("merged"));
      }
    }
  }
}

TEST_F(UntrustedTextTest, NoNameOfAFileOrDirectoryReachesATerminal) {
  Save(Path("good"));
  for (const std::string hostile : {kHostile, kSurrogate}) {
    const std::string root = Path("root" + hostile);
    fs::create_directory(root);
    Save(root + "/step-00000001");
    fs::create_directory(root + "/step-" + hostile);
    fs::create_directory(root + "/.step-00000001.tmp-" + hostile);
    ExpectNothingHidden(root, "a ROOT");
    ExpectNothingHidden(root + "/step-" + hostile, "no checkpoint");
    WriteFile(root + "/step-00000001/" + hostile, "x");
    ExpectNothingHidden(root + "/step-00000001", "a file beside the members");
    WriteFile(Path(hostile), "x");
    ExpectNothingHidden(Path(hostile), "a file that is no checkpoint");
  }
}

}  // namespace
}  // namespace fsdp
