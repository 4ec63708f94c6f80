// The verb experiment: good folders, bad folders, and the ones in the program.

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include "tests/catch.h"
#include "tests/sim/program.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::ContainsSubstring;
using testing::ProgramResult;
using testing::SmallTrace;
using testing::TemporaryFolder;

constexpr const char* kRun = R"(title = "A table"
source = "a paper"
[[run]]
name = "predict"
command = "predict --llm llama-3.1-8b --context 4096 --method dense santa-sys:samples=64"
[ours]
"requests" = "predict:/methods/[spec=dense]/traffic/dense_bytes"
"share" = { of = { at = "predict:/methods/[spec=dense]/traffic/dense_bytes", times = 3 }, over = ["predict:/methods/0/traffic/dense_bytes", "predict:/methods/1/traffic/dense_bytes"] }
"time" = "predict:/methods/[spec=dense]/time/predicted_us"
)";

constexpr const char* kExpected =
    "quantity,unit,value,tolerance,where,explained_value,reason\n"
    "time,us,7.7,10%,Table 1,,\n"
    "requests,bytes,16777216,0,Table 2,,\n"
    "share,ratio,1.0,0.1,Figure 3,1.5,\"a half more, for a reason\"\n";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void write_experiment(const TemporaryFolder& folder, const std::string& name,
                      const std::string& run, const std::string& expected) {
  std::filesystem::create_directories(folder.path() / "e" / name);
  testing::write_text(folder.file("e/" + name + "/run.toml"), run);
  if (!expected.empty()) testing::write_text(folder.file("e/" + name + "/expected.csv"), expected);
}

TEST_CASE("experiment: compares what a command prints with what was published") {
  const TemporaryFolder folder;
  write_experiment(folder, "table", kRun, kExpected);
  const ProgramResult result = run_program(folder, "experiment table --experiments e --json");
  INFO(result.err);
  REQUIRE(result.status == 0);
  const auto document = result.json();
  CHECK(document.at("schema") == "kvsim.experiment/1");
  const auto& table = document.at("experiments").at(0);
  CHECK(table.at("name") == "table");
  CHECK(table.at("title") == "A table");
  CHECK(table.at("status") == "explained");
  CHECK(table.at("runs").at(0).at("name") == "predict");
  const auto& quantities = table.at("quantities");
  REQUIRE(quantities.size() == 3);  // in the order of expected.csv
  CHECK(quantities[0].at("quantity") == "time");
  CHECK(quantities[0].at("status") == "agrees");
  CHECK(quantities[0].at("tolerance").get<double>() == Approx(0.77));
  CHECK(quantities[0].at("interval").at("low") < quantities[0].at("ours"));
  CHECK(quantities[1].at("ours") == 16777216);
  CHECK(quantities[1].at("interval").is_null());
  CHECK(quantities[1].contains("interval_reason"));
  CHECK(quantities[2].at("ours").get<double>() == Approx(1.5));
  CHECK(quantities[2].at("difference_percent").get<double>() == Approx(50));
  CHECK(quantities[2].at("status") == "explained");
  CHECK(quantities[2].at("reason") == "a half more, for a reason");
  CHECK_FALSE(table.contains("calibration"));

  const ProgramResult text = run_program(folder, "experiment table --experiments e");
  CHECK(text.status == 0);
  for (const char* shown : {"expected", "7.938 [", "agrees", "explained", "Figure 3",
                            "share: a half more, for a reason"}) {
    CHECK_THAT(text.out, ContainsSubstring(shown));
  }
  CHECK_THAT(text.out, !ContainsSubstring("calibrated"));
}

TEST_CASE("experiment: what differs without a reason, or with another's, ends with status 1") {
  const TemporaryFolder folder;
  write_experiment(folder, "no-reason", kRun,
                   replaced(kExpected, ",1.5,\"a half more, for a reason\"", ",,"));
  // The reason explains 1.5, but ours would have to be 1.2.
  write_experiment(folder, "stale-reason", kRun, replaced(kExpected, ",1.5,\"", ",1.2,\""));
  for (const char* name : {"no-reason", "stale-reason"}) {
    const ProgramResult result =
        run_program(folder, std::string("experiment --experiments e --json ") + name);
    CHECK(result.status == 1);
    CHECK(result.json().at("experiments").at(0).at("status") == "differs");
    CHECK_THAT(result.err, ContainsSubstring("1 quantities differ without a reason: " +
                                             std::string(name) + ": share"));
  }
}

