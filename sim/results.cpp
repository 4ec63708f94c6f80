#include "sim/results.h"

#include <fmt/format.h>

#include <functional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/hdf5.h"
#include "sim/scaled_statistics.h"

namespace kvsim {
namespace {

constexpr const char* kFormat = "kvsim-run";
constexpr std::int64_t kVersion = 1;

/// Columns of equal length below one group, each with its unit as an attribute.
class Columns {
 public:
  Columns(hdf5::File& file, std::string group) : file_(file), group_(std::move(group)) {
    file_.create_group(group_);
  }

  template <typename T>
  void write(std::string_view name, std::string_view unit, const std::vector<T>& values) {
    const std::string object = fmt::format("{}/{}", group_, name);
    file_.write<T>(object, values, {static_cast<std::int64_t>(values.size())}, {.compress = true});
    file_.write_attribute(object, "unit", std::string(unit));
  }

 private:
  hdf5::File& file_;
  std::string group_;
};

/// One value for each head, KV head or step of every record.
template <typename T, typename Count, typename Value>
std::vector<T> flatten(const MethodRun& run, Count count, Value value) {
  std::vector<T> values;
  for (const StepRecord& record : run.records) {
    for (std::size_t i = 0; i < count(record); ++i) {
      values.push_back(static_cast<T>(value(record, i)));
    }
  }
  return values;
}

/// The columns that say what a row is of.
template <typename Count>
void write_keys(Columns& columns, const MethodRun& run, Count count) {
  using Record = const StepRecord&;
  const auto write = [&](std::string_view name, auto value) {
    columns.write(name, "index", flatten<std::int64_t>(run, count, value));
  };
  write("sequence", [](Record r, std::size_t) { return r.sequence; });
  write("seed", [](Record r, std::size_t) { return r.seed; });
  write("layer", [](Record r, std::size_t) { return r.layer; });
  write("step", [](Record r, std::size_t) { return r.step; });
}

void write_heads(hdf5::File& file, const std::string& group, const MethodRun& run) {
  Columns columns(file, group + "/heads");
  const auto count = [](const StepRecord& record) { return record.heads.size(); };
  write_keys(columns, run, count);
  columns.write(
      "head", "index",
      flatten<std::int64_t>(run, count, [](const StepRecord&, std::size_t i) { return i; }));
  const auto write = [&](std::string_view name, std::string_view unit, auto field) {
    columns.write(name, unit, flatten<double>(run, count, [&](const StepRecord& r, std::size_t i) {
                    return static_cast<double>(r.heads[i].*field);
                  }));
  };
  write("relative_l2", "1", &HeadFigures::relative_l2);
  write("cosine", "1", &HeadFigures::cosine);
  write("mass_recall", "1", &HeadFigures::mass_recall);
  write("k_rows", "rows", &HeadFigures::k_rows);
  write("k_features", "features", &HeadFigures::k_features);
  write("v_rows", "rows", &HeadFigures::v_rows);
  write("draws", "rows", &HeadFigures::draws);
  write("empty", "0 or 1", &HeadFigures::empty);
}

void write_kv_heads(hdf5::File& file, const std::string& group, const MethodRun& run) {
  Columns columns(file, group + "/kv_heads");
  const auto count = [](const StepRecord& record) { return record.unions.size(); };
  write_keys(columns, run, count);
  columns.write(
      "kv_head", "index",
      flatten<std::int64_t>(run, count, [](const StepRecord&, std::size_t i) { return i; }));
  const auto write = [&](std::string_view name, std::string_view unit, auto field) {
    columns.write(name, unit, flatten<double>(run, count, [&](const StepRecord& r, std::size_t i) {
                    return r.unions[i].*field;
                  }));
  };
  write("k_union_rows", "rows", &UnionFigures::k_rows);
  write("k_union_features", "features", &UnionFigures::k_features);
  write("v_union_rows", "rows", &UnionFigures::v_rows);
}

std::size_t one_per_record(const StepRecord&) { return 1; }

void write_steps(hdf5::File& file, const std::string& group, const MethodRun& run) {
  Columns columns(file, group + "/steps");
  write_keys(columns, run, one_per_record);
  columns.write("context", "tokens",
                flatten<double>(run, one_per_record,
                                [](const StepRecord& r, std::size_t) { return r.context; }));
  for (const auto& [name, field] : kStatisticsFields) {
    const StatisticsField member = field;
    columns.write(name, name == "state_bytes_read" ? "bytes" : "count",
                  flatten<double>(run, one_per_record, [&](const StepRecord& r, std::size_t) {
                    return r.statistics.*member;
                  }));
  }
}

/// One target's figures, row by row as in `steps`.
void write_target(hdf5::File& file, const std::string& group, const MethodRun& run,
                  std::size_t target) {
  Columns columns(file, group);
  const auto write = [&](const std::string& name, std::string_view unit, auto value) {
    columns.write(name, unit,
                  flatten<double>(run, one_per_record, [&](const StepRecord& r, std::size_t) {
                    return value(r.targets[target]);
                  }));
  };
  const auto bytes = [&](const std::string& name, auto field) {
    write(name, "bytes", [&](const TargetFigures& figures) { return figures.*field; });
  };
  bytes("requested_bytes", &TargetFigures::requested_bytes);
  bytes("sector_bytes", &TargetFigures::sector_bytes);
  bytes("dram_read_bytes", &TargetFigures::dram_read_bytes);
  bytes("dram_write_bytes", &TargetFigures::dram_write_bytes);
  const auto estimate = [&](const std::string& name, std::string_view unit, auto field) {
    write(name, unit, [&](const TargetFigures& figures) { return (figures.*field).value; });
    write(name + "_low", unit, [&](const TargetFigures& figures) { return (figures.*field).low; });
    write(name + "_high", unit,
          [&](const TargetFigures& figures) { return (figures.*field).high; });
  };
  estimate("predicted_us", "us", &TargetFigures::us);
  estimate("total_pj", "pJ", &TargetFigures::total_pj);
  estimate("datapath_pj", "pJ", &TargetFigures::datapath_pj);
}

void write_method(hdf5::File& file, const Replay& replay, std::size_t index) {
  const std::string group = fmt::format("/methods/{}", index);
  const MethodRun& run = replay.runs[index];
  file.create_group(group);
  file.write_attribute(group, "method", replay.methods[index].name);
  file.write_attribute(group, "spec", replay.specs[index]);
  file.write_attribute(group, "params", json_of(replay.methods[index].parameters).dump());
  write_heads(file, group, run);
  write_kv_heads(file, group, run);
  write_steps(file, group, run);
  for (std::size_t target = 0; target < replay.targets.size(); ++target) {
    write_target(file, fmt::format("{}/targets/{}", group, replay.targets[target].machine.name),
                 run, target);
  }
}

}  // namespace

void write_results(OutputFile output, const Replay& replay, const Json& document) {
  hdf5::File file = hdf5::File::create(output.temporary(), output.path());
  file.write_attribute("/", "format", std::string(kFormat));
  file.write_attribute("/", "version", kVersion);
  for (std::size_t i = 0; i < replay.runs.size(); ++i) write_method(file, replay, i);
  constexpr auto kReplace = Json::error_handler_t::replace;  // names of files may be any bytes
  const std::vector<std::string> text{document.dump(-1, ' ', false, kReplace)};
  file.write_strings("/document", text);
  file.close();
  output.commit();
}

Json read_document(const std::string& path, const std::string& schema) {
  const hdf5::File file = hdf5::File::open(path);
  if (!file.has_attribute("/", "format") || file.string_attribute("/", "format") != kFormat) {
    fail<RuntimeError>("{}: no run file of kvsim replay (attribute format is not {})", path,
                       kFormat);
  }
  if (const auto version = file.int_attribute("/", "version"); version != kVersion) {
    fail<RuntimeError>("{}: run file version {}, expected {}", path, version, kVersion);
  }
  const auto text = file.open_dataset("/document").read_strings();
  const Json document = text.size() == 1 ? Json::parse(text[0], nullptr, false) : Json();
  if (!document.is_object() || !document.contains("schema") || document["schema"] != schema) {
    fail<RuntimeError>("{}: /document is not a {} document", path, schema);
  }
  return document;
}

}  // namespace kvsim
