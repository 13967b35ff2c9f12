// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pt/wheel_index.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/source/json_document.h"
#include "fsdp/checkpoint/source/without_value.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

// The members of the index, by DCP's names: [kind, name of ours, path, ...]. Null for any other text of that name.
nlohmann::json KeysOf(const std::string& text) {
  const absl::StatusOr<nlohmann::json> index = ParseJson(text);
  const bool is_index = index.ok() && index->is_object() && index->contains("version") && index->contains("keys");
  return is_index && (*index)["keys"].is_object() ? (*index)["keys"] : nlohmann::json();
}

}  // namespace

std::vector<std::string> TakeWheelIndex(StateDict& state) {
  const StateKey key = StateKey::Extra("torch.distributed.checkpoint");
  const std::string* const text = state.FindText(key);
  if (text == nullptr) return {};
  const nlohmann::json keys = KeysOf(*text);
  if (keys.is_null()) return {};
  std::vector<std::string> notes;
  for (const auto& [name, value] : keys.items()) {
    if (!value.is_array() || value.empty() || value[0] != "torch.save") continue;
    notes.push_back(
        absl::StrCat(Quote(name), " is written as the bytes of a pickle, a uint8 tensor, since the program ",
                     "saved an object that is no plain value: torch.load(io.BytesIO(bytes(tensor.numpy())))"));
  }
  state = WithoutValue(key, state);
  return notes;
}

}  // namespace fsdp
