// kvsim measure without a GPU: its refusals, and its document from made-up samples.

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "models/presets.h"
#include "sim/measure.h"
#include "sim/measure_trace.h"
#include "tests/catch.h"
#include "tests/sim/broken_files.h"
#include "tests/sim/program.h"
#include "tests/sim/small_trace.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::ContainsSubstring;
using testing::SmallTrace;
using testing::TemporaryFolder;

MeasureOptions options_of_one_case() {
  MeasureOptions options;
  options.program_version = "0.1.0";
  options.program_commit = "abc";
  options.date = "2026-01-31T12:00:00Z";
  options.methods = {"dense", "santa-sys:samples=128"};
  options.gpu = "h200_sxm";
  options.machine = Presets().gpu("h200_sxm");
  options.cases.emplace_back().contexts = {32768};
  return options;
}

/// A process whose dense call takes `dense_us`, its sampler 2/3 of that, its reads 30 and 15 us.
MeasuredProcess process_of(double dense_us) {
  MeasureResult result;
  const double rows = 32768.0 * 8;
  MethodTimes dense;
  dense.spec = "dense";
  dense.back_to_back_us = {dense_us, dense_us + 1, dense_us - 1};
  dense.spaced_us = {dense_us, dense_us, dense_us};
  dense.ceilings = {0};
  dense.floor_bytes = 2 * rows * 256;
  dense.statistics.k_rows = dense.statistics.v_rows = rows;
  dense.statistics.k_requests = dense.statistics.v_requests = dense.statistics.draws = rows * 4;
  dense.statistics_measured = true;
  dense.relative_l2 = 2e-3;
  dense.repeatable = true;
  MethodTimes sampler = dense;
  sampler.spec = "santa-sys:samples=128";
  for (double& us : sampler.back_to_back_us) us *= 2.0 / 3;
  sampler.ceilings = {1, 2};
  sampler.statistics.v_rows = 4000;
  sampler.statistics.v_requests = sampler.statistics.draws = 4096;
  sampler.selection_differences = 0;
  result.methods = {dense, sampler};
  result.ceilings = {{"k+v", 2 * rows * 256, "a", {30, 30, 30}},
                     {"k+v rows", (rows + 4000) * 256, "b", {16, 16, 16}},
                     {"k", rows * 256, "c", {15, 15, 15}}};
  result.spacer_us = 0.6;
  result.copies = 5;
  result.sm_mhz = 1980;
  MeasuredProcess process;
  process.gpu.name = "Made-up GPU";
  process.gpu.driver = "1.2";
  process.gpu.runtime = "13.0";
  process.cases = {result};
  return process;
}

TEST_CASE("measure: a process's results survive their way to the parent") {
  const MeasuredProcess process = process_of(33);
  const Json json = json_of(process);
  CHECK(json_of(measured_process_from(Json::parse(json.dump()))) == json);
}

TEST_CASE("measure: medians over processes, paired ratios and the prediction") {
  const std::vector<MeasuredProcess> processes{process_of(33), process_of(36), process_of(34)};
  const Json document = measure_document(options_of_one_case(), processes);
  CHECK(document.at("schema") == "kvsim.measure/1");
  const Json& dense = document.at("rows").at(0);
  CHECK(dense.at("latency_us") == 34);
  CHECK(dense.at("latency_low_us") == 33);
  CHECK(dense.at("latency_high_us") == 36);
  CHECK(dense.at("speedup") == 1);
  CHECK(dense.at("ceilings").at(0).at("reads") == "k+v");
  CHECK(dense.at("ceilings").at(0).at("ratio").get<double>() == Approx(34.3 / 30).epsilon(0.01));
  CHECK(dense.at("bandwidth_gb_per_s").get<double>() == Approx(134217728 / 34.0 / 1e3));
  CHECK(dense.at("selection_differences").is_null());
  const Json& sampler = document.at("rows").at(1);
  CHECK(sampler.at("speedup").get<double>() == Approx(1.5));
  CHECK(sampler.at("speedup_low").get<double>() == Approx(1.5));
  CHECK(sampler.at("ceilings").size() == 2);
  for (const Json& row : document.at("rows")) {
    CHECK(row.at("predicted_us").at("value").get<double>() > 10);
    CHECK(row.at("predicted_us").at("high").get<double>() < 60);
    CHECK(row.at("samples") == 9);
  }
}

