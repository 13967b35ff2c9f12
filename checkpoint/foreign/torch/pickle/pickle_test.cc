// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"

#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/pickle/inert_globals.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_budget.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using namespace std::string_literals;  // NOLINT: literals
using testing::AllOf;
using testing::HasSubstr;

bool IsAllowed(std::string_view name) { return IsTorchGlobal(name); }

absl::StatusOr<std::unique_ptr<Pickle>> Parse(std::string_view bytes) {
  return Pickle::Parse(bytes, {.is_allowed = IsAllowed});
}

// The value of a pickle as JSON.
std::string JsonOf(const std::string& bytes) {
  const auto pickle = Parse(bytes);
  if (!pickle.ok()) return pickle.status().ToString();
  PickleBudget budget(**pickle);
  const auto json = JsonOfPickle((*pickle)->root(), budget);
  return json.ok() ? json->dump() : json.status().ToString();
}

TEST(PickleTest, ReadsWhatPythonWrites) {
  // pickle.dumps of {"a": [1, -2, 300, 70000, 2**40, 0.5, True, None], "b": (), "c": (1, 2, 3, 4), "d": b"x"} by
  // protocol.
  EXPECT_EQ(JsonOf("\x80\x02}q\x00(X\x01\x00\x00\x00"s
                   "aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01J"s
                   "p\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01G?\xe0\x00\x00\x00\x00\x00\x00\x88NeX\x01\x00\x00\x00"s
                   "bq\x03)X\x01\x00\x00\x00"s
                   "cq\x04(K\x01K\x02K\x03K\x04tq\x05u."s),
            R"({"a":[1,-2,300,70000,1099511627776,0.5,true,null],"b":{"__python__":"tuple","items":[]},)"
            R"("c":{"__python__":"tuple","items":[1,2,3,4]}})");
  EXPECT_EQ(JsonOf("\x80\x04\x95\x1b\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"s
                   "a\x94K\x01\x8c\x01"s
                   "d\x94"s
                   "C\x01x\x94\x8c\x01"s
                   "e\x94\x8f\x94(K\x07\x90u."s),
            R"({"a":1,"d":{"__python__":"bytes","hex":"78"},"e":{"__python__":"set","items":[7]}})");
  EXPECT_EQ(JsonOf("(I7\nI01\nL12L\nF1.5\nt."s), R"({"__python__":"tuple","items":[7,true,12,1.5]})");  // protocol 0
}

TEST(PickleTest, MemoEntriesAreTheSameValue) {
  const std::string bytes = "\x80\x02]q\x00h\x00h\x00\x86."s;  // ([], []) with the same list twice
  ASSERT_OK_AND_ASSIGN(const auto pickle, Parse(bytes));
  EXPECT_EQ(pickle->root().at(0).id(), pickle->root().at(1).id());
  EXPECT_EQ(pickle->size(), static_cast<int64_t>(bytes.size()));
}

TEST(PickleTest, ACallIsWrittenDownAndNotMade) {
  const std::string bytes = "\x80\x02"s + "ctorch\nSize\nK\x03\x85\x85R."s;
  ASSERT_OK_AND_ASSIGN(const auto pickle, Parse(bytes));
  EXPECT_TRUE(pickle->root().is_call("torch.Size"));
  EXPECT_EQ(pickle->root().arguments().at(0).at(0).integer(), 3);
}

TEST(PickleTest, AnyOtherGlobalIsRefusedByNameAndPlace) {
  EXPECT_THAT(Parse("\x80\x02}cos\nsystem\n."s),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("byte 3 of the pickle"), HasSubstr("it wants \"os.system\""),
                             HasSubstr("nothing was executed"))));
  EXPECT_THAT(Parse("\x80\x04\x8c\x05torch\x8c\x04load\x93."s),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("it wants \"torch.load\"")));
  // The message explains the global and gives advice, if the table has an entry.
  const PickleOptions advising = {.is_allowed = IsAllowed, .advice = AdviceOnGlobal};
  EXPECT_THAT(Pickle::Parse("ctorch._utils\n_rebuild_wrapper_subclass\n."s, advising),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("LOCAL_STATE_DICT"), HasSubstr("torch.distributed.checkpoint.save"))));
  EXPECT_THAT(Pickle::Parse("cnumpy.core.multiarray\n_reconstruct\n."s, advising),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("torch.from_numpy()")));
  // A different spelling of an allowed dotted name does not bypass the list.
  EXPECT_THAT(Parse("ctorch.serialization\n_get_layout.__globals__\n."s),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("_get_layout.__globals__")));
}

