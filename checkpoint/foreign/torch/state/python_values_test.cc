// SPDX-License-Identifier: Apache-2.0
//
// Values as Python's pickler writes them for torch.save (protocol 2; others if they differ), their JSON, and the
// pickle that is written from it. torch_oracle_test checks that torch reads such pickles.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/pickle/inert_globals.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_budget.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using namespace std::string_literals;  // NOLINT: literals
using testing::HasSubstr;

absl::StatusOr<PythonJson> JsonOf(std::string_view bytes) {
  FSDP_ASSIGN_OR_RETURN(const auto pickle, Pickle::Parse(bytes, {.is_allowed = IsTorchGlobal}));
  PickleBudget budget(*pickle);
  return JsonOfPickle(pickle->root(), budget);
}

std::string PickleOf(const PythonJson& json) {
  PickleWriter writer;
  writer.Python(json);
  return std::move(writer).Finish();
}

struct Value {
  const char* python;
  std::string pickle;
  const char* json;
};

std::string Encode(const std::string& utf8) {
  return "c_codecs\nencode\nX"s + static_cast<char>(utf8.size()) + "\0\0\0"s + utf8 + "X\6\0\0\0latin1\x86R"s;
}

std::vector<Value> Values() {
  return {
      {"b''", "c__builtin__\nbytes\n)R.", R"({"__python__":"bytes","hex":""})"},
      {"b'a'", Encode("a") + ".", R"({"__python__":"bytes","hex":"61"})"},
      {"b'\\xff1'", Encode("\xc3\xbf\x31") + ".", R"({"__python__":"bytes","hex":"ff31"})"},
      {"bytearray()", "c__builtin__\nbytearray\n)R.", R"({"__python__":"bytearray","hex":""})"},
      {"bytearray(b'a')", "c__builtin__\nbytearray\n" + Encode("a") + "\x85R.",
       R"({"__python__":"bytearray","hex":"61"})"},
      {"bytearray(b'\\xff')", "c__builtin__\nbytearray\n" + Encode("\xc3\xbf") + "\x85R.",
       R"({"__python__":"bytearray","hex":"ff"})"},
      {"bytearray(b'\\xff') of Python 3.7", "c__builtin__\nbytearray\nX\2\0\0\0\xc3\xbfX\7\0\0\0latin-1\x86R."s,
       R"({"__python__":"bytearray","hex":"ff"})"},
      {"bytearray(b'\\xff') in protocol 5", "\x96\1\0\0\0\0\0\0\0\xff."s, R"({"__python__":"bytearray","hex":"ff"})"},
      {"1.5 - 2j", "c__builtin__\ncomplex\nG?\xf8\0\0\0\0\0\0G\xc0\0\0\0\0\0\0\0\x86R."s,
       R"({"__python__":"complex","items":[1.5,-2.0]})"},
      {"complex('inf')", "cbuiltins\ncomplex\nG\x7f\xf0\0\0\0\0\0\0G\0\0\0\0\0\0\0\0\x86R."s,
       R"({"__python__":"complex","items":[{"__python__":"float","value":"inf"},0.0]})"},
      {"2**64 - 1", "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0."s,
       R"({"__python__":"int","hex":"ffffffffffffffff00"})"},
      {"-2**63 - 1", "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff.",
       R"({"__python__":"int","hex":"ffffffffffffff7fff"})"},
      {"-2**63", "\x8a\x08\0\0\0\0\0\0\0\x80."s, "-9223372036854775808"},
      {"'\\ud800'", "X\3\0\0\0\xed\xa0\x80."s, R"({"__python__":"str","hex":"eda080"})"},
      {"{1}", "c__builtin__\nset\n]K\1a\x85R.", R"({"__python__":"set","items":[1]})"},
      {"set()", "c__builtin__\nset\n)R.", R"({"__python__":"set","items":[]})"},
      {"frozenset({1})", "c__builtin__\nfrozenset\n]K\1a\x85R.", R"({"__python__":"frozenset","items":[1]})"},
      {"frozenset({1}) in protocol 4", "(K\1\x91.", R"({"__python__":"frozenset","items":[1]})"},
      {"Counter({2: 2})", "ccollections\nCounter\n}K\2K\2s\x85R.", R"({"__python__":"Counter","items":[[2,2]]})"},
      {"Counter()", "ccollections\nCounter\n}\x85R.", R"({"__python__":"Counter","items":[]})"},
      {"OrderedDict(a=1)", "ccollections\nOrderedDict\n)RX\1\0\0\0aK\1s."s,
       R"({"__python__":"OrderedDict","items":[["a",1]]})"},
      {"{7: (), None: [0.5]}", "}(K\7)N]G?\xe0\0\0\0\0\0\0au."s,
       R"({"__python__":"dict","items":[[7,{"__python__":"tuple","items":[]}],[null,[0.5]]]})"},
      {"torch.Size([3])", "ctorch\nSize\nK\3\x85\x85R.",
       R"({"__python__":"call","name":"torch.Size","items":[{"__python__":"tuple","items":[3]}]})"},
      {"torch.device('cpu')", "ctorch\ndevice\nX\3\0\0\0cpu\x85R."s,
       R"({"__python__":"call","name":"torch.device","items":["cpu"]})"},
      {"torch.bfloat16", "ctorch\nbfloat16\n.", R"({"__python__":"global","name":"torch.bfloat16"})"},
      {"torch.quint8", "ctorch\nquint8\n.", R"({"__python__":"global","name":"torch.quint8"})"},
  };
}