TEST_CASE("measure: the CSV begins with the columns of public tables") {
  std::vector<MeasuredProcess> processes{process_of(33)};
  processes[0].cases[0].methods[1].selection_differences = 3;
  const Json document = measure_document(options_of_one_case(), processes);
  const std::string csv = measure_csv(document);
  CHECK(csv.rfind("method,framework,framework_version,device,batch,context_tokens,q_heads,kv_heads,"
                  "head_dim,kv_dtype,q_dtype,window_tokens,latency_us,power_w,power_reliable,"
                  "suspect,suspect_reason,kernel,",
                  0) == 0);
  CHECK_THAT(csv,
             ContainsSubstring("\ndense_decode,kvsim,0.1.0,Made-up GPU,1,32768,32,8,128,bfloat16,"
                               "bfloat16,0,33,0,0,0,,dense,"));
  CHECK_THAT(csv, ContainsSubstring("1,selection_differs,santa-sys:samples=128,"));
  CHECK_THAT(measure_report(document), ContainsSubstring("WRONG: selection_differs"));
  CHECK_THAT(measure_report(document), ContainsSubstring("one process"));
  CHECK_THAT(failed_checks(document), ContainsSubstring("1 of 2 rows failed"));
}

TEST_CASE("measure: a check has no times, but the model's bytes") {
  MeasureOptions options = options_of_one_case();
  options.check_only = true;
  const std::vector<MeasuredProcess> processes{process_of(33)};
  const Json document = measure_document(options, processes);
  CHECK(failed_checks(document).empty());
  const Json& row = document.at("rows").at(0);
  CHECK(!row.contains("latency_us"));
  CHECK(row.at("floor_bytes") == 134217728);
  CHECK(row.at("predicted_dram_read_bytes").get<double>() == Approx(134217728).epsilon(0.01));
  CHECK_THAT(measure_check_report(document), ContainsSubstring("134217728"));
}

TEST_CASE("measure: a step of a trace is a case with the trace's shape and rows") {
  const TemporaryFolder folder;
  SmallTrace small;
  small.window_of_second = 100;
  small.write(folder.file("a.h5"));
  const std::vector<MeasureCase> first = traced_cases({folder.file("a.h5"), {}, {}});
  REQUIRE(first.size() == 1);
  CHECK(first[0].contexts == std::vector<std::int32_t>{303});  // steps 0 to 3: the middle one is 2
  CHECK(first[0].q_heads == 4);
  CHECK(first[0].kv_heads == 2);
  CHECK(first[0].head_dim == 32);
  CHECK(first[0].type == ElementType::kBfloat16);
  CHECK(first[0].traced->step == 2);
  CHECK(first[0].prompt_tokens() == 300);
  const std::vector<MeasureCase> windows = traced_cases(
      {folder.file("a.h5"), IndexList::parse("3", "--layers"), IndexList::parse("0,3", "--steps")});
  REQUIRE(windows.size() == 2);
  CHECK(windows[1].contexts == std::vector<std::int32_t>{100});
  CHECK(windows[1].traced->rows == Range{204, 304});
  CHECK(windows[1].traced->layer == windows[0].traced->layer);

  MeasureOptions options = options_of_one_case();
  options.cases = first;
  const std::vector<MeasuredProcess> processes{process_of(33)};
  const Json document = measure_document(options, processes);
  const Json& row = document.at("rows").at(0);
  CHECK(row.at("query_sd").is_null());
  CHECK(row.at("trace") == folder.file("a.h5"));
  CHECK(row.at("layer") == 1);
  CHECK(row.at("step") == 2);
  CHECK_THAT(measure_report(document), ContainsSubstring("4/2/32 bf16 hnd layer 1 step 2"));
  CHECK_THAT(measure_csv(document), ContainsSubstring("a.h5,1,2\n"));
}

