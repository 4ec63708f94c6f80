#include <string>
#include <vector>

#include "core/error.h"
#include "core/preset_file.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::ContainsSubstring;

constexpr const char* kSources = R"(
[sources]
sheet = "The data sheet, 2024"
lab = "Our measurement"
)";

constexpr const char* kGood = R"(
title = "A device"
tested = true
levels = [1, 2, 3]
[memory]
peak = { value = 4800, unit = "GB/s", kind = "spec", source = "sheet" }
[memory.stream.rate]
value = 4600.5
low = 4500
high = 4700
unit = "GB/s"
kind = "measured"
source = "lab"
note = "cold"
alternatives = [{ value = 4.5, source = "sheet", note = "older" }]
[memory.share]
x = [64, 256]
x_unit = "B"
y = [0.5, 0.9]
low = [0.4, 0.8]
high = [0.6, 1.0]
unit = "1"
kind = "measured"
source = "lab"
)";

PresetFile parse(const std::string& text) {
  return PresetFile::parse(text + kSources, "gpus/x.toml");
}

std::string constant(const std::string& fields) { return "a = { " + fields + " }"; }

/// The message of the RuntimeError that reading `a` as a number in "us" gives.
std::string number_error(const std::string& text) {
  try {
    parse(text).number("a", "us");
  } catch (const RuntimeError& error) {
    return error.what();
  }
  return "no error";
}

