#include "tests/plots/small_document.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <vector>

#include "core/hdf5.h"

namespace kvsim::testing {
namespace {

Json estimate(double value) {
  return {{"value", value}, {"low", 0.8 * value}, {"high", 1.25 * value}, {"source", "derived"}};
}

Json term(const std::string& stage, const std::string& limit, double us) {
  return {{"stage", stage}, {"limit", limit}, {"us", us}};
}

Json item(const std::string& name, double pj, bool datapath) {
  return {{"item", name}, {"pj", pj}, {"source", "assumed"}, {"datapath", datapath}};
}

/// The parts of an energy report; whole = 10 times the datapath.
Json energy(double datapath_pj) {
  return {
      {"total_pj", estimate(10 * datapath_pj)},
      {"datapath_pj", estimate(datapath_pj)},
      {"items",
       {item("dram read", 5 * datapath_pj, false), item("cache read", datapath_pj, false),
        item("score multiply", 0.6 * datapath_pj, true), item("score add", 0.3 * datapath_pj, true),
        item("value add", 0.1 * datapath_pj, true), item("static", 3 * datapath_pj, false)}}};
}

Json accelerator(const std::string& name, double datapath_pj) {
  Json json = energy(datapath_pj);
  json["name"] = name;
  json["node_nm"] = 7.0;
  json["memory"] = "HBM3E";
  return json;
}

Json decode_step(double speedup_at_4k) {
  Json curve = Json::array();
  for (int i = 0; i < 3; ++i) {
    curve.push_back({{"context", 1024 << (2 * i)},
                     {"speedup", estimate(1 + (speedup_at_4k - 1) * (i - 0.5) * 2)}});
  }
  return {{"llm", "tiny"}, {"break_even_context", 2345}, {"curve", curve}};
}

Json method(const std::string& spec, const Json& parameters, double error, double share,
            double speedup) {
  const double us = 10 * share;
  return {{"method", spec.substr(0, spec.find(':'))},
          {"spec", spec},
          {"params", parameters},
          {"error", {{"relative_l2", {{"mean", error}, {"p95", 2.5 * error}}}}},
          {"traffic", {{"dram_share_of_dense", share}}},
          {"time",
           {{"predicted_us", estimate(us)},
            {"measured_us", nullptr},
            {"terms",
             {term("stream: kernel_launch", "latency", 0.2 * us), term("stream", "dram", 0.6 * us),
              term("merge", "compute", 0.2 * us)}}}},
          {"energy", energy(3e6 * share)},
          {"accelerators", {accelerator("adders", 2e5 * share), accelerator("macs", 3e5 * share)}},
          {"decode_step", decode_step(speedup)}};
}

}  // namespace

Json small_document() {
  Json document{{"schema", "kvsim.replay/1"},
                {"trace",
                 {{"model", "Tiny-1M"},
                  {"synthetic", false},
                  {"prompt_tokens", 64},
                  {"replayed_steps", {0, 1}},
                  {"replayed_layers", {0}}}},
                {"gpu", "h200_sxm"},
                {"gpu_title", "NVIDIA H200 SXM"}};
  document["methods"] = {method("dense", Json::object(), 3e-7, 1, 1),
                         method("topk:keys=16", {{"keys", 16}}, 0.2, 0.6, 1.2),
                         method("santa-sys:samples=64,mode=released",
                                {{"samples", 64}, {"mode", "released"}}, 0.1, 0.55, 1.4)};
  Json& baseline = document["methods"][0]["decode_step"];
  baseline["break_even_context"] = nullptr;
  baseline["break_even_context_reason"] = "dense is the baseline";
  return document;
}

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "kvsim-plots-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::size_t Folder::files() const {
  const std::filesystem::directory_iterator entries(path_);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

std::string Folder::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name), std::ios::binary) << content;
  return path(name);
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_run_file(const std::string& path, const Json& document) {
  hdf5::File file = hdf5::File::create(path, path);
  file.write_attribute("/", "format", std::string("kvsim-run"));
  file.write_attribute("/", "version", std::int64_t{1});
  const std::vector<std::string> text{document.dump()};
  file.write_strings("/document", text);
  file.close();
}

}  // namespace kvsim::testing
