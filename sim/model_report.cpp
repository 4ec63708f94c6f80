// Reports of the documents that need no replay: predict and energy.

#include <fmt/format.h>

#include "core/table.h"
#include "sim/method_table.h"
#include "sim/report.h"

namespace kvsim {
namespace {

std::string text_of(const Json& json) { return json.get<std::string>(); }

std::string terms_text(const Json& layer) {
  Table table({"term", "limit", "us", "low", "high"});
  for (const Json& term : layer.at("terms")) {
    table.add_row({text_of(term.at("stage")), text_of(term.at("limit")), number_text(term.at("us")),
                   number_text(term.at("low_us")), number_text(term.at("high_us"))});
  }
  return table.text();
}

std::string stages_text(const Json& layer) {
  Table accesses({"stage", "access", "row bytes", "rows", "requests", "bytes"});
  Table ops({"stage", "operation", "count"});
  for (const Json& stage : layer.at("stages")) {
    const std::string name = text_of(stage.at("stage"));
    for (const Json& access : stage.at("accesses")) {
      accesses.add_row({name, text_of(access.at("direction")) + " " + text_of(access.at("tensor")),
                        number_text(access.at("row_bytes")), whole_text(access.at("rows")),
                        whole_text(access.at("requests")), whole_text(access.at("bytes"))});
    }
    for (const Json& op : stage.at("ops")) {
      ops.add_row(
          {name, text_of(op.at("phase")) + " " + text_of(op.at("op")), whole_text(op.at("count"))});
    }
  }
  return accesses.text() + "\n" + ops.text();
}

}  // namespace

std::string predict_report(const Json& document) {
  std::string text =
      fmt::format("{} on {}: {} tokens, batch {}\n\n", text_of(document.at("llm")),
                  text_of(document.at("gpu_title")), document.at("context").get<std::int64_t>(),
                  document.at("batch").get<std::int64_t>());
  MethodTable table(document.at("methods"));
  table.interval("attention of all layers, us", "/attention_us");
  table.interval("attention per layer, us", "/time/predicted_us");
  table.number("DRAM per layer, kB", "/traffic/dram_bytes", 1e3);
  table.interval("GPU energy per layer, uJ", "/energy/total_pj", 1e6);
  table.interval("decode step, us", "/decode_step/method_estimate_us");
  table.interval("decode step dense, us", "/decode_step/dense_estimate_us");
  table.interval("decode-step speedup", "/decode_step/speedup");
  table.number("break-even, tokens", "/decode_step/break_even_context");
  table.preparation();
  return text + table.text() + "\n" + notes_text(document);
}

std::string explain_report(const Json& document) {
  std::string text;
  for (const Json& method : document.at("methods")) {
    for (const Json& layer : method.at("layers")) {
      const Json& captured = layer.at("captured_layer");
      text +=
          fmt::format("\n{}: {} layers, window {}, statistics of {}\n", text_of(method.at("spec")),
                      layer.at("llm_layers").get<int>(), layer.at("window").get<std::int64_t>(),
                      captured.is_null() ? std::string("the method's bounds")
                                         : fmt::format("layer {}", captured.get<int>()));
      text += stages_text(layer) + "\n" + terms_text(layer);
    }
  }
  return text;
}

std::string energy_report(const Json& document) {
  const Json& methods = document.at("methods");
  MethodTable table(methods);
  const Json& first = methods[0].at("accelerators");
  std::string items;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const std::string name = text_of(first[i].at("name"));
    const std::string base = fmt::format("/accelerators/{}", i);
    table.interval(name + ", uJ", base + "/total_pj", 1e6);
    table.number("of dense", base + "/total_share_of_dense");
    table.interval("its datapath, uJ", base + "/datapath_pj", 1e6);
    table.number("of dense", base + "/datapath_share_of_dense");
    table.interval("its time, us", base + "/predicted_us");
    table.interval("its area, mm2", base + "/area_mm2");
  }
  for (const Json& method : methods) {
    for (const Json& accelerator : method.at("accelerators")) {
      Table list({"item", "pJ", "low", "high", "source", "datapath"});
      for (const Json& item : accelerator.at("items")) {
        list.add_row({text_of(item.at("item")), number_text(item.at("pj")),
                      number_text(item.at("low_pj")), number_text(item.at("high_pj")),
                      text_of(item.at("source")), item.at("datapath").get<bool>() ? "yes" : "no"});
      }
      items +=
          fmt::format("\n{} on {} ({} nm, {}, {} bit)\n", text_of(method.at("spec")),
                      text_of(accelerator.at("name")), number_text(accelerator.at("node_nm")),
                      text_of(accelerator.at("memory")), accelerator.at("element_bits").get<int>());
      items += list.text();
    }
  }
  return "per layer and step, means; [low, high] = 90 % interval\n\n" + table.text() + items +
         "\n" + notes_text(document);
}

}  // namespace kvsim
