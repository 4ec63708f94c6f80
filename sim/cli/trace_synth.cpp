// kvsim trace synth: makes a synthetic trace of any size.

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options/value_semantic.hpp>
#include <memory>
#include <utility>

#include "core/error.h"
#include "core/progress.h"
#include "core/table.h"
#include "sim/cli/command_line.h"
#include "sim/cli/trace_verb.h"
#include "sim/cli/version.h"
#include "sim/json.h"
#include "sim/method_table.h"
#include "traces/synth.h"

namespace kvsim {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t kMost = std::int64_t{1} << 31;

/// A number of the spec with its flag; the spec's own default is the flag's.
struct RealFlag {
  const char* name;
  double SynthSpec::*field;
  const char* help;
};
constexpr RealFlag kRealFlags[] = {
    {"sink-mass", &SynthSpec::sink_mass, "softmax mass on the first --sink-tokens"},
    {"recency", &SynthSpec::recency, "softmax mass on the last --window-tokens"},
    {"entropy-low", &SynthSpec::entropy_low_nats, "entropy of the sharpest head, nats"},
    {"entropy-high", &SynthSpec::entropy_high_nats, "entropy of the flattest head, nats"},
    {"group-correlation", &SynthSpec::group_correlation, "mean cosine of two queries of a group"},
    {"drift", &SynthSpec::drift, "1 - cosine of a head's consecutive queries"},
    {"key-correlation", &SynthSpec::key_correlation, "variance a key shares with its neighbours"},
};

struct TokensFlag {
  const char* name;
  std::int64_t SynthSpec::*field;
  const char* help;
};
constexpr TokensFlag kTokensFlags[] = {
    {"prompt-tokens", &SynthSpec::prompt_tokens, "tokens before the first decode step"},
    {"decode-steps", &SynthSpec::decode_steps, "decode steps"},
    {"probe-queries", &SynthSpec::probe_queries, "queries of the last prompt tokens to keep too"},
    {"sink-tokens", &SynthSpec::sink_tokens, "how many first tokens are sinks"},
    {"window-tokens", &SynthSpec::window_tokens,
     "how many last tokens are recent; fewer by default if the prompt is short"},
};

struct CountFlag {
  const char* name;
  int SynthSpec::*field;
  const char* help;
};
constexpr CountFlag kCountFlags[] = {
    {"layers", &SynthSpec::layers, "layers"},
    {"q-heads", &SynthSpec::q_heads, "query heads"},
    {"kv-heads", &SynthSpec::kv_heads, "KV heads (1 with --latent)"},
    {"head-dim", &SynthSpec::head_dim, "size of a key"},
    {"v-head-dim", &SynthSpec::v_head_dim, "size of a value"},
};

auto with_default(const std::string& text, const char* shown) {
  return po::value<std::string>()->value_name(shown)->default_value(text);
}

CommandLine make_command_line() {
  CommandLine line("trace synth -o TRACE.h5 [options]",
                   "Makes a synthetic trace: marked as such in the file and wherever it is used.");
  const SynthSpec spec;
  line.own()("output,o", po::value<std::string>()->value_name("TRACE.h5"), "file to write");
  for (const auto& [name, field, help] : kTokensFlags) {
    line.own()(name, with_default(fmt::format("{}", spec.*field), "N"), help);
  }
  for (const auto& [name, field, help] : kCountFlags) {
    line.own()(name, with_default(fmt::format("{}", spec.*field), "N"), help);
  }
  for (const auto& [name, field, help] : kRealFlags) {
    line.own()(name, with_default(fmt::format("{}", spec.*field), "X"), help);
  }
  line.own()("type", with_default("bf16", "T"), "stored type: bf16, fp16 or fp32")(
      "latent", po::bool_switch(), "one dataset kv, V is its first --v-head-dim columns")(
      "compress", po::bool_switch(), "shuffle and gzip the file");
  return line;
}

ElementType parse_type(const std::string& word) {
  if (word == "bf16") return ElementType::kBfloat16;
  if (word == "fp16") return ElementType::kFloat16;
  if (word == "fp32") return ElementType::kFloat32;
  fail<UsageError>("--type {}: expected bf16, fp16 or fp32", word);
}

SynthSpec spec_from(const CommandLine& line) {
  SynthSpec spec;
  for (const auto& [name, field, help] : kTokensFlags) spec.*field = line.integer(name, 0, kMost);
  const std::int64_t others = spec.prompt_tokens - spec.sink_tokens;
  if (!line.given("window-tokens") && others < spec.window_tokens) {
    spec.window_tokens = std::max<std::int64_t>(others / 2, 1);  // leaves tokens of neither kind
  }
  for (const auto& [name, field, help] : kCountFlags) {
    spec.*field = static_cast<int>(line.integer(name, 1, 65536));
  }
  for (const auto& [name, field, help] : kRealFlags) spec.*field = line.real(name, 0, 1e6);
  spec.type = parse_type(line.text("type"));
  spec.latent = line.given("latent");
  if (spec.latent && !line.given("kv-heads")) spec.kv_heads = 1;
  spec.seed = line.seed();
  return spec;
}

Json document_of(const SynthResult& result, const std::string& path) {
  Json quantities = Json::array();
  for (const SynthQuantity& quantity : result.quantities) {
    Json json{{"name", quantity.name}, {"asked", nullptr}};
    if (quantity.asked) {
      json["asked"] = finite(*quantity.asked);
    } else {
      json["asked_reason"] = "nothing was asked of it";
    }
    json["reached"] = finite(quantity.reached);
    quantities.push_back(std::move(json));
  }
  return {{"schema", "kvsim.trace_synth/1"},
          {"version", version()},
          {"commit", commit()},
          {"path", path},
          {"trace", json_of(result.info)},
          {"quantities", quantities},
          {"notes", result.notes}};
}

std::string report(const Json& document) {
  Table table({"quantity", "asked", "reached"});
  for (const Json& quantity : document.at("quantities")) {
    table.add_row({quantity.at("name").get<std::string>(), number_text(quantity.at("asked")),
                   number_text(quantity.at("reached"))});
  }
  std::string text = table.text();
  for (const Json& note : document.at("notes")) text += "- " + note.get<std::string>() + "\n";
  return text;
}

void run(const std::vector<std::string>& words) {
  CommandLine line = make_command_line();
  if (!line.parse(words)) return;
  if (!line.given("output")) throw UsageError("--output is missing");
  const SynthSpec spec = spec_from(line);
  std::unique_ptr<Progress> progress;
  std::int64_t drawn = 0;
  SynthOptions options{.force = line.force(), .compress = line.given("compress"), .progress = {}};
  options.progress = [&](std::int64_t done, std::int64_t total) {
    if (!progress) progress = std::make_unique<Progress>("synth", total);
    progress->advance(done - std::exchange(drawn, done));
  };
  const SynthResult result = synthesize(spec, line.text("output"), options);
  progress.reset();
  const Json document = document_of(result, line.text("output"));
  if (line.json()) return print_document(document);
  print_text(report(document));
}

KVSIM_REGISTER_TRACE_VERB("synth", {"make a synthetic trace of any size", run});

}  // namespace
}  // namespace kvsim
