// SPDX-License-Identifier: Apache-2.0
//
// CkptTest: runs the ckpt program as a user does, for tests.
#ifndef FSDP_TOOLS_COMMANDS_CKPT_TESTUTIL_H_
#define FSDP_TOOLS_COMMANDS_CKPT_TESTUTIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/base/file_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {

struct Outcome {
  int status = -1;         // exit status; 128 + n if signal n ended it; -1 if it did not start
  std::string out = {};    // stdout
  std::string err = {};    // stderr
  int64_t peak_bytes = 0;  // largest resident set
};

void WriteFile(const std::string& path, const std::string& bytes);

// Names in a directory, hidden ones too, sorted.
std::vector<std::string> NamesIn(const std::string& directory);

// A fixture with an empty directory of its own.
class CkptTest : public testing::Test {
 protected:
  CkptTest();
  ~CkptTest() override;

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  // The path of a file in the test data of checkpoint/.
  static std::string TestData(const std::string& name);

  // Runs `ckpt arguments...`.
  Outcome Ckpt(const std::vector<std::string>& arguments) const;

  // The same under `ulimit limit`, such as "-n 8".
  Outcome CkptWithin(const std::string& limit, const std::vector<std::string>& arguments) const;

  // As Ckpt, expecting exit status 0; returns stdout.
  std::string MustCkpt(const std::vector<std::string>& arguments) const;

 private:
  std::string directory_;
};

}  // namespace fsdp

#endif  // FSDP_TOOLS_COMMANDS_CKPT_TESTUTIL_H_
