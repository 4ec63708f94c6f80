// Whatever is wrong with the input: the right exit status, one line that names the culprit, and
// nothing half-written. Driven through the program itself.

#include <algorithm>
#include <set>

#include "core/hdf5.h"
#include "tests/catch.h"
#include "tests/sim/broken_files.h"
#include "tests/sim/program.h"

namespace kvsim {
namespace {

using testing::TemporaryFolder;

struct BadInput {
  const char* arguments;
  int status;           // 2: flags, names, values; 1: files and all else
  const char* culprit;  // stands in the message
};

const std::vector<BadInput> kBadCommands{
    {"frobnicate", 2, "unknown verb 'frobnicate'"},
    {"sweep spec.toml", 2, "unknown verb 'sweep'"},
    {"--frob", 2, "--frob"},
    {"replay", 2, "no trace given"},
    {"replay good.h5", 2, "--method is missing"},
    {"replay good.h5 --method", 2, "--method"},
    {"replay good.h5 --method nonsense", 2, "unknown method 'nonsense'"},
    {"replay good.h5 --method topk:frob=3", 2, "unknown key 'frob'"},
    {"replay good.h5 --method topk:keys", 2, "found 'keys', expected key=value"},
    {"replay good.h5 --method topk:keys=0", 2, "keys=0, expected an integer from 1"},
    {"replay good.h5 --method topk:keys=many", 2, "keys=many"},
    {"replay good.h5 --method topk:keys=1,keys=2", 2, "key 'keys' is given twice"},
    {"replay good.h5 --method santa-prop:mode=wild", 2, "mode=wild"},
    {"replay good.h5 --method dense --meth topk", 2, "--meth"},
    {"replay good.h5 --method dense --frob 3", 2, "--frob"},
    {"replay good.h5 --method dense --gpu h900", 2, "'h900'"},
    {"replay good.h5 --method dense --accelerator abacus", 2, "'abacus'"},
    {"replay good.h5 --method dense --accelerator mac_int8 mac_int8", 2, "given twice"},
    {"replay good.h5 --method dense --accelerator mac_int8 --node 3nm", 2, "'3nm'"},
    {"replay good.h5 --method dense --accelerator mac_int8 --memory core", 2, "'core'"},
    {"replay good.h5 --method dense --node 7nm", 2, "--node 7nm needs --accelerator"},
    {"replay good.h5 --method dense --llm gpt-99", 2, "'gpt-99'"},
    {"replay good.h5 --method dense --llm smollm2-135m --config c.json", 2, "--config"},
    {"replay good.h5 --method dense --measure", 2, "--measure needs --device cuda"},
    {"replay good.h5 --method dense --device cuda --measure --layout nhd", 2, "--layout nhd: "},
    {"replay good.h5 --method dense --device cuda --measure --kv-dtype fp8", 2, "--kv-dtype fp8: "},
    {"replay good.h5 --method dense --device abacus", 2, "--device abacus"},
    {"replay good.h5 --method dense --layout spiral", 2, "'spiral'"},
    {"replay good.h5 --method dense --layout paged:0", 2, "paged:0"},
    {"replay good.h5 --method dense --l2 tepid", 2, "'tepid'"},
    {"replay good.h5 --method dense --kv-dtype int3", 2, "--kv-dtype int3"},
    {"replay good.h5 --method dense --layers 1-", 2, "--layers 1-"},
    {"replay good.h5 --method dense --layers x", 2, "--layers x"},
    {"replay good.h5 --method dense --layers 1,2", 2, "has no 2, only 1, 3"},
    {"replay good.h5 --method dense --steps 0-4", 2, "has no 4, only 0, 1, 2, 3"},
    {"replay good.h5 --method dense --repeats 0", 2, "--repeats 0"},
    {"replay good.h5 --method dense --repeats 2.5", 2, "--repeats 2.5"},
    {"replay good.h5 --method dense --threads -1", 2, "threads"},
    {"replay good.h5 --method dense --threads=-1", 2, "--threads -1"},
    {"replay good.h5 --method dense --seed pi", 2, "--seed pi"},
    {"replay good.h5 --method dense --seed 99999999999999999999", 2, "--seed 9999"},
    {"replay good.h5 --method dense --json=maybe", 2, "json"},
    {"replay --method good.h5", 2, "no trace given"},
    {"predict --method dense good.h5 --llm smollm2-135m --context 9", 2, "method 'good.h5'"},
    {"predict --method dense --llm smollm2-135m", 2, "--context is missing"},
    {"predict --method dense --context 1024", 2, "no LLM given"},
    {"predict --method dense --llm smollm2-135m --context 0", 2, "--context 0"},
    {"predict --method dense --llm smollm2-135m --context 10 --batch 0", 2, "--batch 0"},
    {"predict --method dense --llm llama-3.1-8b --context 10 --tp 0", 2, "--tp 0"},
    {"predict --method dense --llm llama-3.1-8b --context 10 --tp 3", 2, "to 3 GPUs"},
    {"predict --method dense --llm llama-3.1-8b --context 10 --tp 2 --gpu l40s", 2, "no [link]"},
    {"predict good.h5 --method dense --llm smollm2-135m --context 10", 2, "unexpected argument"},
    {"energy good.h5 --method dense", 2, "--accelerator is missing"},
    {"energy --method dense --accelerator mac_int8", 2, "give traces or --stats"},
    {"energy good.h5 --stats run.h5 --method dense --accelerator mac_int8", 2, "one of them"},
    {"energy --stats r.h5 --layers 1 --method dense --accelerator mac_int8", 2, "--layers 1: has"},
    {"energy --stats r.h5 --steps 0 --method dense --accelerator mac_int8", 2, "--steps 0: has"},
    {"energy --stats r.h5 --repeats 2 --method dense --accelerator mac_int8", 2,
     "--repeats 2: has"},
    {"energy --stats r.h5 --seed 3 --method dense --accelerator mac_int8", 2, "--seed 3: has"},
    {"list", 2, "found 0 kinds, expected one of: accelerators"},
    {"list fruits", 2, "'fruits'"},
    {"trace", 2, "expected one of"},
    {"trace frob", 2, "unknown trace verb 'frob'"},
    {"trace info", 2, "found 0 traces"},
    {"trace check", 2, "no trace given"},
    {"trace import x.safetensors -o new.h5 --workload 0", 2,
     "--workload chooses from a FlashInfer"},
    {"trace import x.safetensors -o new.h5 --sequence 0", 2,
     "--sequence chooses from a FlashInfer"},
    {"trace teams -o new.h5", 2, "found 0 traces"},
    {"trace teams x.h5", 2, "--output is missing"},
    {"trace teams x.h5 -o new.h5 --grouping leaves", 2,
     "--grouping leaves: expected keys, contiguous or probes"},
    {"trace teams x.h5 -o new.h5 --representatives 3", 2,
     "--representatives 3: expected a divisor of --parent 16"},
    {"trace teams x.h5 -o new.h5 --parent 0", 2, "--parent 0: expected an integer from 1"},
    {"trace synth", 2, "--output is missing"},
    {"trace synth -o new.h5 --type int4", 2, "--type int4"},
    {"trace synth -o new.h5 --kv-heads 3 --q-heads 4", 2, "heads"},
    {"trace synth -o new.h5 --sink-mass 2", 2, "sink"},
    {"trace synth -o new.h5 --layers 0", 2, "--layers 0"},
};

const std::vector<BadInput> kBadFiles{
    {"replay missing.h5 --method dense", 1, "missing.h5"},
    {"replay empty.h5 --method dense", 1, "empty.h5"},
    {"replay text.h5 --method dense", 1, "text.h5: not an HDF5 file: file signature not found"},
    {"replay --method dense missing.h5", 1, "missing.h5: no such file"},
    {"replay half.h5 --method dense", 1, "half.h5"},
    {"replay stub.h5 --method dense", 1, "stub.h5"},
    {"replay folder.h5 --method dense", 1, "folder.h5"},
    {"replay good.h5 missing.h5 --method dense", 1, "missing.h5"},
    {"replay nan_k.h5 --method dense", 1, "/layers/1/k"},
    {"replay inf_v.h5 --method dense", 1, "/layers/3/v"},
    {"replay huge_v.h5 --method dense", 1, "/layers/3/v: value at"},
    {"trace info huge_v.h5", 1, "expected a magnitude below 2^40"},
    {"replay latin1.h5 --method dense --json", 1, "latin1.h5: /: attribute 'model' is not UTF-8"},
    {"trace info latin1.h5 --json --quick", 1, "attribute 'model' is not UTF-8"},
    {"replay scale.h5 --method dense", 1, "/layers/1: attribute 'scale' is 100000000, expected"},
    {"replay nan_q.h5 --method dense", 1, "/layers/1/q"},
    {"replay short_k.h5 --method dense", 1, "/layers/1/k"},
    {"replay flat_v.h5 --method dense", 1, "/layers/1/v"},
    {"replay int_q.h5 --method dense", 1, "/layers/1/q"},
    {"replay no_v.h5 --method dense", 1, "/layers/3/v"},
    {"replay no_layers.h5 --method dense", 1, "/layers"},
    {"replay no_prompt.h5 --method dense", 1, "prompt_tokens"},
    {"replay version9.h5 --method dense", 1, "version"},
    {"replay format.h5 --method dense", 1, "format"},
    {"replay indivisible.h5 --method dense", 1, "kv_heads"},
    {"replay no_steps.h5 --method dense", 1, "decode_steps"},
    {"replay good.h5 --method dense -o exists.h5", 1, "exists.h5: exists already"},
    {"replay good.h5 --method dense -o folder.h5", 1, "folder.h5"},
    {"replay good.h5 --method dense -o nowhere/run.h5", 1, "nowhere"},
    {"replay good.h5 --method dense -o /proc/run.h5", 1, "/proc/run.h5"},
    {"replay nan_k.h5 --method dense -o run.h5", 1, "/layers/1/k"},
    {"replay good.h5 --method dense --presets nowhere", 1, "nowhere"},
    {"replay good.h5 --method dense --presets presets --gpu no_kind", 1, "device.clock"},
    {"replay good.h5 --method dense --presets presets --gpu no_unit", 1, "device.clock"},
    {"replay good.h5 --method dense --presets presets --gpu no_value", 1, "device.clock"},
    {"replay good.h5 --method dense --presets presets --gpu wrong_unit", 1, "device.clock"},
    {"replay good.h5 --method dense --presets presets --gpu bad_kind", 1, "guess"},
    {"replay good.h5 --method dense --presets presets --gpu negative", 1, "device.clock"},
    {"replay good.h5 --method dense --presets presets --gpu unknown_source", 1, "nobody"},
    {"replay good.h5 --method dense --presets presets --gpu missing_key", 1, "device.clock"},
    {"replay good.h5 --method dense --presets presets --gpu unknown_key", 1, "device.clook"},
    {"replay good.h5 --method dense --presets presets --gpu not_toml", 1, "not_toml"},
    {"replay good.h5 --method dense --presets presets --gpu no_sms", 1,
     "presets/gpus/no_sms.toml:25: device.sms: found 0 SM, expected 1 to 4096 SM"},
    {"replay good.h5 --method dense --presets presets --gpu huge_clock", 1,
     "found 1000000000000 MHz"},
    {"replay good.h5 --method dense --presets presets --gpu folder", 1,
     "presets/gpus/folder.toml: is a folder"},
    {"list gpus --presets presets", 1, "presets/gpus/folder.toml: is a folder"},
    {"replay good.h5 --method dense --config folder.h5", 1, "folder.h5: is a folder"},
    {"replay good.h5 --method dense --config no_layers.json", 1, "num_hidden_layers: found 0"},
    {"replay good.h5 --method dense --config missing.json", 1, "missing.json"},
    {"replay good.h5 --method dense --config not_json.json", 1, "not_json.json"},
    {"replay good.h5 --method dense --config no_heads.json", 1, "num_attention_heads"},
    {"replay good.h5 --method dense --config bad_heads.json", 1, "bad_heads.json"},
    {"predict --method dense --llm smollm2-135m --context 99 --stats missing.h5", 1, "missing.h5"},
    {"predict --method dense --llm smollm2-135m --context 99 --stats good.h5", 1, "no run file"},
    {"energy --stats text.h5 --method dense --accelerator mac_int8", 1, "text.h5"},
    {"trace info half.h5", 1, "half.h5"},
    {"trace info --quick short_k.h5", 1, "/layers/1/k"},
    {"trace teams half.h5 -o new.h5", 1, "half.h5"},
    {"trace teams nan_k.h5 -o new.h5", 1, "/layers/1/k"},
    {"trace teams good.h5 -o ./good.h5", 1, "./good.h5: is the input good.h5"},
    {"trace teams good.h5 -o exists.h5", 1, "exists.h5: exists already"},
    {"trace teams good.h5 -o new.h5 --grouping probes", 1,
     "good.h5: layer 1: santapp: the trace has no probe queries"},
    {"trace synth -o exists.h5 --prompt-tokens 512", 1, "exists.h5: exists already"},
    {"trace synth -o nowhere/t.h5 --prompt-tokens 512", 1, "nowhere"},
};

std::set<std::string> files_of(const TemporaryFolder& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    names.insert(entry.path().string());
  }
  return names;
}

void check_all(const TemporaryFolder& folder, const std::vector<BadInput>& inputs) {
  const std::set<std::string> before = files_of(folder);
  for (const BadInput& input : inputs) {
    const testing::ProgramResult result = run_program(folder, input.arguments);
    INFO("kvsim " << input.arguments << "\n" << result.err);
    CHECK(result.status == input.status);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(result.err.rfind("kvsim", 0) == 0);
    CHECK(result.err.find(input.culprit) != std::string::npos);
    CHECK(files_of(folder) == before);
  }
  CHECK(testing::read_text(folder.file("exists.h5")) == "precious");
}

TEST_CASE("bad input: flags, names and values exit with 2") {
  const TemporaryFolder folder;
  testing::write_broken_files(folder);
  check_all(folder, kBadCommands);
}

TEST_CASE("bad input: files exit with 1") {
  const TemporaryFolder folder;
  testing::write_broken_files(folder);
  check_all(folder, kBadFiles);
}

TEST_CASE("bad input: trace check lists all problems and exits with 1") {
  const TemporaryFolder folder;
  testing::write_broken_files(folder);
  const testing::ProgramResult result = run_program(folder, "trace check good.h5 no_v.h5 --json");
  CHECK(result.status == 1);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.err.find("no_v.h5") != std::string::npos);
  const auto document = result.json();
  CHECK(document.at("schema") == "kvsim.trace_check/1");
  CHECK(document.at("files").at(0).at("good") == true);
  CHECK(document.at("files").at(1).at("good") == false);
  CHECK(!document.at("files").at(1).at("problems").empty());
}

