// The verbs as other programs use them: documents, files, determinism. Driven through the program.

#include "core/hdf5.h"
#include "sim/json.h"
#include "tests/catch.h"
#include "tests/sim/program.h"
#include "tests/sim/small_trace.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::document_of;
using testing::ProgramResult;
using testing::SmallTrace;
using testing::TemporaryFolder;

constexpr const char* kReplay =
    "replay a.h5 --method dense topk:keys=16 santa-sys:samples=32 --accelerator mac_int8 "
    "adder_value "
    "--llm smollm2-135m";

TEST_CASE("program: help, version and verbs") {
  const TemporaryFolder folder;
  for (const char* arguments : {"", "-h", "--help"}) {
    const ProgramResult result = run_program(folder, arguments);
    CHECK(result.status == 0);
    for (const char* verb : {"replay", "predict", "energy", "trace", "list"}) {
      CHECK(result.out.find(verb) != std::string::npos);
    }
  }
  CHECK(run_program(folder, "--version").out.rfind("kvsim ", 0) == 0);
  for (const char* verb : {"replay", "predict", "energy", "list", "trace info", "trace check",
                           "trace synth", "trace import", "trace teams"}) {
    const ProgramResult result = run_program(folder, std::string(verb) + " -h");
    INFO(verb);
    CHECK(result.status == 0);
    CHECK(result.out.find("--threads") != std::string::npos);
    CHECK(result.err.empty());
  }
}

TEST_CASE("program: the replay document has every key of the contract") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const auto document = document_of(folder, kReplay);
  CHECK(document.at("schema") == "kvsim.replay/1");
  CHECK(document.at("gpu") == "h200_sxm");
  CHECK(document.at("layout") == "hnd");
  CHECK(document.at("seed") == 0);
  CHECK(document.at("trace").at("synthetic") == true);
  REQUIRE(document.at("methods").size() == 3);
  for (const auto& method : document.at("methods")) {
    for (const char* pointer : {"/method",
                                "/params",
                                "/device",
                                "/empty_heads",
                                "/error/relative_l2/mean",
                                "/error/relative_l2/p50",
                                "/error/relative_l2/p95",
                                "/error/relative_l2/max",
                                "/error/cosine_mean",
                                "/selection/rows_per_head_mean",
                                "/selection/union_rows_mean",
                                "/selection/union_fraction",
                                "/selection/gqa_amplification",
                                "/selection/mass_recall_mean",
                                "/selection/k_feature_fraction_head",
                                "/selection/k_feature_fraction_group",
                                "/traffic/dense_bytes",
                                "/traffic/requested_bytes",
                                "/traffic/sector_bytes",
                                "/traffic/dram_read_bytes",
                                "/traffic/dram_write_bytes",
                                "/traffic/by_tensor/k",
                                "/traffic/by_tensor/v",
                                "/traffic/by_tensor/metadata",
                                "/traffic/by_tensor/query",
                                "/traffic/by_tensor/output",
                                "/traffic/by_tensor/stash",
                                "/traffic/by_tensor/partial",
                                "/logical_access_fraction",
                                "/ops/multiply",
                                "/ops/add",
                                "/ops/exp",
                                "/ops/compare",
                                "/ops/shift",
                                "/ops/random_word",
                                "/time/predicted_us/value",
                                "/time/measured_us",
                                "/time/measured_us_reason",
                                "/time/terms/0/stage",
                                "/time/terms/0/limit",
                                "/time/terms/0/us",
                                "/energy/total_pj/value",
                                "/energy/items/0/item",
                                "/energy/items/0/pj",
                                "/energy/items/0/source",
                                "/accelerators/1/name",
                                "/accelerators/0/node_nm",
                                "/accelerators/0/memory",
                                "/accelerators/0/total_pj/low",
                                "/accelerators/0/datapath_pj/high",
                                "/accelerators/0/area_mm2/source",
                                "/accelerators/0/items/0",
                                "/prepare/bytes",
                                "/prepare/state_bytes",
                                "/prepare/predicted_us",
                                "/decode_step/dense_us",
                                "/decode_step/method_us",
                                "/decode_step/speedup/value",
                                "/decode_step/break_even_context",
                                "/by_layer/0/layer"}) {
      INFO(pointer);
      CHECK(method.contains(nlohmann::json::json_pointer(pointer)));
    }
  }
  CHECK(document.at("methods").at(1).at("params").at("keys") == 16);
  CHECK(document.at("methods").at(0).at("decode_step").at("break_even_context").is_null());
  CHECK(document.at("methods").at(0).at("decode_step").contains("break_even_context_reason"));
}