// Calls with an effect stay refused; objects of other classes must not lock a file.
TEST(PickleTest, OnlyGlobalsThatDoNotActAreInert) {
  for (const char* name :
       {"argparse.Namespace", "pathlib.PosixPath", "_io.BytesIO", "datetime.datetime", "__main__.Config",
        "collections.defaultdict", "builtins.list", "__builtin__.xrange", "builtins.Ellipsis", "__builtin__.max",
        "numpy._core.multiarray.scalar", "numpy.random._pickle.__generator_ctor", "osmium.Reader",
        "torch.optim.adamw.AdamW", "functools.partial", "types.SimpleNamespace", "torch.torch_version.TorchVersion",
        "torch.utils.data.dataset.TensorDataset"}) {
    EXPECT_TRUE(IsInertGlobal(name)) << name;
    EXPECT_FALSE(IsTensorGlobal(name)) << name;
  }
  for (const char* name : {"torch._utils._rebuild_sparse_tensor", "torch.nn.parameter.Buffer",
                           "torch.distributed.tensor.DTensor", "engine.float8.Float8Tensor._make"}) {
    EXPECT_TRUE(IsInertGlobal(name)) << name;
    EXPECT_TRUE(IsTensorGlobal(name)) << name;
  }
  for (const char* name :
       {"os.system", "posix.system", "os.path.join", "nt.system", "subprocess.Popen", "builtins.eval",
        "__builtin__.getattr", "builtins.__import__", "importlib.import_module", "operator.attrgetter", "sys.exit",
        "torch.load", "torch.serialization.load", "torch.serialization._get_layout.__globals__",
        "__main__.f.__globals__", "torch.storage._load_from_bytes"}) {
    EXPECT_FALSE(IsInertGlobal(name)) << name;
  }
}

TEST(PickleTest, APartOfAnInertObjectIsRefusedIfItActs) {
  EXPECT_OK(Pickle::Parse("cargparse\nNamespace\n)\x81}b.", TorchPickleOptions()));
  EXPECT_THAT(Pickle::Parse("cargparse\nNamespace\n)\x81}X\1\0\0\0acos\nsystem\nsb."s, TorchPickleOptions()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("it wants \"os.system\"")));
  // The result of a call may not be called: no list of names can say what that does.
  EXPECT_THAT(Pickle::Parse("cfunctools\npartial\n)R)R.", TorchPickleOptions()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("an object that is not a global")));
}

TEST(PickleTest, OpcodesThatStateDictsDoNotNeedAreRefused) {
  for (const char opcode :
       {'i', 'o', 'P', 'S', 'V', '2', 'l', 'd', 'p', 'g', '\x82', '\x83', '\x84', '\x92', '\x97', '\x98', '\xff'}) {
    EXPECT_THAT(Parse(std::string("\x80\x02") + opcode + "."),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("which no state dict needs")));
  }
}

TEST(PickleTest, TruncatedOrDisorderedBytesAreDamage) {
  const std::vector<std::string> broken = {
      "",                            // no STOP
      "\x80\x02"s,                   // no value
      "\x80\x02."s,                  // an empty stack
      "X\xff\xff\x00\x00"s + "ab.",  // a truncated string
      "h\x07."s,                     // a memo entry that was never written
      "t."s,                         // no mark
      "(."s,                         // a mark is not a value
      "]K\x01s."s,                   // SETITEM with too few values
      "}K\x01\x61."s,                // APPEND to a dict
      "(K\x01}u."s,                  // a dict below its own mark
      "}(K\x01u."s,                  // a key without a value
      "\x8a\x04\x01."s,              // a truncated LONG1
      "\x95\xff\xff\xff\xff\xff\xff\xff\xff."s,
      "I12x\n."s,
  };
  for (const std::string& bytes : broken) {
    EXPECT_THAT(Parse(bytes), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of the pickle")))
        << testing::PrintToString(bytes);
  }
}

TEST(PickleTest, LimitsBoundWhatAPickleMayTake) {
  PickleOptions options = {.is_allowed = IsAllowed};
  options.limits.max_memory = 1000;
  EXPECT_THAT(Pickle::Parse("\x80\x02"s + std::string(1000, ']') + ".", options),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("more than 1000 bytes")));
  options = {.is_allowed = IsAllowed};
  options.limits.max_string_bytes = 3;
  EXPECT_THAT(Pickle::Parse("X\x04\x00\x00\x00"s + "abcd.", options),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("a string of 4 bytes, more than 3")));
  options = {.is_allowed = IsAllowed};
  options.limits.max_depth = 2;
  EXPECT_THAT(Pickle::Parse("(((ttt."s, options), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(PickleTest, AListThatHoldsItselfIsAnErrorAndNoLoop) {
  EXPECT_THAT(JsonOf("\x80\x02]q\x00h\x00\x61."s), HasSubstr("too large or too deep"));
}

TEST(PythonJsonTest, TextsAndValuesAreOneToOne) {
  for (const char* text : {"5", "1.5", "abc", "", "\"abc\"", "\"5\"", "\"\\\"5\\\"\"", "{\"a\": 1}", "{\"a\":1}",
                           "[1,2]", "null", "nan"}) {
    EXPECT_EQ(TextOfPython(PythonOfText(text)), text);
  }
  for (const char* json : {"5", "\"5\"", "\"abc\"", "\"\\\"5\\\"\"", "{\"a\":[1,null]}", "\"\""}) {
    const PythonJson value = PythonJson::parse(json);
    EXPECT_EQ(PythonOfText(TextOfPython(value)), value) << json;
  }
}

TEST(PythonJsonTest, TextsNestedWithoutEndStayTexts) {
  const std::string text = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_EQ(PythonOfText(text), PythonJson(text));
  EXPECT_TRUE(ParsePythonJson(text).is_discarded());
}

}  // namespace
}  // namespace fsdp