TEST(PythonValuesTest, EachValueComesBackThroughATextAndAPickleAsTheSameType) {
  for (const Value& value : Values()) {
    const absl::StatusOr<PythonJson> json = JsonOf(value.pickle);
    ASSERT_OK(json) << value.python;
    EXPECT_EQ(json->dump(), value.json) << value.python;
    EXPECT_EQ(PythonOfText(TextOfPython(*json)), *json) << value.python;
    const absl::StatusOr<PythonJson> back = JsonOf(PickleOf(*json));
    ASSERT_OK(back) << value.python;
    EXPECT_EQ(*back, *json) << value.python;
  }
}

// LONG4 is an opcode that torch.load(weights_only=True) does not take.
TEST(PythonValuesTest, AnIntegerOfUpTo255BytesIsWrittenInTheOpcodeThatTorchReads) {
  for (const auto& [size, opcode] : {std::pair(9, '\x8a'), {16, '\x8a'}, {255, '\x8a'}, {256, '\x8b'}}) {
    std::string hex;
    for (int i = 0; i < size; ++i) hex += "7f";
    const PythonJson json = {{kPythonTag, "int"}, {"hex", hex}};
    const std::string pickle = PickleOf(json);
    EXPECT_EQ(pickle[2], opcode) << size;
    ASSERT_OK_AND_ASSIGN(const PythonJson back, JsonOf(pickle));
    EXPECT_EQ(back, json) << size;
  }
}

// Regression: a number of JSON that int64 cannot hold was written as its negative remainder.
TEST(PythonValuesTest, AnUnsignedNumberOfATextKeepsItsValue) {
  const std::string pickle = PickleOf(PythonOfText("18446744073709551615"));
  ASSERT_OK_AND_ASSIGN(const PythonJson json, JsonOf(pickle));
  EXPECT_EQ(json.dump(), R"({"__python__":"int","hex":"ffffffffffffffff00"})");
  const std::string largest = PickleOf(PythonOfText("9223372036854775807"));
  ASSERT_OK_AND_ASSIGN(const PythonJson of_64_bits, JsonOf(largest));
  EXPECT_EQ(of_64_bits.dump(), "9223372036854775807");
}

// Python and C++ spell some numbers differently, and the wheel writes texts that are read here.
TEST(PythonValuesTest, ATextIsAValueInAnySpellingOfItsNumbersButNoOther) {
  EXPECT_EQ(PythonOfText("[1000000000000000.0,5E-1,-0.10]"), PythonJson::parse("[1e15,0.5,-0.1]"));
  EXPECT_EQ(PythonOfText(R"({"at":"1.50","lr":1.50})"), PythonJson::parse(R"({"at":"1.50","lr":1.5})"));
  for (const char* text : {"[1, 2]", "[1.5 ]", "[100000000000000000000]", "-0", "2.50.1", "1e999", "NaN"}) {
    EXPECT_EQ(PythonOfText(text), PythonJson(text));
    EXPECT_EQ(TextOfPython(PythonJson(text)), text);
  }
  EXPECT_EQ(TextOfPython(PythonJson("1.50")), "\"1.50\"");
  EXPECT_EQ(PythonOfText("\"1.50\""), PythonJson("1.50"));
}

// Regression: pairs nest deeper in JSON than objects do, and such a text was taken for a string.
TEST(PythonValuesTest, DeepDictsOfPairsStayDicts) {
  std::string pickle = "N";
  for (int i = 0; i < 45; ++i) pickle = "}K\7" + pickle + "s";
  pickle += ".";
  ASSERT_OK_AND_ASSIGN(const PythonJson json, JsonOf(pickle));
  EXPECT_EQ(PythonOfText(TextOfPython(json)), json);
}