TEST_CASE("program: output is the same for any number of threads and changes with the seed") {
  const TemporaryFolder folder;
  SmallTrace{.q_heads = 8}.write(folder.file("a.h5"));
  const std::string base = std::string(kReplay) + " --repeats 2 --json --threads ";
  const std::string one = run_program(folder, base + "1").out;
  CHECK(one == run_program(folder, base + "2").out);
  CHECK(one == run_program(folder, base + "5").out);
  CHECK(one != run_program(folder, base + "1 --seed 7").out);
}

TEST_CASE("program: no LLM, no decode step, and a reason") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const auto document = document_of(folder, "replay a.h5 --method dense");
  CHECK(document.at("methods").at(0).at("decode_step").is_null());
  CHECK(document.at("methods").at(0).contains("decode_step_reason"));
}

double mean_of(const hdf5::File& file, const std::string& column) {
  const std::vector<double> values = file.open_dataset(column).read<double>();
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

TEST_CASE("program: the run file holds the document, and its columns average to the document") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const auto document = document_of(folder, std::string(kReplay) + " -o run.h5");
  const hdf5::File file = hdf5::File::open(folder.file("run.h5"));
  CHECK(nlohmann::json::parse(file.open_dataset("/document").read_strings().at(0)) == document);
  for (std::size_t m = 0; m < 3; ++m) {
    const auto& method = document.at("methods").at(m);
    const std::string group = "/methods/" + std::to_string(m);
    CHECK(file.string_attribute(group, "method") == method.at("method"));
    const auto same = [&](const std::string& column, const std::string& pointer) {
      INFO(column);
      CHECK(mean_of(file, group + column) ==
            Approx(method.at(nlohmann::json::json_pointer(pointer)).get<double>()));
    };
    same("/heads/relative_l2", "/error/relative_l2/mean");
    same("/heads/cosine", "/error/cosine_mean");
    same("/heads/mass_recall", "/selection/mass_recall_mean");
    same("/heads/v_rows", "/selection/rows_per_head_mean");
    same("/kv_heads/v_union_rows", "/selection/union_rows_mean");
    same("/targets/h200_sxm/predicted_us", "/time/predicted_us/value");
    same("/targets/h200_sxm/dram_read_bytes", "/traffic/dram_read_bytes");
    same("/targets/h200_sxm/total_pj", "/energy/total_pj/value");
    same("/targets/adder_value/datapath_pj", "/accelerators/1/datapath_pj/value");
    CHECK(file.string_attribute(group + "/targets/h200_sxm/predicted_us", "unit") == "us");
    CHECK(file.open_dataset(group + "/heads/head").extent() == hdf5::Extent{2 * 4 * 4});
  }
}

TEST_CASE("program: an existing output is kept without --force and replaced with it") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  testing::write_text(folder.file("run.h5"), "old");
  CHECK(run_program(folder, "replay a.h5 --method dense -o run.h5").status == 1);
  CHECK(testing::read_text(folder.file("run.h5")) == "old");
  CHECK(run_program(folder, "replay a.h5 --method dense -o run.h5 --force").status == 0);
  CHECK(testing::read_text(folder.file("run.h5")).size() > 1000);
}

