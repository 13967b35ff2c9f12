// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/many_tensors.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/foreign/zip/entry_checksums.h"
#include "fsdp/checkpoint/foreign/zip/zip_layout.h"

namespace fsdp {
namespace {

using namespace std::string_literals;  // NOLINT: literals

std::string Long(int64_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

class TorchPickle {
 public:
  // {name: tensor, ...}
  void AddModel(int parameters) {
    Open();
    for (int i = 0; i < parameters; ++i) {
      // Python ends a SETITEMS after a thousand members, and opens a new mark.
      if (i > 0 && i % 1000 == 0) out_ += "u(";
      Add(absl::StrFormat("_fsdp_wrapped_module.model.layers.%d.mlp.experts.%d.weight", i / 100, i % 100));
      AddTensor();
    }
    out_ += "u";
  }

  // Ids are int32 (BININT) here although Python writes small ones in one or two bytes.
  // {"state": {0: {"step": tensor, ...}, ...}, "param_groups": [{"params": [0, ...]}]}
  void AddAdamW(int parameters) {
    Open();
    Add("state");
    Open();
    std::string ids;
    for (int i = 0; i < parameters; ++i) {
      if (i > 0 && i % 1000 == 0) out_ += "u(";
      ids += "J" + Long(i);
      out_ += "J" + Long(i);
      Open();
      for (const char* name : {"step", "exp_avg", "exp_avg_sq"}) {
        AddOnce(Text(name));
        AddTensor();
      }
      out_ += "u";
    }
    out_ += "u";
    Add("param_groups");
    Put("]");
    Open();
    Add("params");
    Put("]");
    out_ += "(" + ids + "eua" + "u";
  }

  void Open() {
    Put("}");
    out_ += "(";
  }
  void Add(const std::string& text) { Put(Text(text)); }
  void Close() { out_ += "u"; }
  std::string Finish() const { return "\x80\x02" + out_ + "."; }

 private:
  static std::string Text(const std::string& value) { return "X" + Long(static_cast<int64_t>(value.size())) + value; }

  // Appends `opcodes`, which create a value, and the PUT that numbers it.
  void Put(const std::string& opcodes) {
    const int64_t number = memo_++;
    out_ += opcodes + (number < 256 ? "q"s + static_cast<char>(number) : "r" + Long(number));
  }

  // Python writes a global or text once and refers to it by GET afterwards.
  void AddOnce(const std::string& opcodes) {
    if (const auto at = seen_.find(opcodes); at != seen_.end()) {
      out_ += at->second < 256 ? "h"s + static_cast<char>(at->second) : "j" + Long(at->second);
      return;
    }
    seen_[opcodes] = memo_;
    Put(opcodes);
  }

  // The call that torch.save pickles for a tensor, with its PUTs of values that are never read again.
  void AddTensor() {
    AddOnce("ctorch._utils\n_rebuild_tensor_v2\n");
    out_ += "((";
    AddOnce(Text("storage"));
    AddOnce("ctorch\nFloatStorage\n");
    Add(std::to_string(tensors_++));
    AddOnce(Text("cpu"));
    Put("K\4t");
    Put("QK\0K\2K\2\x86"s);
    Put("K\2K\1\x86");
    out_ += "\x89";
    AddOnce("ccollections\nOrderedDict\n");
    for (const char* opcodes : {")R", "t", "R"}) Put(opcodes);
  }

  std::string out_;
  int64_t memo_ = 0;
  int64_t tensors_ = 0;
  // Memo numbers of the texts and globals that recur.
  std::map<std::string, int64_t> seen_;
};

uint32_t CrcOf(const std::string& text) {
  return Crc32(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

}  // namespace

std::string ManyTensorsPickle(int parameters, bool has_optimizer) {
  TorchPickle pickle;
  if (!has_optimizer) {
    pickle.AddModel(parameters);
    return pickle.Finish();
  }
  pickle.Open();
  pickle.Add("model");
  pickle.AddModel(parameters);
  pickle.Add("optimizer");
  pickle.AddAdamW(parameters);
  pickle.Close();
  return pickle.Finish();
}

std::string ManyTensorsArchive(int parameters, bool has_optimizer) {
  const std::string pickle = ManyTensorsPickle(parameters, has_optimizer);
  const std::string storage(16, '\0');
  const int tensors = has_optimizer ? 4 * parameters : parameters;
  std::vector<ZipLayout::Member> members = {{"archive/data.pkl", static_cast<int64_t>(pickle.size())}};
  for (int i = 0; i < tensors; ++i) members.push_back({absl::StrCat("archive/data/", i), 16});
  const ZipLayout layout(std::move(members));
  // All storages are equal, so one CRC serves all; only the pickle's differs.
  std::vector<uint32_t> crcs(tensors + 1, CrcOf(storage));
  crcs[0] = CrcOf(pickle);
  std::string file;
  file.reserve(layout.nbytes());
  for (int i = 0; i <= tensors; ++i) absl::StrAppend(&file, layout.LocalHeader(i, crcs[i]), i == 0 ? pickle : storage);
  return file + layout.Directory(crcs);
}

}  // namespace fsdp