TEST_CASE("bad input: an output that cannot be written to is reported") {
  const TemporaryFolder folder;
  testing::write_broken_files(folder);
  const testing::ProgramResult result = run_program(folder, "list gpus > /dev/full");
  CHECK(result.status == 1);
  CHECK(result.err.find("standard output") != std::string::npos);
  const testing::ProgramResult late =
      run_program(folder, "replay good.h5 --method dense > /dev/full");
  CHECK(late.status == 1);
  CHECK(late.err == "kvsim replay: standard output: cannot write\n");
}

TEST_CASE("bad input: a file's name may be any bytes") {
  const TemporaryFolder folder;
  testing::write_broken_files(folder);
  std::filesystem::rename(folder.file("good.h5"), folder.file("caf\xe9.h5"));
  const testing::ProgramResult result =
      run_program(folder, "replay caf*.h5 --method dense --json -o run.h5");
  CHECK(result.status == 0);
  CHECK(result.json().at("trace").at("path") == "caf\xef\xbf\xbd.h5");
}

TEST_CASE("bad input: a method that only tests know is not offered") {
  const TemporaryFolder folder;
  testing::write_broken_files(folder);
  for (const char* arguments : {"replay good.h5 --method nonsense", "replay good.h5"}) {
    const testing::ProgramResult result = run_program(folder, arguments);
    CHECK(result.err.find("topk") != std::string::npos);
    CHECK(result.err.find("skeleton") == std::string::npos);
  }
}