TEST_CASE("program: predict from bounds encloses predict from statistics") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  document_of(folder, std::string(kReplay) + " -o run.h5");
  const std::string question =
      "predict --method santa-sys:samples=32 --llm smollm2-135m --context 65536";
  const auto bounds = document_of(folder, question).at("methods").at(0);
  const auto measured = document_of(folder, question + " --stats run.h5").at("methods").at(0);
  CHECK(document_of(folder, question).at("statistics").is_null());
  const auto& wide = bounds.at("attention_us");
  const auto& narrow = measured.at("attention_us");
  CHECK(wide.at("low") == narrow.at("low"));  // beyond the measured context: the bounds
  CHECK(narrow.at("value") <= wide.at("value"));
  CHECK(narrow.at("value") >= wide.at("low"));
  CHECK(measured.at("layers").at(0).at("captured_layer") == 1);
  CHECK(measured.at("layers").at(0).at("stages").size() >= 2);
  const ProgramResult text = run_program(folder, question + " --explain");
  CHECK(text.status == 0);
  CHECK(text.out.find("kernel_launch") != std::string::npos);
  // A method that the run does not have is refused by name.
  const ProgramResult missing = run_program(
      folder, "predict --method topk:keys=99 --llm smollm2-135m --context 65536 --stats run.h5");
  CHECK(missing.status == 2);
  CHECK(missing.err.find("topk:keys=16") != std::string::npos);
}

TEST_CASE("program: attention grows with batch and context, and predict agrees with itself") {
  const TemporaryFolder folder;
  const auto attention = [&](const std::string& size) {
    return document_of(folder, "predict --method dense --llm smollm2-135m " + size)
        .at("methods")
        .at(0)
        .at("attention_us")
        .at("value")
        .get<double>();
  };
  const double small = attention("--context 65536");
  CHECK(attention("--context 131072") > small);
  CHECK(attention("--context 65536 --batch 8") > small);
  CHECK(attention("--context 65536 --gpu a100_sxm_80gb") > small);
  CHECK(attention("--context 65536 --kv-dtype fp8") < small);
}

TEST_CASE("program: predict says when model and cache do not fit") {
  const TemporaryFolder folder;
  const std::string question =
      "predict --method dense --llm llama-3.1-8b --context 131072 --batch 8 ";
  const auto large = document_of(folder, question);
  CHECK(large.at("memory").at("fits") == false);
  CHECK(large.at("memory").at("capacity_bytes") == 141e9);
  CHECK(large.at("notes").at(0).get<std::string>().find("does not fit: 16.1 GB of weights") == 0);
  const auto& curve = large.at("methods").at(0).at("decode_step").at("curve");
  CHECK(curve.at(0).at("fits") == true);
  CHECK(curve.at(curve.size() - 1).at("fits") == false);
  const auto fp8 = document_of(folder, question + "--kv-dtype fp8");
  CHECK(fp8.at("memory").at("fits") == true);
  CHECK(fp8.at("memory").at("kv_bytes").get<double>() ==
        Approx(large.at("memory").at("kv_bytes").get<double>() / 2));
  CHECK(fp8.at("notes").at(0).get<std::string>().find("does not fit") == std::string::npos);
}

TEST_CASE("program: predict on several GPUs") {
  const TemporaryFolder folder;
  const std::string question = "predict --method dense --llm llama-3.1-8b --context 32768 ";
  const auto one = document_of(folder, question);
  const auto two = document_of(folder, question + "--tp 2");
  CHECK(one.at("tp") == 1);
  CHECK(two.at("tp") == 2);
  CHECK(two.at("memory").at("kv_bytes").get<double>() ==
        one.at("memory").at("kv_bytes").get<double>() / 2);
  const auto value = [](const nlohmann::json& document, const char* key) {
    return document.at("methods").at(0).at("decode_step").at(key).at("value").get<double>();
  };
  CHECK(value(one, "all_reduce_us") == 0);
  CHECK(value(two, "all_reduce_us") > 0);
  CHECK(value(two, "dense_estimate_us") < value(one, "dense_estimate_us"));
  CHECK(value(two, "dense_estimate_us") > value(one, "dense_estimate_us") / 2);
}

