// kvsim trace teams, through the program.

#include "kernels/cache_of_layer.h"
#include "kernels/santapp/stored_teams.h"
#include "tests/catch.h"
#include "tests/sim/program.h"
#include "traces/trace_file.h"

namespace kvsim {
namespace {

using testing::ContainsSubstring;
using testing::document_of;
using testing::ProgramResult;
using testing::SmallTrace;
using testing::TemporaryFolder;

/// Teams of every head as they were read back and as they are when made.
void check_stored(const std::string& path, const santapp::TeamSettings& settings) {
  const TraceReader reader(path);
  REQUIRE(reader.info().layers.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const TraceLayer layer = reader.read_layer(i);
    for (int head = 0; head < layer.info.kv_heads; ++head) {
      const CacheView prompt = cache_of_layer(layer, head, reader.info().prompt_tokens);
      CHECK(santapp::stored_teams(prompt, settings) == santapp::make_teams(prompt, settings));
    }
  }
}

TEST_CASE("trace teams: a copy of the trace with the teams of every KV head") {
  const TemporaryFolder folder;
  const SmallTrace trace{.sinks = true, .probes = 70, .learned_by_second = true};
  trace.write(folder.file("a.h5"));
  const auto document = document_of(folder, "trace teams a.h5 -o t.h5");
  CHECK(document.at("schema") == "kvsim.trace_teams/1");
  CHECK(document.at("settings") == "parent=16,representatives=4,grouping=keys");
  CHECK(document.at("defaults").size() == 3);
  check_stored(folder.file("t.h5"), {});
  const TraceReader reader(folder.file("t.h5"));
  for (std::size_t i = 0; i < 2; ++i) {
    const TraceLayer layer = reader.read_layer(i);
    const TraceLayer expected = trace.layer(i == 0 ? 1 : 3);
    CHECK(layer.k.data == expected.k.data);
    CHECK(layer.v.data == expected.v.data);
    CHECK(layer.q.data == expected.q.data);
    CHECK(layer.probe->data == expected.probe->data);
    CHECK(layer.sink_logits == expected.sink_logits);
    CHECK(layer.learned.size() == expected.learned.size());
    const auto& described = document.at("layers").at(i);
    CHECK(described.at("layer") == expected.info.layer);
    CHECK(described.at("measured_seconds").is_number());
    REQUIRE(described.at("heads").size() == 2);
    for (int head = 0; head < 2; ++head) {
      const santapp::Teams teams =
          santapp::stored_teams(cache_of_layer(layer, head, 300), {}).value();
      const auto& json = described.at("heads").at(static_cast<std::size_t>(head));
      CHECK(json.at("kv_head") == head);
      CHECK(json.at("teams") == teams.leaders.size());
      CHECK(json.at("keys_per_team").get<double>() ==
            300 / static_cast<double>(teams.leaders.size()));
      CHECK(json.at("state_bytes") == santapp::stored_bytes(teams));
      std::int32_t largest = 0;
      for (std::int32_t t = 0; t < teams.partition.parts(); ++t) {
        largest = std::max(largest, teams.partition.size(t));
      }
      CHECK(json.at("largest_team") == largest);
    }
  }
}

TEST_CASE("trace teams: other groupings and sizes; teams of before are replaced") {
  const TemporaryFolder folder;
  SmallTrace{.probes = 10}.write(folder.file("a.h5"));
  const ProgramResult spans = run_program(
      folder, "trace teams a.h5 -o b.h5 --grouping contiguous --parent 8 --representatives 2");
  CHECK(spans.status == 0);
  CHECK_THAT(spans.out,
             ContainsSubstring("b.h5: teams of parent=8,representatives=2,grouping=contiguous") &&
                 ContainsSubstring("seconds, measured"));
  check_stored(folder.file("b.h5"),
               {.grouping = santapp::Grouping::kContiguous, .parent = 8, .representatives = 2});
  const auto again = document_of(
      folder, "trace teams b.h5 -o d.h5 --grouping contiguous --parent 8 --representatives 2");
  for (const auto& head : again.at("layers").at(0).at("heads")) {
    CHECK(head.at("teams") == 76);  // of 38 spans
  }
  CHECK(run_program(folder, "trace teams b.h5 -o c.h5 --grouping probes").status == 0);
  check_stored(folder.file("c.h5"), {.grouping = santapp::Grouping::kProbes});
}

TEST_CASE("trace teams: the same bytes for any number of threads") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  CHECK(run_program(folder, "trace teams a.h5 -o b.h5 --threads 1").status == 0);
  CHECK(run_program(folder, "trace teams a.h5 -o c.h5 --threads 4").status == 0);
  CHECK(testing::read_text(folder.file("b.h5")) == testing::read_text(folder.file("c.h5")));
}

TEST_CASE("trace teams: check and info know of what was prepared") {
  const TemporaryFolder folder;
  SmallTrace{.latent = true}.write(folder.file("a.h5"));
  CHECK(document_of(folder, "trace info a.h5").at("attention").at(0).at("prepared").empty());
  const auto teams = document_of(folder, "trace teams a.h5 -o t.h5 --compress");
  CHECK(document_of(folder, "trace check t.h5").at("files").at(0).at("good") == true);
  const auto info = document_of(folder, "trace info t.h5");
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& prepared = info.at("attention").at(i).at("prepared");
    REQUIRE(prepared.size() == 1);
    CHECK(prepared.at(0).at("method") == "santapp");
    CHECK(prepared.at(0).at("settings") == teams.at("settings"));
    CHECK(prepared.at(0).at("bytes") ==
          teams.at("layers").at(i).at("heads").at(0).at("state_bytes"));
  }
  CHECK_THAT(run_program(folder, "trace info t.h5").out,
             ContainsSubstring("prepared for") && ContainsSubstring("grouping=keys"));
}

}  // namespace
}  // namespace kvsim
