// SPDX-License-Identifier: Apache-2.0
//
// The page is built from strings, section by section, without a template engine: half of it is SVG (page_charts.h),
// whose numbers must be computed in any case. Two rules keep it safe and small: every name from the checkpoint goes
// through Html() or Name(), which replace control characters and escape markup, and every list is bounded
// (kMaxLayerRows, kMaxFileRows, kMaxTensorRows, and the bounds of run_facts.cc).
//
//   Headline, Tiles   which checkpoint, where and from when; totals, NaN and infinity
//   layer_sections.h  bytes by file and by layer, values of the weights, moments
//   tensor_table.h    the largest tensors
//   run_facts.h       config, options, data, param_groups
#include "fsdp/tools/inspect/ckpt_page.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/inspect/layer_sections.h"
#include "fsdp/tools/inspect/tensor_table.h"
#include "fsdp/tools/page/html.h"
#include "fsdp/tools/page/table_script.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

std::string Size(int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

// A format of others may record neither a step nor a world size.
std::string Kind(const CheckpointSummary& summary) {
  const SaveIdentity& save = summary.manifest.save;
  if (summary.traits().is_ours) {
    return absl::StrCat(std::string(StateDictTypeName(save.type)), " checkpoint of ", save.StepText(), ", world size ",
                        save.world_size, ", written by ", Html(save.producer));
  }
  return absl::StrCat(EscapeHtml(summary.format->name()), save.has_step ? absl::StrCat(", step ", save.step) : "");
}

std::string Headline(const CheckpointSummary& summary, const RunFacts& facts) {
  std::string html = absl::StrCat("<h1>", Name(ShortPath(facts.absolute_path)), "</h1><p>", Kind(summary), "<br>",
                                  Name(facts.absolute_path));
  if (!facts.date.empty()) absl::StrAppend(&html, ", ", facts.date);
  return html + "</p>\n";
}

// The totals at the top of the page.
std::string Tiles(const Manifest& manifest, const TensorStatistics& statistics) {
  int64_t parameters = 0;
  int64_t bytes[2] = {};  // of the model, and of the rest
  std::set<std::string> dtypes;
  NonFinite nonfinite;
  int64_t unread = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    const bool is_model = tensor.key.section == Section::kModel;
    bytes[is_model ? 0 : 1] += tensor.shape.numel() * SizeOf(tensor.dtype);
    if (is_model) {
      parameters += tensor.shape.numel();
      dtypes.insert(std::string(DTypeName(tensor.dtype)));
    }
    const auto found = statistics.find(tensor.key);
    if (found == statistics.end()) continue;
    nonfinite.Add(found->second.nonfinite);
    unread += found->second.unread;
  }
  const std::string dtype = dtypes.size() == 1 ? *dtypes.begin() : absl::StrCat(dtypes.size(), " dtypes");
  const bool any = nonfinite.any();
  return absl::StrCat(
      "<div class=\"tiles\">", Tile(Count(parameters), "elements of the model, " + dtype),
      Tile(Size(bytes[0]), "model"), Tile(Size(bytes[1]), "optimizer and extra values"),
      Tile(Count(static_cast<int64_t>(manifest.tensors.size())), "tensors"),
      Tile(Count(static_cast<int64_t>(manifest.files.size())), manifest.files.size() == 1 ? "file" : "files"),
      Tile(any ? absl::StrCat(Count(nonfinite.nan), " / ", Count(nonfinite.inf)) : "none",
           unread == 0 ? "NaN / infinite values" : "NaN / infinite values, of those that were read",
           any          ? "bad"
           : unread > 0 ? ""
                        : "good"),
      "</div>\n");
}

// Links of an HDF5 file; empty if it has no links.
std::string LeftOut(const CheckpointSummary& summary) {
  if (summary.left_out.empty()) return "";
  std::string html = Opening("Left out", "Links are not followed, so their targets are not on this page.");
  for (const std::string& left_out : summary.left_out) absl::StrAppend(&html, "<p>", Name(left_out), "</p>\n");
  return html + "</section>\n";
}

// Tensors that were not wholly read; may be empty.
std::string NotWhollyReadSection(const TensorStatistics& statistics) {
  std::string rows;
  size_t count = 0;
  for (const auto& [key, values] : statistics) {
    if (values.unread == 0 || ++count > kMaxTensorRows) continue;
    absl::StrAppend(&rows, "<p>", Name(key.ToString()), ": ", Count(values.numel), " elements of ",
                    Count(values.numel + values.unread), "</p>\n");
  }
  if (count == 0) return "";
  if (count > kMaxTensorRows) absl::StrAppend(&rows, "<p>", Count(count - kMaxTensorRows), " more tensors</p>\n");
  return absl::StrCat(Opening("Not wholly read",
                              "These tensors are views of storages that other tensors share, and in sum much larger "
                              "than the files: of each only the first elements were read."),
                      rows, "</section>\n");
}

}  // namespace

std::string CheckpointPage(const CheckpointSummary& summary, const TensorStatistics& statistics,
                           const RunFacts& facts) {
  const CheckpointLayers layers = LayersOf(summary.manifest, statistics);
  const std::vector<PageScript> scripts = {kTableScript};
  std::string html =
      PageHead(ShortPath(facts.absolute_path), ColumnLabels("tensors", TensorColumns(summary.manifest)), scripts);
  absl::StrAppend(&html, Headline(summary, facts), Tiles(summary.manifest, statistics), LeftOut(summary),
                  NotWhollyReadSection(statistics));
  absl::StrAppend(&html, FilesSection(layers), SizesSection(layers), ValuesSection(layers), MomentsSection(layers),
                  TensorsSection(summary.manifest, statistics), FactsSection(facts));
  const bool is_all =
      std::all_of(statistics.begin(), statistics.end(), [](const auto& of) { return of.second.unread == 0; });
  return absl::StrCat(html, PageFoot(absl::StrCat("Made by ckpt inspect --html. ",
                                                  is_all ? "Every stored value was read"
                                                         : "Not every stored value was read (see above)",
                                                  ", and digests were verified if the format has them."),
                                     scripts));
}

}  // namespace fsdp