TEST_CASE("experiment: bad folders are refused with file and key") {
  const TemporaryFolder folder;
  const std::string run = kRun;
  const std::string expected = kExpected;
  struct Case {
    std::string run;
    std::string expected;
    std::string message;
  };
  const std::vector<Case> cases{
      {run, "", "bad/expected.csv: cannot be read"},
      {"title = ", expected, "bad/run.toml:1:"},
      {replaced(run, "title = \"A table\"", ""), expected, "bad/run.toml: title: is missing"},
      {replaced(run, "source", "sources"), expected, "bad/run.toml: sources: is no known key"},
      {replaced(run, "name = \"predict\"", ""), expected, "bad/run.toml: run[0].name: is missing"},
      {replaced(run, "\"predict:/methods/[spec=dense]/traffic", "\"replay:/methods/0/traffic"),
       expected, "ours.\"requests\": found the run 'replay', expected one of predict"},
      {replaced(run, "\"predict:/methods/[spec=dense]/traffic", "\"predict:methods/0/traffic"),
       expected, "ours.\"requests\": found the place 'methods/0/traffic/dense_bytes', expected a"},
      {replaced(run, "times = 3", "times = 0"), expected,
       "ours.\"share\".of.times: found something else, expected a number, not 0"},
      {replaced(run, ", over = [", ", under = ["), expected,
       "ours.\"share\".under: is no known key"},
      {replaced(run, "spec=dense", "spec=topk"), expected,
       "bad/run.toml: ours.\"requests\": /methods has 0 elements with [spec=topk], expected one"},
      {replaced(run, "/traffic/dense_bytes\"", "/traffic\""), expected,
       "/methods/[spec=dense]/traffic is of type object, expected a number or an estimate"},
      {replaced(run, "--context 4096", "--context x"), expected,
       "bad/run.toml: run 'predict' (kvsim predict --llm llama-3.1-8b --context x"},
      {run, replaced(expected, "where", "place"), "bad/expected.csv: found the columns quantity"},
      {run, replaced(expected, "requests,", "bytes,"), "bad/expected.csv:3: found 'bytes'"},
      {run, replaced(expected, "requests,bytes,16777216,0,Table 2,,\n", ""),
       "bad/expected.csv: found no line for 'requests' of"},
      {run, replaced(expected, "7.7", "x"), "bad/expected.csv:2: value: found 'x'"},
      {run, replaced(expected, "10%", "10 %"), "bad/expected.csv:2: tolerance: found '10 %'"},
      {run, replaced(expected, ",1.5,", ",,"), "bad/expected.csv:4: found one of explained_value"},
  };
  for (const Case& c : cases) {
    std::filesystem::remove_all(folder.path() / "e");
    write_experiment(folder, "bad", c.run, c.expected);
    const ProgramResult result = run_program(folder, "experiment bad --experiments e --json");
    INFO(c.message << "\n" << result.err);
    CHECK(result.status == 1);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, ContainsSubstring(c.message));
  }
}

/// Four contexts, of whose times two parts shall be found off by factors.
struct CalibratedExperiment {
  std::string run = "title = \"T\"\nsource = \"a paper\"\n";
  std::string ours = "[ours]\n";
  std::string expected = "quantity,unit,value,tolerance,where,explained_value,reason\n";
  std::string calibration =
      "[calibration]\nfit = [\"1000\", \"9000\"]\nheld_out = [\"3000\", \"5000\"]\n"
      "[calibration.factors]\n"
      "fixed = [\"/terms/[stage=stream_kv: kernel_launch]/us\", "
      "\"/terms/[stage=merge: team_exchange]/us\"]\n"
      "stream = { at = \"/terms/[stage=stream_kv]/us\", times = 0.5 }\n";