// SGD without momentum has the state {0: {"momentum_buffer": None}}.
TEST(PythonValuesTest, MembersOfAnyDictHaveTextsForNames) {
  const auto members = [](const char* json) {
    const std::optional<PythonJson> found = MembersOf(PythonJson::parse(json));
    return found ? found->dump() : "none";
  };
  EXPECT_EQ(members(R"({"a":1})"), R"({"a":1})");
  EXPECT_EQ(members(R"({"__python__":"dict","items":[[0,{"a":null}],["b",2]]})"), R"({"0":{"a":null},"b":2})");
  EXPECT_EQ(members(R"({"__python__":"OrderedDict","items":[["a",1]]})"), R"({"a":1})");
  EXPECT_EQ(members(R"({"__python__":"dict","items":[[null,1]]})"), "none");
  EXPECT_EQ(members(R"({"__python__":"tuple","items":[["a",1]]})"), "none");
  EXPECT_EQ(members("[1]"), "none");
}

TEST(PythonValuesTest, ANumberOfNumpyIsWrittenAsNumpyWritesIt) {
  const std::string json = R"({"__python__":"numpy","module":"numpy.core.multiarray","dtype":"<f4","shape":null,)"
                           R"("hex":"0000c03f"})";
  EXPECT_EQ(PythonOfText(json).size(), 5);
  const std::string pickle = PickleOf(PythonOfText(json));
  EXPECT_THAT(pickle, HasSubstr("cnumpy.core.multiarray\nscalar\n"));
  const auto parsed = Pickle::Parse(pickle, TorchPickleOptions());
  ASSERT_OK(parsed);
  PickleBudget budget(**parsed);
  ASSERT_OK_AND_ASSIGN(const PythonJson back, JsonOfPickle((*parsed)->root(), budget));
  EXPECT_EQ(back.dump(), json);
}

// A text may have any origin: only values that numpy's pickles make are written as its calls.
TEST(PythonValuesTest, ATextThatIsNoValueOfNumpyStaysAText) {
  for (const char* text : {
           R"({"__python__":"numpy","module":"os","dtype":"<f4","shape":null,"hex":"0000c03f"})",
           R"({"__python__":"numpy","module":"numpy.core.multiarray","dtype":"|O","shape":null,"hex":"0000c03f"})",
           R"({"__python__":"numpy","module":"numpy.core.multiarray","dtype":"<f4","shape":[1],"hex":"0000c03f"})",
           R"({"__python__":"numpy","module":"numpy.core.multiarray","dtype":"<i4","shape":[2],"hex":"0000c03f"})",
           R"({"__python__":"object","name":"argparse.Namespace","place":7})",
           R"({"__python__":"anything","name":"torch.Size","items":[]})",
       }) {
    EXPECT_EQ(PythonOfText(text), PythonJson(text));
  }
}

TEST(PythonValuesTest, CallsThatPythonWouldRefuseAreDamageOrObjects) {
  const auto expect_object = [](const std::string& pickle, const std::string& what) {
    ASSERT_OK_AND_ASSIGN(const PythonJson json, JsonOf(pickle));
    EXPECT_EQ(FindObject(json), &json);
    EXPECT_THAT(json.value("what", ""), HasSubstr(what));
  };
  expect_object("c__builtin__\nbytearray\nK\1\x85R.", "a bytearray of an int");
  expect_object("U\1\xff.", "a string that is not UTF-8");  // of Python 2
  EXPECT_THAT(JsonOf("c__builtin__\nbytes\nK\1\x85R."),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("__builtin__.bytes with arguments")));
  EXPECT_THAT(JsonOf("ccollections\nCounter\n]\x85R."),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("collections.Counter of a list")));
  expect_object("c_codecs\nencode\nX\3\0\0\0\xe2\x82\xacX\6\0\0\0latin1\x86R."s, "in an encoding other than Latin-1");
}

TEST(PythonValuesTest, GroupsHaveListsOnlyWhereOurOptimizersReadThem) {
  const PythonJson groups =
      PythonJson::parse(R"([{"__python__":"OrderedDict","items":[["betas",{"__python__":"tuple","items":[0.9,0.95]}],)"
                        R"(["eps",{"__python__":"tuple","items":[null,0.001]}],["params",[0]]]}])");
  EXPECT_EQ(WithPlainGroups(groups).dump(),
            R"([{"betas":[0.9,0.95],"eps":{"__python__":"tuple","items":[null,0.001]},"params":[0]}])");
}

}  // namespace
}  // namespace fsdp
