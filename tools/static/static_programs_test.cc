// SPDX-License-Identifier: Apache-2.0
//
// The static programs in a root directory that holds only them and their input: without libraries, /proc, /dev and
// /tmp. Skips if this user may neither chroot nor make a user namespace for it.
#include <elf.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/object/fake_object_store.h"
#include "fsdp/checkpoint/object/fake_s3_server.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr int kMayNotChroot = 99;  // exit status of a child that cannot enter its root

// System calls that a run is refused, and the error that it gets instead.
struct Refusal {
  std::vector<uint32_t> calls = {};
  int error = 0;
};

// The system calls since Linux 4.4, of the year 2016, that the C library or this project uses.
const Refusal kOldKernel = {
    {__NR_close_range, __NR_pidfd_open, __NR_statx, __NR_clone3, __NR_rseq, __NR_faccessat2, __NR_openat2, __NR_preadv2,
     __NR_pwritev2, __NR_copy_file_range, __NR_io_uring_setup, __NR_io_uring_enter, __NR_io_uring_register},
    ENOSYS};
// As in a container's filter.
const Refusal kContainer = {{__NR_io_uring_setup, __NR_io_uring_enter, __NR_io_uring_register, __NR_seccomp}, EPERM};

// Runs in the child, as its last call: if `calls` has seccomp, prctl(PR_SET_SECCOMP) is refused afterwards too.
bool Install(const Refusal& refusal) {
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  const sock_filter deny = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(refusal.error));
  for (const uint32_t call : refusal.calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(deny);
    if (call != __NR_seccomp) continue;
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_prctl, 0, 4));
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_SECCOMP, 0, 1));
    program.push_back(deny);
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter = {static_cast<uint16_t>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

struct Outcome {
  int status = -1;  // of exit, or -1 - the signal
  std::string out;
  std::string err;
};

class StaticProgramsTest : public testing::Test {
 protected:
  StaticProgramsTest()
      : root_(testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name()),
        out_(root_ + ".out"),
        err_(root_ + ".err") {
    fs::remove_all(root_);
    fs::create_directories(root_);
    fs::copy_file("tools/ckpt_static", root_ + "/ckpt");
    fs::copy_file("tools/launch_static", root_ + "/launch");
    fs::copy_file("checkpoint/testdata/all_dtypes.safetensors", root_ + "/model.safetensors");
  }
  ~StaticProgramsTest() override { fs::remove_all(root_); }

  void SetUp() override {
    if (InRoot({"/ckpt", "--help"}).status == kMayNotChroot) {
      GTEST_SKIP() << "this user may neither chroot(2) nor unshare(CLONE_NEWUSER)";
    }
  }

  // Runs words[0], a path in the root, in it.
  Outcome InRoot(const std::vector<std::string>& words, const Refusal& refusal = {}) const {
    return Start(words, [&] {
      if (geteuid() != 0 && unshare(CLONE_NEWUSER) != 0) _exit(kMayNotChroot);
      if (chroot(root_.c_str()) != 0 || chdir("/") != 0) _exit(kMayNotChroot);
      if (!refusal.calls.empty() && !Install(refusal)) _exit(98);
    });
  }

  // Runs words[0] here, in the root as working directory.
  Outcome Here(const std::vector<std::string>& words) const {
    return Start(words, [&] {
      if (chdir(root_.c_str()) != 0) _exit(98);
    });
  }

  // Every step of a checkpoint's life that needs neither a GPU nor a network, each without output on stderr.
  void ExpectAllOfIt(const Refusal& refusal) const {
    const std::vector<std::vector<std::string>> lines = {
        {"/ckpt", "convert", "model.safetensors", "full"},
        {"/ckpt", "convert", "full", "sharded", "--state_dict_type=sharded", "--world_size=4", "--parity=1"},
        {"/ckpt", "convert", "sharded", "model.pt"},
        {"/ckpt", "convert", "sharded", "dcp", "--to=dcp"},
        {"/ckpt", "verify", "sharded"},
        {"/ckpt", "verify", "full/checkpoint.h5"},  // by the HDF5 library, in a confined process
        {"/ckpt", "inspect", "sharded"},
        {"/ckpt", "diff", "full", "sharded"},
        {"/ckpt", "diff", "sharded", "dcp", "--model_only"},
        {"/ckpt", "view", "model.safetensors", "view.h5"},
        {"/ckpt", "repair", "sharded"},
        {"/launch", "--nproc=2", "--", "/ckpt", "verify", "sharded"},
    };
    for (const std::vector<std::string>& words : lines) {
      const Outcome run = InRoot(words, refusal);
      EXPECT_EQ(run.status, 0) << words[0] << " " << words[1] << " " << words[2];
      EXPECT_EQ(run.err, "") << words[0] << " " << words[1] << " " << words[2];
    }
  }

  const std::string root_;
  std::vector<std::string> environment_ = {};  // of the programs: "NAME=VALUE"

 private:
  template <typename Prepare>
  Outcome Start(std::vector<std::string> words, const Prepare& prepare) const {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::vector<std::string> variables = environment_;
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      dup2(open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
      dup2(open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
      prepare();
      execve(arguments[0], arguments.data(), environment.data());
      _exit(97);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1 - WTERMSIG(status), ReadFile(out_), ReadFile(err_)};
  }

  const std::string out_;
  const std::string err_;
};

TEST_F(StaticProgramsTest, AreOneFileWithoutALoader) {
  for (const char* name : {"/ckpt", "/launch"}) {
    const std::string bytes = ReadFile(root_ + name);
    ASSERT_GT(bytes.size(), sizeof(Elf64_Ehdr));
    Elf64_Ehdr header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    ASSERT_GT(header.e_phnum, 0);
    for (int i = 0; i < header.e_phnum; ++i) {
      Elf64_Phdr segment;
      std::memcpy(&segment, bytes.data() + header.e_phoff + i * sizeof(segment), sizeof(segment));
      EXPECT_NE(segment.p_type, static_cast<uint32_t>(PT_INTERP)) << name;
      EXPECT_NE(segment.p_type, static_cast<uint32_t>(PT_DYNAMIC)) << name;
    }
  }
}

TEST_F(StaticProgramsTest, DoAllOfItInAnEmptyRoot) { ExpectAllOfIt({}); }

TEST_F(StaticProgramsTest, SayNothingWhereIoUringAndSeccompAreRefused) { ExpectAllOfIt(kContainer); }

TEST_F(StaticProgramsTest, SayNothingOnAKernelOfTheYear2016) { ExpectAllOfIt(kOldKernel); }

TEST_F(StaticProgramsTest, WriteTheBytesThatTheOrdinaryProgramWrites) {
  ASSERT_EQ(InRoot({"/ckpt", "convert", "model.safetensors", "full"}).status, 0);
  ASSERT_EQ(Here({fs::absolute("tools/ckpt"), "convert", "model.safetensors", "ordinary"}).status, 0);
  const std::string written = ReadFile(root_ + "/full/checkpoint.h5");
  EXPECT_GT(written.size(), 1000u);
  EXPECT_TRUE(written == ReadFile(root_ + "/ordinary/checkpoint.h5"));
}

// A lost rank file is made again from parity that the other program's Reed-Solomon code has computed.
TEST_F(StaticProgramsTest, RepairWhatTheOrdinaryProgramProtected) {
  ASSERT_EQ(Here({fs::absolute("tools/ckpt"), "convert", "model.safetensors", "sharded", "--state_dict_type=sharded",
                  "--world_size=5", "--parity=2"})
                .status,
            0);
  const std::string lost[] = {root_ + "/sharded/rank-00001-of-00005.h5", root_ + "/sharded/rank-00004-of-00005.h5"};
  const std::string bytes[] = {ReadFile(lost[0]), ReadFile(lost[1])};
  ASSERT_GT(bytes[0].size(), 0u);
  for (const std::string& path : lost) ASSERT_TRUE(fs::remove(path));
  EXPECT_EQ(InRoot({"/ckpt", "repair", "sharded"}).status, 0);
  for (int i : {0, 1}) EXPECT_TRUE(ReadFile(lost[i]) == bytes[i]) << lost[i];
  EXPECT_EQ(InRoot({"/ckpt", "verify", "sharded"}).status, 0);
}

TEST_F(StaticProgramsTest, PushPullAndReadAnObjectStore) {
  FakeObjectStore bucket(/*part_bytes=*/int64_t{1} << 30);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<FakeS3Server> server, FakeS3Server::Start(bucket));
  const AwsConfig& config = server->config();
  environment_ = {"AWS_ACCESS_KEY_ID=" + config.credentials.access_key_id,
                  "AWS_SECRET_ACCESS_KEY=" + config.credentials.secret_access_key,
                  "AWS_SESSION_TOKEN=" + config.credentials.session_token, "AWS_REGION=" + config.region,
                  "AWS_ENDPOINT_URL=" + config.endpoint};
  const std::vector<std::vector<std::string>> lines = {
      {"/ckpt", "convert", "model.safetensors", "full", "--step=7"},
      {"/ckpt", "push", "full", "s3://models/run"},
      {"/ckpt", "inspect", "s3://models/run"},
      {"/ckpt", "verify", "s3://models/run"},
      {"/ckpt", "diff", "full", "s3://models/run"},
      {"/ckpt", "convert", "s3://models/run", "model.pt"},
      {"/ckpt", "pull", "s3://models/run", "copy"},
      {"/ckpt", "verify", "copy"},
  };
  for (const Refusal& refusal : {Refusal(), kOldKernel}) {
    for (const std::vector<std::string>& words : lines) {
      const Outcome run = InRoot(words, refusal);
      EXPECT_EQ(run.status, 0) << words[1] << " " << words[2];
      EXPECT_EQ(run.err, "") << words[1] << " " << words[2];
    }
    for (const char* made : {"full", "model.pt", "copy"}) fs::remove_all(root_ + "/" + made);
    for (const auto& [key, bytes] : bucket.objects()) EXPECT_OK(bucket.Delete(key));
  }
  EXPECT_EQ(server->refused(), 0);
}

// qemu's first model of x86-64 has SSE2 and SSE3, and ends a program at an instruction that the model lacks.
TEST_F(StaticProgramsTest, RunOnAProcessorWithoutSsse3AndAvx) {
  std::string qemu;
  for (const char* path : {"/usr/bin/qemu-x86_64-static", "/usr/bin/qemu-x86_64"}) {
    if (qemu.empty() && fs::exists(path)) qemu = path;
  }
  if (qemu.empty()) GTEST_SKIP() << "there is no qemu-x86_64: apt-get install qemu-user-static";
  const std::vector<std::vector<std::string>> lines = {
      {"convert", "model.safetensors", "sharded", "--state_dict_type=sharded", "--world_size=3", "--parity=1"},
      {"verify", "sharded"},
      {"convert", "sharded", "model.pt", "--dtype=bfloat16"},
      {"verify", "model.pt"},
      {"inspect", "sharded"},
  };
  for (const char* cpu : {"qemu64", "Nehalem", "Haswell"}) {
    for (const char* made : {"sharded", "model.pt"}) fs::remove_all(root_ + "/" + made);
    for (const std::vector<std::string>& line : lines) {
      std::vector<std::string> words = {qemu, "-cpu", cpu, root_ + "/ckpt"};
      words.insert(words.end(), line.begin(), line.end());
      const Outcome run = Here(words);
      EXPECT_EQ(run.status, 0) << cpu << ": " << line[0] << " " << line[1] << ": " << run.err;
    }
  }
}

}  // namespace
}  // namespace fsdp
