// SPDX-License-Identifier: Apache-2.0
//
// Runs the benchmark on a few megabytes: each row does the work in its name, in any time.
#include "fsdp/checkpoint/benchmark/checkpoint_rows.h"

#include <cstring>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/benchmark/paired_rows.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

TEST(CheckpointRowsTest, EveryRowThatCanBeRunHereIsMeasuredAgainstItsFloor) {
  CheckpointRowsOptions options;
  options.directory = NewTestDirectory();
  options.payload_bytes = 3 << 20;
  options.tensors = 12;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CheckpointRows> all, CheckpointRows::Create(options));
  std::vector<PairedRow> rows = all->Rows();
  ASSERT_OK(MeasureRows(rows, 1));
  for (const PairedRow& row : rows) {
    const bool is_peer = row.name.find("h5py") != std::string::npos || row.name.find("torch") != std::string::npos ||
                         row.name.find("dcp") != std::string::npos;
    EXPECT_EQ(row.seconds.size(), is_peer ? 0 : 1) << row.name;
  }
  const nlohmann::json summary = SummariseRows(rows, all->nbytes());
  EXPECT_EQ(summary.size(), rows.size() - 9);
  const nlohmann::json missing = MissingRows(rows);
  ASSERT_EQ(missing.size(), 9);
  EXPECT_EQ(missing[0]["name"], "save, h5py");
  EXPECT_EQ(missing[0]["why"], "no python was given");
  for (const nlohmann::json& row : summary) EXPECT_GT(row["ratio"].get<double>(), 0) << row;
}

TEST(CheckpointRowsTest, LoadsBringBackWhatWasSaved) {
  CheckpointRowsOptions options;
  options.directory = NewTestDirectory();
  options.payload_bytes = 3 << 20;
  options.tensors = 12;
  BenchmarkTensors expected(options.tensors, options.payload_bytes);
  for (const char* name : {"load cold, floor", "load cold, verified", "load warm, 3 from 8", "load cold, H5Dread"}) {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CheckpointRows> all, CheckpointRows::Create(options));
    std::vector<PairedRow> rows = SelectRows(all->Rows(), name);
    rows.erase(rows.begin(), rows.end() - 1);  // without its floor
    ASSERT_OK(MeasureRows(rows, 0));
    EXPECT_EQ(std::memcmp(all->loaded().data(), expected.saved().data(), expected.nbytes()), 0) << name;
    options.directory = NewTestDirectory();
  }
}

TEST(PairedRowsTest, ARowIsComparedWithTheFloorOfTheSameRepetition) {
  const auto counting = [](double factor) {
    return [factor, run = 0]() mutable -> absl::StatusOr<double> { return factor * ++run; };
  };
  std::vector<PairedRow> rows = {{"floor", "floor", counting(1)},
                                 {"twice", "floor", counting(2)},
                                 {"none", "floor", [] { return absl::UnavailableError("not here"); }}};
  ASSERT_OK(MeasureRows(rows, 3));
  const nlohmann::json summary = SummariseRows(rows, 1000);
  ASSERT_EQ(summary.size(), 2);
  EXPECT_EQ(summary[1]["name"], "twice");
  EXPECT_EQ(summary[1]["seconds"], 6.0);  // the median of 4, 6 and 8: the first run is not counted
  EXPECT_EQ(summary[1]["ratio"], 2.0);
  EXPECT_EQ(summary[1]["highest_ratio"], 2.0);
  EXPECT_THAT(RowTable(summary), HasSubstr("twice                          6.000     4.000     8.000"));
  EXPECT_EQ(MissingTable(MissingRows(rows)), "none                       no number: not here\n");
}

TEST(PairedRowsTest, AnErrorNamesItsRow) {
  std::vector<PairedRow> rows = {{"floor", "floor", [] { return absl::DataLossError("lost"); }}};
  EXPECT_THAT(MeasureRows(rows, 1), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("row \"floor\": lost")));
}

TEST(PairedRowsTest, ASelectedRowBringsItsFloor) {
  const std::vector<PairedRow> rows = {
      {"save, floor", "save, floor", {}}, {"save, FULL", "save, floor", {}}, {"load, floor", "load, floor", {}}};
  const std::vector<PairedRow> selected = SelectRows(rows, "FULL");
  ASSERT_EQ(selected.size(), 2);
  EXPECT_EQ(selected[0].name, "save, floor");
  EXPECT_EQ(selected[1].name, "save, FULL");
}

}  // namespace
}  // namespace fsdp
