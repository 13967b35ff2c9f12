// SPDX-License-Identifier: Apache-2.0
//
// How the writers are chosen. A rank whose tensors are all copies (ShardedTensor::replica is not 0) writes nothing;
// every other rank writes. This is correct only if each copy has an original. Checking that needs no list of all
// tensors: ranks that hold shards of the same tensors have the same digest of names, dtypes and shapes, so it suffices
// that every digest also occurs on a writer. Texts and attributes are saved by rank 0, and must be equal everywhere: a
// difference is a bug of the training program that otherwise appears only after a resume.
#include "fsdp/checkpoint/native/save/save_agreement.h"

#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/stored_attributes.h"
#include "fsdp/checkpoint/source/json_document.h"

namespace fsdp {
namespace {

using nlohmann::json;

absl::Status Disagree(const std::string& what) { return absl::FailedPreconditionError(what); }

absl::Status CheckEqual(const json& first, const json& other, int rank, const char* member) {
  if (first[member] == other[member]) return absl::OkStatus();
  return Disagree(absl::StrCat("ranks disagree about the save: ", member, " is ", other[member].dump(), " on rank ",
                               rank, " and ", first[member].dump(), " on rank 0"));
}

absl::Status CheckTexts(const json& first, const json& other, int rank) {
  for (const auto& [name, digest] : other["texts"].items()) {
    if (!first["texts"].contains(name)) {
      return Disagree(
          absl::StrCat("text ", Quote(name), " is on rank ", rank, " but not on rank 0, whose texts are saved"));
    }
    if (first["texts"][name] != digest) {
      return Disagree(absl::StrCat("text ", Quote(name), " on rank ", rank, " differs from rank 0's, which is saved"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RunMetadata> AttributesIn(const json& facts) {
  FSDP_ASSIGN_OR_RETURN(const json document, ParseJson(facts["attributes"].get<std::string>()));
  return DecodeAttributes(document);
}

absl::Status CheckAttributesEqual(const json& first, const json& other, int rank) {
  if (first["attributes"] == other["attributes"]) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const RunMetadata saved, AttributesIn(first));
  FSDP_ASSIGN_OR_RETURN(const RunMetadata differing, AttributesIn(other));
  // The JSON texts differ; compare values, to name the first attribute that does.
  const std::vector<AttributeDifference> differences = CompareAttributes(saved, differing);
  if (differences.empty()) return absl::OkStatus();  // 0.0 and -0.0
  return Disagree(absl::StrCat("the attributes on rank ", rank,
                               " differ from rank 0's, which are saved: ", ToString(differences[0])));
}

}  // namespace

std::string EncodeFacts(int64_t step, StateDictType type, const SaveOptions& options, const SavePlan& plan) {
  json texts = json::object();
  for (const TreeFile::Text& text : plan.texts) {
    // Digests, not the texts, which may have megabytes: every rank receives the facts of all.
    texts[text.key.ToString()] = DigestOf(std::string_view(text.text)).ToHex();
  }
  const json facts = {{"step", step},
                      {"state_dict_type", std::string(StateDictTypeName(type))},
                      {"checkpoint_type", std::string(StateDictTypeName(options.type.value_or(type)))},
                      {"name", options.name},
                      {"overwrite", options.overwrite},
                      {"parity", options.parity},
                      {"writer", plan.is_writer},
                      {"tensors", plan.tensors_digest.ToHex()},
                      {"texts", texts},
                      {"attributes", EncodeAttributes(plan.attributes, "")}};
  return facts.dump();
}

absl::StatusOr<std::vector<int>> ChooseWriters(const std::vector<std::string>& facts) {
  std::vector<json> all;
  for (const std::string& blob : facts) {
    FSDP_ASSIGN_OR_RETURN(json fact, ParseJson(blob));
    all.push_back(std::move(fact));
  }
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (const char* member : {"step", "name", "state_dict_type", "checkpoint_type", "overwrite", "parity"}) {
      FSDP_RETURN_IF_ERROR(CheckEqual(all[0], all[rank], static_cast<int>(rank), member));
    }
  }
  // The other ranks' plans are empty for a FULL state, so the checks below do not apply.
  if (all[0]["state_dict_type"] == std::string(StateDictTypeName(StateDictType::kFull))) return std::vector<int>{0};
  // A shared file has one order of tensors, so all ranks that write into it must have this order.
  const bool is_shared = all[0]["checkpoint_type"] == std::string(StateDictTypeName(StateDictType::kFull));
  for (size_t rank = 1; is_shared && rank < all.size(); ++rank) {
    if (all[rank]["tensors"] == all[0]["tensors"]) continue;
    return Disagree(absl::StrCat("rank ", rank, " holds parts of other tensors than rank 0, and all write one file"));
  }
  // Every rank computes this from the same facts in the same order, so no further message is needed to agree on it.
  std::vector<int> writers;
  std::set<std::string> written;  // digests of the tensors that the writers know
  for (size_t rank = 0; rank < all.size(); ++rank) {
    FSDP_RETURN_IF_ERROR(CheckTexts(all[0], all[rank], static_cast<int>(rank)));
    FSDP_RETURN_IF_ERROR(CheckAttributesEqual(all[0], all[rank], static_cast<int>(rank)));
    if (!all[rank]["writer"].get<bool>()) continue;
    writers.push_back(static_cast<int>(rank));
    written.insert(all[rank]["tensors"].get<std::string>());
  }
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (written.count(all[rank]["tensors"].get<std::string>()) != 0) continue;
    return Disagree(
        absl::StrCat("rank ", rank, " holds nothing but copies (replica is not 0), of tensors that no rank saves"));
  }
  return writers;
}

std::string EncodeSharedDirectory(const SharedDirectory& shared) {
  return json({{"name", shared.name}, {"save_id", shared.save_id}}).dump();
}

absl::StatusOr<SharedDirectory> DecodeSharedDirectory(std::string_view blob) {
  FSDP_ASSIGN_OR_RETURN(const json document, ParseJson(blob));
  SharedDirectory shared;
  FSDP_ASSIGN_OR_RETURN(shared.name, StringMember(document, "name"));
  FSDP_ASSIGN_OR_RETURN(shared.save_id, StringMember(document, "save_id"));
  return shared;
}

std::string EncodeOffsets(const std::vector<int64_t>& offsets) { return json({{"offsets", offsets}}).dump(); }

absl::StatusOr<std::vector<int64_t>> DecodeOffsets(std::string_view blob) {
  FSDP_ASSIGN_OR_RETURN(const json document, ParseJson(blob));
  return IntegerArrayMember(document, "offsets");
}

// JSON numbers hold 64 bits in nlohmann, so sizes survive the exchange exactly.
std::string EncodeParityPlan(const ParityPlan& plan) {
  json names = json::array();
  json sizes = json::array();
  for (const ParityPlan::DataFile& file : plan.data) {
    names.push_back(file.name);
    sizes.push_back(file.nbytes);
  }
  return json({{"names", names}, {"bytes", sizes}, {"parity", plan.parity}}).dump();
}

absl::StatusOr<ParityPlan> DecodeParityPlan(std::string_view blob) {
  FSDP_ASSIGN_OR_RETURN(const json document, ParseJson(blob));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, StringArrayMember(document, "names"));
  FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, IntegerArrayMember(document, "bytes"));
  // The loop below indexes both arrays.
  if (names.size() != sizes.size()) return absl::DataLossError("a plan of parity with a size missing");
  ParityPlan plan;
  for (size_t i = 0; i < names.size(); ++i) plan.data.push_back({names[i], sizes[i]});
  FSDP_ASSIGN_OR_RETURN(plan.parity, StringArrayMember(document, "parity"));
  return plan;
}

std::string EncodeDigests(const std::vector<Digest>& digests) {
  json all = json::array();
  for (const Digest& digest : digests) all.push_back(digest.ToHex());
  return json({{"digests", all}}).dump();
}

absl::StatusOr<std::vector<Digest>> DecodeDigests(std::string_view blob) {
  FSDP_ASSIGN_OR_RETURN(const json document, ParseJson(blob));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, StringArrayMember(document, "digests"));
  std::vector<Digest> digests;
  for (const std::string& hex : all) {
    FSDP_ASSIGN_OR_RETURN(const Digest digest, ParseDigest(hex));
    digests.push_back(digest);
  }
  return digests;
}