/// Writes a run file that holds nothing but the document.
void write_run(const std::string& path, const nlohmann::ordered_json& document) {
  hdf5::File file = hdf5::File::create(path, path);
  file.write_attribute("/", "format", std::string("kvsim-run"));
  file.write_attribute("/", "version", std::int64_t{1});
  const std::vector<std::string> text{document.dump()};
  file.write_strings("/document", text);
  file.close();
}

TEST_CASE("bad input: statistics that cannot be are refused by name") {
  const TemporaryFolder folder;
  testing::write_broken_files(folder);
  REQUIRE(run_program(folder, "replay good.h5 --method dense topk -o run.h5").status == 0);
  const std::string text =
      hdf5::File::open(folder.file("run.h5")).open_dataset("/document").read_strings().at(0);
  struct Damage {
    const char* place;  // of the value to replace; "": all of it
    const char* value;  // as JSON
    const char* message;
  };
  const std::string layer = "/methods/1/by_layer/0";
  for (const Damage& damage : std::vector<Damage>{
           {"/statistics/k_rows", "null", "methods[1].by_layer[0].statistics.k_rows is null"},
           {"/statistics/k_rows", "-1", "by_layer[0].statistics.k_rows: found -1, expected 0 to"},
           {"/statistics/v_rows", "1e300", "by_layer[0].statistics.v_rows: found 1e+300"},
           {"/statistics/v_rows", "5000", "by_layer[0].statistics.v_rows: found 5000, expected"},
           {"/statistics/draws", "\"many\"", "statistics.draws is of type string"},
           {"/statistics", "[1, 2]", "by_layer[0].statistics is of type array, expected an object"},
           {"/statistics", "{}", "by_layer[0].statistics.k_rows is missing"},
           {"/q_heads", "0", "by_layer[0].q_heads: found 0, expected 1 to 65535"},
           {"/kv_heads", "3", "by_layer[0].kv_heads: found 3, expected a divisor of q_heads = 4"},
           {"/context_mean", "0", "by_layer[0].context_mean: found 0"},
           {"/head_dim", "32.5", "by_layer[0].head_dim: found 32.5, expected a whole number"},
           {"", "7", "methods[1].by_layer[0] is of type number, expected an object"}}) {
    auto document = nlohmann::ordered_json::parse(text);
    document.at(nlohmann::ordered_json::json_pointer(layer + damage.place)) =
        nlohmann::ordered_json::parse(damage.value);
    write_run(folder.file("bad.h5"), document);
    for (const char* verb :
         {"energy --accelerator mac_int8", "predict --llm smollm2-135m --context 99"}) {
      const testing::ProgramResult result =
          run_program(folder, std::string(verb) + " --method topk --stats bad.h5");
      INFO(damage.message << "\n" << result.err);
      CHECK(result.status == 1);
      CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
      CHECK(result.err.find(std::string("bad.h5: /document: ")) != std::string::npos);
      CHECK(result.err.find(damage.message) != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kvsim