  /// `wrong` is a context whose published value is another one, for a reason.
  explicit CalibratedExperiment(const TemporaryFolder& folder, int wrong = 0) {
    for (const int context : {1000, 3000, 5000, 9000}) {
      const std::string command =
          fmt::format("predict --llm llama-3.1-8b --context {} --method dense", context);
      run += fmt::format("[[run]]\nname = \"c{}\"\ncommand = \"{}\"\n", context, command);
      ours += fmt::format("\"{0}\" = {{ at = \"c{0}:/methods/0/time/predicted_us\", times = 2 }}\n",
                          context);
      const auto time = run_program(folder, command + " --json").json()["methods"][0]["time"];
      double us = time["predicted_us"]["value"];
      for (const auto& term : time["terms"]) {
        const double part = term["us"];
        if (term["stage"] == "stream_kv") us += 0.5 * part;  // half of it counts three times
        if (term["stage"] == "stream_kv: kernel_launch" ||
            term["stage"] == "merge: team_exchange") {
          us += 2 * part;
        }
      }
      expected += context == wrong ? fmt::format("{},us,1,1,here,{},known\n", context, 2 * us)
                                   : fmt::format("{},us,{},1%,here,,\n", context, 2 * us);
    }
  }
  std::string toml() const { return run + ours + calibration; }
};

TEST_CASE("experiment: factors are fitted on some quantities and tried on others") {
  const TemporaryFolder folder;
  const CalibratedExperiment experiment(folder);
  write_experiment(folder, "fit", experiment.toml(), experiment.expected);
  const ProgramResult result = run_program(folder, "experiment fit --experiments e --json");
  INFO(result.err << result.out);
  REQUIRE(result.status == 0);
  const auto found = result.json().at("experiments").at(0);
  CHECK(found.at("status") == "agrees");
  const auto& calibration = found.at("calibration");
  CHECK(calibration.at("factors").at(0).at("name") == "fixed");
  CHECK(calibration.at("factors").at(0).at("factor").get<double>() == Approx(3));
  CHECK(calibration.at("factors").at(1).at("factor").get<double>() == Approx(2));
  REQUIRE(calibration.at("errors").size() == 2);
  for (const auto& errors : calibration.at("errors")) {
    CHECK(errors.at("quantities") == 2);
    CHECK(errors.at("mean_error_percent").get<double>() > 20);
    CHECK(errors.at("calibrated_mean_error_percent").get<double>() < 1e-3);
  }
  const auto& quantities = found.at("quantities");
  CHECK(quantities[0].at("role") == "fitted");
  CHECK(quantities[1].at("role") == "held out");
  CHECK(quantities[1].at("ours") < quantities[1].at("calibrated"));
  CHECK(std::abs(quantities[1].at("calibrated_difference_percent").get<double>()) < 1e-3);

  const ProgramResult text = run_program(folder, "experiment fit --experiments e");
  for (const char* shown : {"held out", "factors: fixed 3 stream 2\n",
                            "mean error, 2 held out: ", " % as predicted, 0.00 % calibrated"}) {
    CHECK_THAT(text.out, ContainsSubstring(shown));
  }
}

TEST_CASE("experiment: what a calibration puts aside is in no mean and needs a reason") {
  const TemporaryFolder folder;
  const CalibratedExperiment experiment(folder, 5000);
  const std::string run = replaced(experiment.toml(), "held_out = [\"3000\", \"5000\"]",
                                   "held_out = \"3000\"\naside = [\"5000\"]");
  write_experiment(folder, "aside", run, CalibratedExperiment(folder).expected);
  CHECK_THAT(run_program(folder, "experiment aside --experiments e").err,
             ContainsSubstring("e/aside/expected.csv: found no reason for '5000'"));
  write_experiment(folder, "aside", run, experiment.expected);
  const ProgramResult result = run_program(folder, "experiment aside --experiments e --json");
  INFO(result.err << result.out);
  REQUIRE(result.status == 0);
  const auto found = result.json().at("experiments").at(0);
  CHECK(found.at("quantities").at(2).at("status") == "explained");
  CHECK(found.at("quantities").at(2).at("role") == "aside");
  const auto& errors = found.at("calibration").at("errors");
  REQUIRE(errors.size() == 3);
  CHECK(errors[1].at("quantities") == 1);
  CHECK(errors[1].at("calibrated_mean_error_percent").get<double>() < 1e-3);
  CHECK(errors[2].at("role") == "aside");
  CHECK(errors[2].at("calibrated_mean_error_percent").get<double>() > 100);
}

