// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/dict_key.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/utf8.h"

namespace fsdp {

void DictKey::Respell() {
  text = is_json ? absl::StrCat(" ", text) : PythonJson(text).dump();
  is_json = true;
}

// Most keys are names and ids, which need no JSON.
absl::StatusOr<DictKey> DictKeyOf(PickleValue key, PickleBudget& budget) {
  if (key.is(PickleKind::kString) && IsUtf8(key.text())) return DictKey{std::string(key.text())};
  if (key.is(PickleKind::kInt)) return DictKey{absl::StrCat(key.integer()), true};
  FSDP_ASSIGN_OR_RETURN(const PythonJson json, JsonOfPickle(key, budget));
  const PythonJson* const object = FindObject(json);
  if (object == nullptr) return DictKey{json.dump(), true};
  DictKey name = {absl::StrCat("a key at byte ", key.place()), false, *object};
  (*name.object)["tensor"] = true;  // the member may be a weight
  return name;
}

}  // namespace fsdp
