#include "core/error.h"
#include "sim/json_place.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::ContainsSubstring;

const Json& document() {
  static const Json json = Json::parse(R"({
    "a/b": {"~": 1},
    "absent": null, "absent_reason": "no trace",
    "methods": [{"spec": "dense", "us": 2, "batch": 1},
                {"spec": "santa-sys:samples=8,draws=2", "us": 3, "batch": 1},
                {"spec": "dense", "us": 4, "batch": 6}]})");
  return json;
}

const Json& find(const std::string& pointer) { return JsonPlace(pointer).find(document()); }

TEST_CASE("a place in JSON: keys, numbers, and elements by what they say") {
  CHECK(find("/a~1b/~0") == 1);
  CHECK(find("/methods/2/us") == 4);
  CHECK(find("/methods/[spec=santa-sys:samples=8,draws=2]/us") == 3);
  CHECK(find("/methods/[spec=dense][batch=6]/us") == 4);
  CHECK(find("/methods/[us=2]/spec") == "dense");
}

TEST_CASE("a place that is not there says how far one gets and what is there") {
  struct Case {
    const char* pointer;
    const char* message;
  };
  for (const Case& c : {
           Case{"/b", "the document has no 'b', found a/b, absent, absent_reason, methods"},
           Case{"/absent/x", "/absent is null: no trace"},
           Case{"/methods/3", "/methods is a list of 3, found '3', expected [key=value] or a"},
           Case{"/methods/x", "/methods is a list of 3, found 'x'"},
           Case{"/methods/[spec=topk]/us",
                "/methods has 0 elements with [spec=topk], expected one; others have dense, "
                "santa-sys:samples=8,draws=2, dense"},
           Case{"/methods/[spec=dense]/us", "/methods has 2 elements with [spec=dense]"},
           Case{"/methods/[key=1]/us", "others have no key, no key, no key"},
           Case{"/methods/0/us/x", "/methods/0/us is of type number, expected an object or a list"},
       }) {
    INFO(c.pointer);
    CHECK_THROWS_WITH(find(c.pointer), ContainsSubstring(c.message));
  }
  CHECK_THROWS_AS(JsonPlace("x"), RuntimeError);
  CHECK_THROWS_AS(JsonPlace(""), RuntimeError);
}

}  // namespace
}  // namespace kvsim