TEST_CASE("measure: a trace that cannot be measured is one clear error") {
  const TemporaryFolder folder;
  SmallTrace().write(folder.file("good.h5"));
  SmallTrace{.type = ElementType::kFloat32}.write(folder.file("float32.h5"));
  SmallTrace{.latent = true}.write(folder.file("latent.h5"));
  std::filesystem::copy(folder.file("good.h5"), folder.file("keys.h5"));
  testing::delete_object(folder.file("keys.h5"), "/layers/1/k");
  struct Input {
    std::string arguments;
    int status;
    std::string culprit;
  };
  const std::vector<Input> inputs{
      {"--trace good.h5 --context 8", 2, "--context 8: --trace good.h5 has its own"},
      {"--trace good.h5 --batch 2", 2, "--batch 2"},
      {"--trace good.h5 --shape 32/8/128", 2, "--shape 32/8/128"},
      {"--trace good.h5 --dtype fp16", 2, "--dtype fp16"},
      {"--trace good.h5 --query-sd 4", 2, "--query-sd 4"},
      {"--trace good.h5 --layers 2", 2, "--layers: good.h5 has no 2"},
      {"--trace good.h5 --steps 4", 2, "--steps: good.h5 has no 4"},
      {"--trace good.h5 --steps x", 2, "--steps x"},
      {"--trace good.h5 --layout spiral", 2, "'spiral'"},
      {"--context 8 --layers 1", 2, "--layers 1 needs --trace"},
      {"--context 8 --steps 1", 2, "--steps 1 needs --trace"},
      {"--trace missing.h5", 1, "missing.h5"},
      {"--trace keys.h5", 1, "keys.h5: /layers/1/k"},
      {"--trace float32.h5", 1, "float32.h5: layer 1: its k is float32, but kernels take float16"},
      {"--trace latent.h5 --layers 3", 1, "latent.h5: layer 3: its cache is latent"},
  };
  for (const Input& input : inputs) {
    const testing::ProgramResult result =
        run_program(folder, "measure --method dense " + input.arguments);
    INFO("kvsim measure " << input.arguments << "\n" << result.err);
    CHECK(result.status == input.status);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(result.err.rfind("kvsim measure: ", 0) == 0);
    CHECK(result.err.find(input.culprit) != std::string::npos);
  }
}

TEST_CASE("measure: without a GPU it says so, exits with 1 and writes nothing") {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // hides the GPU of a machine that has one
  const TemporaryFolder folder;
  const testing::ProgramResult result =
      run_program(folder, "measure --method dense --context 1024 -o out.csv");
  unsetenv("CUDA_VISIBLE_DEVICES");
  INFO(result.err);
  CHECK(result.status == 1);
  CHECK(result.out.empty());
  CHECK((result.err.find("kvsim measure: this build has no CUDA kernels") == 0 ||
         result.err.find("kvsim measure: no CUDA device") == 0));
  CHECK(!std::filesystem::exists(folder.file("out.csv")));
}

TEST_CASE("measure: wrong flags exit with 2 and name the culprit") {
  const std::vector<std::pair<std::string, std::string>> inputs{
      {"--context 8", "--method is missing"},
      {"--method dense", "--context is missing"},
      {"--method nonsense --context 8", "unknown method 'nonsense'"},
      {"--method dense --context 0", "--context 0"},
      {"--method dense --context 8,x", "--context x"},
      {"--method dense --context 8 --batch 129", "--batch 129"},
      {"--method dense --context 8 --shape 32/8", "--shape 32/8"},
      {"--method dense --context 8 --shape 32/7/128", "--shape 32/7/128"},
      {"--method dense --context 8 --shape 32/8/100", "--shape 32/8/100"},
      {"--method dense --context 8 --dtype fp8", "--dtype fp8"},
      {"--method dense --context 8 --layout spiral", "'spiral'"},
      {"--method dense --context 8 --layout paged:24", "--layout paged:24"},
      {"--method dense --context 8 --query-sd=-1", "--query-sd -1"},
      {"--method dense --context 8 --processes 0", "--processes 0"},
      {"--method dense --context 8 --samples 1", "--samples 1"},
      {"--method dense --context 8 --baseline none", "unknown method 'none'"},
      {"--method dense --context 8 --gpu h900", "'h900'"},
  };
  const TemporaryFolder folder;
  for (const auto& [arguments, culprit] : inputs) {
    const testing::ProgramResult result = run_program(folder, "measure " + arguments);
    INFO("kvsim measure " << arguments << "\n" << result.err);
    CHECK(result.status == 2);
    CHECK(result.out.empty());
    CHECK(result.err.rfind("kvsim measure: ", 0) == 0);
    CHECK(result.err.find(culprit) != std::string::npos);
  }
}

}  // namespace
}  // namespace kvsim