TEST_CASE("experiment: a calibration that means nothing is refused with file and key") {
  const TemporaryFolder folder;
  const CalibratedExperiment good(folder);
  const std::string toml = good.toml();
  for (const auto& [run, message] : {
           std::pair{replaced(toml, "held_out = ", "held = "), "calibration.held: is no known key"},
           std::pair{replaced(toml, "held_out = [\"3000\"", "held_out = [\"4000\""),
                     "calibration.held_out: found '4000', expected quantities of ours"},
           std::pair{replaced(toml, "held_out = [\"3000\"", "held_out = [\"1000\""),
                     "calibration.held_out: found '1000' twice"},
           std::pair{replaced(toml, "\"/terms/[stage=stream_kv]", "\"terms/[stage=stream_kv]"),
                     "calibration.factors.stream: found something else, expected places"},
           std::pair{replaced(toml, "times = 0.5", "times = \"x\""),
                     "calibration.factors.stream.times: found something else, expected a number"},
           std::pair{replaced(toml, "/terms/[stage=stream_kv]", "/terms/[stage=none]"),
                     "calibration: \"1000\": /methods/0/time/terms has 0 elements"},
           std::pair{replaced(toml, "fit = [\"1000\", \"9000\"]", "fit = \"1000\""),
                     "calibration: the 1 quantities to fit do not determine 2 factors"},
           std::pair{replaced(toml, "{ at = \"c1000:/methods/0/time/predicted_us\", times = 2 }",
                              "{ of = \"c1000:/batch\", over = \"c1000:/batch\" }"),
                     "calibration.fit: '1000' is a quotient, expected terms"},
       }) {
    write_experiment(folder, "bad", run, good.expected);
    const ProgramResult result = run_program(folder, "experiment bad --experiments e --json");
    INFO(message << "\n" << result.err);
    CHECK(result.status == 1);
    CHECK_THAT(result.err, ContainsSubstring(std::string("bad/run.toml: ") + message));
  }
}

TEST_CASE("experiment: wrong names and flags end with status 2") {
  const TemporaryFolder folder;
  for (const auto& [arguments, message] :
       {std::pair{"", "no experiment given"}, std::pair{"nosuch", "unknown experiment 'nosuch'"},
        std::pair{"../e --experiments .", "unknown experiment '../e'"},
        std::pair{"all --nosuch", "unrecognised option"}}) {
    const ProgramResult result = run_program(folder, std::string("experiment ") + arguments);
    INFO(arguments << "\n" << result.err);
    CHECK(result.status == 2);
    CHECK_THAT(result.err, ContainsSubstring(message));
  }
  CHECK(run_program(folder, "experiment all --experiments nosuch").status == 1);
}

TEST_CASE("experiment: a folder goes before the one in the program and is listed with it") {
  const TemporaryFolder folder;
  write_experiment(folder, "santa-table3", kRun, kExpected);
  std::filesystem::create_directories(folder.path() / "e" / "measured");  // no experiment
  const auto list = run_program(folder, "experiment list --experiments e --json").json();
  CHECK(list.at("kind") == "experiments");
  CHECK(list.at("items").size() ==
        run_program(folder, "list experiments --json").json()["items"].size());
  for (const auto& item : list.at("items")) {
    CHECK((item.at("name") == "santa-table3") == (item.at("title") == "A table"));
  }
}

TEST_CASE("experiment: {traces} is the folder given, or that of the source") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "t");
  SmallTrace{}.write(folder.file("t/a.h5"));
  write_experiment(folder, "info",
                   "title = \"A trace\"\nsource = \"a paper\"\n[[run]]\nname = \"info\"\n"
                   "command = \"trace info {traces}/a.h5\"\n"
                   "[ours]\n\"steps\" = \"info:/trace/decode_steps\"\n",
                   "quantity,unit,value,tolerance,where,explained_value,reason\n"
                   "steps,steps,4,0,here,,\n");
  CHECK(run_program(folder, "experiment info --experiments e --traces t").status == 0);
  const ProgramResult wrong = run_program(folder, "experiment info --experiments e --traces u");
  CHECK(wrong.status == 1);
  CHECK_THAT(wrong.err,
             ContainsSubstring("run 'info' (kvsim trace info {traces}/a.h5): u: no such"));
  const ProgramResult absent = run_program(folder, "experiment info --experiments e");
  CHECK(absent.status == 1);
  CHECK_THAT(absent.err, ContainsSubstring("traces/samples/a.h5: "));
}

TEST_CASE("experiment: the same, whatever the threads") {
  const TemporaryFolder folder;
  const ProgramResult one = run_program(folder, "experiment eta-blocks --json --threads 1");
  INFO(one.err);
  CHECK(one.status == 0);
  const ProgramResult more = run_program(folder, "experiment eta-blocks --json --threads 3");
  CHECK(one.out == more.out);
}

}  // namespace
}  // namespace kvsim
