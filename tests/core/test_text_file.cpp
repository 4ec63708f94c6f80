#include <filesystem>

#include "core/error.h"
#include "core/text_file.h"
#include "tests/catch.h"

namespace kvsim {

using testing::ContainsSubstring;

TEST_CASE("UTF-8 is told from other bytes") {
  for (const char* good : {"", "plain", "caf\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                           "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf", "\xee\x80\x80"}) {
    CHECK(is_utf8(good));
  }
  for (const char* bad :
       {"caf\xe9", "\x80", "\xc0\xaf", "\xc3", "\xe2\x82", "\xe0\x80\x80", "\xed\xa0\x80",
        "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xff", "\xe2\x28\xa1"}) {
    CHECK_FALSE(is_utf8(bad));
  }
}

TEST_CASE("a file that cannot be read is named with the reason") {
  CHECK_THROWS_WITH(read_text_file("/nowhere/x"),
                    ContainsSubstring("/nowhere/x: cannot be read: No such file"));
  CHECK_THROWS_WITH(read_text_file(std::filesystem::temp_directory_path().string()),
                    ContainsSubstring("is a folder, expected a file"));
}

}  // namespace kvsim
