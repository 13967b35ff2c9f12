// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/safetensors_metadata.h"

#include "fsdp/checkpoint/source/without_value.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

std::map<std::string, std::string> Default() { return {{"format", "pt"}}; }

}  // namespace

// An extra text, since a checkpoint has no other place for a format's own metadata.
StateKey SafetensorsMetadataKey() { return StateKey::Extra("__metadata__"); }

void KeepSafetensorsMetadata(const std::map<std::string, std::string>& metadata, StateDict& contents) {
  if (metadata.empty() || metadata == Default()) return;
  contents.Set(SafetensorsMetadataKey(), nlohmann::json(metadata).dump());
}

absl::StatusOr<std::map<std::string, std::string>> SafetensorsMetadata(
    const std::map<std::string, std::string>& of_source, const StateDict& contents) {
  if (!of_source.empty()) return of_source;
  const std::string* text = contents.FindText(SafetensorsMetadataKey());
  if (text == nullptr) return Default();
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  std::map<std::string, std::string> metadata;
  const auto error = [] { return absl::DataLossError("extra/__metadata__ is not a JSON object of strings"); };
  if (!json.is_object()) return error();
  for (const auto& [name, value] : json.items()) {
    if (!value.is_string()) return error();
    metadata.emplace(name, value.get<std::string>());
  }
  return metadata;
}

bool TakeSafetensorsMetadata(StateDict& contents) {
  const StateKey key = SafetensorsMetadataKey();
  if (contents.FindText(key) == nullptr || !SafetensorsMetadata({}, contents).ok()) return false;
  contents = WithoutValue(key, contents);
  return true;
}

}  // namespace fsdp