std::string finish_error(const PresetFile& file) {
  try {
    file.finish();
  } catch (const RuntimeError& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("a preset's values, units, origins and intervals are read") {
  const PresetFile file = parse(kGood);
  CHECK(file.text("title") == "A device");
  CHECK(file.flag("tested"));
  CHECK(file.plain_integers("levels") == std::vector<std::int64_t>{1, 2, 3});

  const Estimate peak = file.number("memory.peak", "GB/s");
  CHECK(peak.value == 4800);
  CHECK(peak.low == 4800);
  CHECK(peak.high == 4800);
  CHECK(peak.source == Source::kSpec);
  CHECK(file.integer("memory.peak", "GB/s") == 4800);

  const Estimate rate = file.number("memory.stream.rate", "GB/s", 0, 4800);
  CHECK(rate.value == 4600.5);
  CHECK(rate.low == 4500);
  CHECK(rate.high == 4700);
  CHECK(rate.source == Source::kMeasured);
  CHECK(file.source_text("memory.stream.rate") == "Our measurement");

  const PresetFile::Curve share = file.curve("memory.share", "B", "1");
  CHECK(share.x == std::vector<double>{64, 256});
  REQUIRE(share.y.size() == 2);
  CHECK(share.y[1].low == 0.8);
  CHECK(share.y[1].value == 0.9);
  CHECK(share.y[1].high == 1.0);
  CHECK(share.y[1].source == Source::kMeasured);

  CHECK(file.keys("memory") == std::vector<std::string>{"peak", "share", "stream"});
  CHECK(file.has("memory.stream"));
  CHECK_FALSE(file.has("memory.nothing"));
  CHECK_FALSE(file.has("title.nothing"));
  CHECK_NOTHROW(file.finish());
}

TEST_CASE("an error names file, line, key, what was found and what was expected") {
  CHECK(number_error(constant(R"(value = 1, unit = "ms", kind = "spec", source = "sheet")")) ==
        R"(gpus/x.toml:1: a.unit: found "ms", expected the unit "us")");
  CHECK_THROWS_WITH(PresetFile::parse("a = [1,\nb", "gpus/x.toml"),
                    ContainsSubstring("gpus/x.toml:2:"));
}

TEST_CASE("every way a constant can be wrong is refused") {
  struct Case {
    const char* fields;
    const char* message;
  };
  const Case cases[] = {
      {R"(unit = "us", kind = "spec", source = "sheet")", "a.value: found nothing"},
      {R"(value = "1", unit = "us", kind = "spec", source = "sheet")", "a.value: found \"1\""},
      {R"(value = -1, unit = "us", kind = "spec", source = "sheet")", "a.value: found -1"},
      {R"(value = nan, unit = "us", kind = "spec", source = "sheet")", "a.value: found nan"},
      {R"(value = inf, unit = "us", kind = "spec", source = "sheet")", "a.value: found inf"},
      {R"(value = 1, kind = "spec", source = "sheet")", "a.unit: found nothing"},
      {R"(value = 1, unit = "us", source = "sheet")", "a.kind: found nothing"},
      {R"(value = 1, unit = "us", kind = "guess", source = "sheet")", "a.kind: found \"guess\""},
      {R"(value = 1, unit = "us", kind = "spec")", "a.source: found nothing"},
      {R"(value = 1, unit = "us", kind = "spec", source = "who")", "a.source: found \"who\""},
      {R"(value = 1, low = 2, unit = "us", kind = "spec", source = "sheet")",
       "low 2 above value 1"},
      {R"(value = 3, high = 2, unit = "us", kind = "spec", source = "sheet")",
       "value 3 above high 2"},
      {R"(value = 3, low = "2", unit = "us", kind = "spec", source = "sheet")",
       "a.low: found \"2\""},
      {R"(value = 3, lo = 2, unit = "us", kind = "spec", source = "sheet")",
       "a.lo: found an unknown key"},
      {R"(value = 3, note = 2, unit = "us", kind = "spec", source = "sheet")", "a.note: found 2"},
      {R"(value = 3, alternatives = 2, unit = "us", kind = "spec", source = "sheet")",
       "a.alternatives: found 2"},
      {"alternatives = [{ value = 2, source = \"who\" }],"
       R"(value = 3, unit = "us", kind = "spec", source = "sheet")",
       "a.alternatives.source: found \"who\""},
  };
  for (const Case& c : cases) {
    INFO(c.fields);
    CHECK_THAT(number_error(constant(c.fields)), ContainsSubstring(c.message));
  }
  CHECK_THAT(number_error("a = 3"), ContainsSubstring("a: found 3, expected a constant"));
  CHECK_THAT(number_error("b = 3"), ContainsSubstring("a: found no such key"));
}

TEST_CASE("ranges, whole numbers and plain values are checked") {
  const PresetFile file = parse(kGood);
  CHECK_THROWS_WITH(file.number("memory.stream.rate", "GB/s", 0, 4650),
                    ContainsSubstring("found 4700 GB/s, expected 0 to 4650 GB/s"));
  CHECK_THROWS_WITH(file.number("memory.stream.rate", "GB/s", 4550, 4800),
                    ContainsSubstring("found 4500 GB/s"));
  CHECK_THROWS_WITH(file.integer("memory.stream.rate", "GB/s"),
                    ContainsSubstring("found 4600.5, expected a whole number"));
  CHECK_THROWS_WITH(file.text("tested"), ContainsSubstring("found true, expected a text"));
  CHECK_THROWS_WITH(file.flag("title"), ContainsSubstring("expected true or false"));
  CHECK_THROWS_WITH(file.plain_integers("title"), ContainsSubstring("array of whole numbers"));
  CHECK_THROWS_WITH(parse("a = [1, 2.5]").plain_integers("a"), ContainsSubstring("found 2.5"));
  CHECK_THROWS_WITH(file.keys("title"), ContainsSubstring("expected a table"));
  CHECK_THROWS_WITH(file.keys("memry"), ContainsSubstring("memry: found nothing"));
  CHECK_THROWS_WITH(file.source_text("title"), ContainsSubstring("expected a constant"));
}

TEST_CASE("a curve needs ascending x, equal lengths and a known origin") {
  struct Case {
    const char* fields;
    const char* message;
  };
  const std::string origin = R"(, x_unit = "B", unit = "1", kind = "spec", source = "sheet")";
  const Case cases[] = {
      {"x = [1, 2], y = [1]", "2 x, 1 y"},
      {"x = [1, 2], y = [1, 1], low = [1]", "1 low"},
      {"x = [2, 2], y = [1, 1]", "a.x: found 2 after 2"},
      {"x = [], y = []", "at least one"},
      {"x = [1], y = [\"a\"]", "a.y: found \"a\""},
      {"x = [1], y = 3", "a.y: found 3"},
      {"x = [1]", "a.y: found nothing"},
      {"x = [1], y = [1], low = [2]", "low 2 above value 1"},
      {"x = [1], y = [1], z = [2]", "a.z: found an unknown key"},
  };
  for (const Case& c : cases) {
    INFO(c.fields);
    CHECK_THROWS_WITH(parse(constant(c.fields + origin)).curve("a", "B", "1"),
                      ContainsSubstring(c.message));
  }
  const PresetFile file = parse(kGood);
  CHECK_THROWS_WITH(file.curve("memory.share", "KiB", "1"),
                    ContainsSubstring("memory.share.x_unit"));
  CHECK_THROWS_WITH(file.curve("memory.share", "B", "%"), ContainsSubstring("memory.share.unit"));
  CHECK_THROWS_WITH(file.curve("memory.peak", "B", "1"), ContainsSubstring("an unknown key"));
}

TEST_CASE("finish refuses what nobody read") {
  const std::string good = constant(R"(value = 1, unit = "us", kind = "spec", source = "sheet")");
  {
    const PresetFile file = parse(good + "\n[x.y]\nz = 3");
    file.number("a", "us");
    CHECK(finish_error(file) ==
          "gpus/x.toml:3: x.y.z: found an unknown key, expected only keys that this kind of preset "
          "has");
  }
  CHECK_THAT(finish_error(parse(good)), ContainsSubstring(":1: a: found an unknown key"));
  CHECK_THAT(finish_error(parse("[typo]")), ContainsSubstring("typo: found an unknown key"));
  CHECK(finish_error(parse("")) == "no error");
}

TEST_CASE("an overlay replaces constants as a whole and keeps the place of each") {
  const auto overlay = [] {
    return PresetFile::overlay(parse(kGood), PresetFile::parse(R"(
[sources]
mine = "Calibrated here"
[memory.stream]
rate = { value = 4000, unit = "GB/s", kind = "calibrated", source = "mine" }
)",
                                                               "mine.toml"));
  };
  const PresetFile file = overlay();
  const Estimate rate = file.number("memory.stream.rate", "GB/s");
  CHECK(rate.value == 4000);
  CHECK(rate.high == 4000);  // the interval of the base went with its value
  CHECK(rate.source == Source::kCalibrated);
  CHECK(file.source_text("memory.stream.rate") == "Calibrated here");
  CHECK(file.number("memory.peak", "GB/s").value == 4800);
  CHECK(file.text("title") == "A device");
  CHECK_THROWS_WITH(file.number("memory.stream.rate", "TB/s"), ContainsSubstring("mine.toml:5: "));
  CHECK_THROWS_WITH(file.number("memory.peak", "TB/s"), ContainsSubstring("gpus/x.toml:6: "));
  CHECK_THROWS_WITH(file.text("none"), ContainsSubstring("mine.toml (inherits gpus/x.toml): none"));
}

}  // namespace
}  // namespace kvsim