TEST_CASE("program: energy from a trace and from its run file are close") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  document_of(folder, std::string(kReplay) + " -o run.h5");
  const std::string rest =
      " --method dense santa-sys:samples=32 --accelerator mac_int8 adder_value";
  const auto exact = document_of(folder, "energy a.h5" + rest);
  const auto expected = document_of(folder, "energy --stats run.h5" + rest);
  CHECK(exact.at("schema") == "kvsim.energy/1");
  for (std::size_t m = 0; m < 2; ++m) {
    for (std::size_t a = 0; a < 2; ++a) {
      const auto& x = exact.at("methods").at(m).at("accelerators").at(a);
      const auto& y = expected.at("methods").at(m).at("accelerators").at(a);
      CHECK(x.at("total_pj").at("value").get<double>() ==
            Approx(y.at("total_pj").at("value").get<double>()).epsilon(0.1));
      CHECK(x.at("area_mm2") == y.at("area_mm2"));
    }
  }
  const auto& dense = exact.at("methods").at(0).at("accelerators").at(0);
  CHECK(dense.at("total_share_of_dense") == 1.0);
  CHECK(run_program(folder, "energy a.h5" + rest).status == 0);
}

TEST_CASE("program: list shows methods and presets, not the skeleton") {
  const TemporaryFolder folder;
  const auto methods = document_of(folder, "list methods").at("items");
  std::vector<std::string> names;
  for (const auto& item : methods) names.push_back(item.at("name"));
  CHECK(std::find(names.begin(), names.end(), "dense") != names.end());
  CHECK(std::find(names.begin(), names.end(), "skeleton") == names.end());
  for (const char* kind : {"gpus", "memories", "nodes", "accelerators", "llms"}) {
    const auto items = document_of(folder, std::string("list ") + kind).at("items");
    CHECK(!items.empty());
    for (const auto& item : items) CHECK(!item.at("title").get<std::string>().empty());
    CHECK(run_program(folder, std::string("list ") + kind).status == 0);
  }
}

TEST_CASE("program: a synthetic trace is made, checked, described and replayed") {
  const TemporaryFolder folder;
  const auto made = document_of(
      folder,
      "trace synth -o s.h5 --prompt-tokens 1024 --decode-steps 2 --q-heads 4 --kv-heads 2 "
      "--head-dim 64 --v-head-dim 64");
  CHECK(made.at("trace").at("synthetic") == true);
  CHECK(document_of(folder, "trace check s.h5").at("files").at(0).at("good") == true);
  const auto info = document_of(folder, "trace info s.h5");
  CHECK(info.at("trace").at("prompt_tokens") == 1024);
  CHECK(info.at("attention").size() == 1);
  CHECK(document_of(folder, "trace info --quick s.h5").at("attention").is_null());
  const ProgramResult replay = run_program(folder, "replay s.h5 --method dense");
  CHECK(replay.status == 0);
  CHECK(replay.out.find("s.h5 is synthetic") != std::string::npos);
}

TEST_CASE("program: every document tells the commit, and a reason for every null") {
  const TemporaryFolder folder;
  // A prompt shorter than the usual window of recent tokens, one head, one step: little to measure.
  const std::vector<std::string> commands{
      "trace synth -o s.h5 --prompt-tokens 100 --decode-steps 1 --q-heads 2 --kv-heads 2 "
      "--sink-mass 0",
      "trace info s.h5", "trace info s.h5 --quick", "trace check s.h5", "list gpus"};
  for (const std::string& command : commands) {
    INFO(command);
    const auto document = document_of(folder, command);
    CHECK(document.at("commit").is_string());
    const auto flat = document.flatten();
    for (const auto& [place, value] : flat.items()) {
      INFO(place);
      // Flat, empty lists look like nulls.
      const bool is_null = document.at(nlohmann::json::json_pointer(place)).is_null();
      if (is_null) CHECK(flat.contains(place + "_reason"));
    }
  }
}

TEST_CASE("program: traces behind the list of methods are traces") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  SmallTrace{}.write(folder.file("b.h5"));
  const auto before = document_of(folder, "replay a.h5 b.h5 --method dense topk --seed 1");
  CHECK(document_of(folder, "replay a.h5 --method dense topk b.h5 --seed 1") == before);
  CHECK(document_of(folder, "replay --method dense topk a.h5 b.h5 --seed 1") == before);
  CHECK(document_of(folder, "replay --seed 1 --method=dense a.h5 --method topk b.h5") == before);
}

}  // namespace
}  // namespace kvsim