std::string EncodeWrittenFile(const WrittenFile& file) {
  json digests = json::array();
  for (const Digest& digest : file.record.digests) digests.push_back(digest.ToHex());
  const json document = {{"name", file.name},
                         {"bytes", file.nbytes},
                         {"record_offset", file.record.range.offset},
                         {"record_bytes", file.record.range.nbytes},
                         {"record_digests", digests},
                         {"links", file.links}};
  return document.dump();
}

absl::StatusOr<WrittenFile> DecodeWrittenFile(std::string_view blob) {
  FSDP_ASSIGN_OR_RETURN(const json document, ParseJson(blob));
  WrittenFile file;
  FSDP_ASSIGN_OR_RETURN(file.name, StringMember(document, "name"));
  FSDP_ASSIGN_OR_RETURN(file.nbytes, IntegerMember(document, "bytes"));
  FSDP_ASSIGN_OR_RETURN(file.record.range.offset, IntegerMember(document, "record_offset"));
  FSDP_ASSIGN_OR_RETURN(file.record.range.nbytes, IntegerMember(document, "record_bytes"));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> digests, StringArrayMember(document, "record_digests"));
  for (const std::string& hex : digests) {
    FSDP_ASSIGN_OR_RETURN(const Digest digest, ParseDigest(hex));
    file.record.digests.push_back(digest);
  }
  FSDP_ASSIGN_OR_RETURN(const json* links, ArrayMember(document, "links"));
  for (const json& link : *links) file.links.push_back(link.get<std::pair<std::string, int64_t>>());
  return file;
}

}  // namespace fsdp
