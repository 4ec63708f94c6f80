#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/preset_file.h"
#include "models/accelerator/memory_device.h"
#include "models/accelerator/process_node.h"
#include "models/embedded_presets.h"
#include "models/presets.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::ContainsSubstring;

PresetFile embedded(std::string_view kind, std::string_view name) {
  for (const EmbeddedPreset& preset : embedded_presets()) {
    if (preset.kind == kind && preset.name == name) {
      return PresetFile::parse(std::string(preset.toml), std::string(name));
    }
  }
  throw RuntimeError("no such preset: " + std::string(name));
}

ProcessNode node(const std::string& name) {
  return load_process_node(name, embedded("nodes", name));
}

double pj(const Machine& machine, Op op, Phase phase) { return machine.op(op, phase).pj.value; }

/// Energy of a value-stage multiply-accumulate over that of a gather-add, registers included.
double mac_to_add(const Machine& mac, const Machine& adder, double Estimate::*bound) {
  const Estimate& add = adder.op(Op::kAdd, Phase::kValue).pj;
  return (mac.op(Op::kMultiply, Phase::kValue).pj.*bound +
          mac.op(Op::kAdd, Phase::kValue).pj.*bound) /
         (add.*bound);
}

TEST_CASE("every accelerator loads at every node with every memory") {
  const Presets presets;
  REQUIRE(presets.names("accelerators") == std::vector<std::string>{"adder_value", "mac_int8"});
  REQUIRE(presets.names("nodes") == std::vector<std::string>{"45nm", "7nm"});
  REQUIRE(presets.names("memories").size() == 7);
  for (const std::string& name : presets.names("accelerators")) {
    for (const std::string& process : presets.names("nodes")) {
      for (const std::string& memory : presets.names("memories")) {
        INFO(name << " " << process << " " << memory);
        const Machine machine = presets.accelerator(name, process, memory);
        CHECK(machine.name == name);
        CHECK_FALSE(machine.is_gpu);
        CHECK(machine.element_bits == 8);
        CHECK(machine.memory.stream.gb_per_s.value < machine.memory.peak_gb_per_s);
        CHECK(machine.memory.gather_row_bytes.size() == machine.memory.gather_share.size());
        CHECK(machine.static_w.value > 0);
        CHECK(machine.area_mm2.low > 0);
        CHECK(machine.area_mm2.high >= machine.area_mm2.value);
        for (const auto& row : machine.ops) {
          for (const OpCost& cost : row) {
            CHECK_FALSE(cost.what.empty());
            CHECK(cost.pj.low <= cost.pj.value);
            CHECK(cost.pj.value <= cost.pj.high);
          }
        }
      }
    }
  }
}

TEST_CASE("a node is named with or without its unit, and has a default") {
  const Presets presets;
  CHECK(presets.accelerator("mac_int8", "45", "").node_nm == 45);
  CHECK(presets.accelerator("mac_int8", "45nm", "").node_nm == 45);
  CHECK(presets.accelerator("mac_int8", "", "").node_nm == 7);
  CHECK(presets.accelerator("mac_int8", "", "").memory.name == "HBM3E");
  CHECK(presets.accelerator("mac_int8", "", "lpddr5x").memory.name == "LPDDR5X");
}

TEST_CASE("unknown names are listed") {
  const Presets presets;
  CHECK_THROWS_WITH(presets.accelerator("npu", "", ""),
                    ContainsSubstring("npu") && ContainsSubstring("adder_value, mac_int8"));
  CHECK_THROWS_AS(presets.accelerator("mac_int8", "5", ""), UsageError);
  CHECK_THROWS_WITH(presets.accelerator("mac_int8", "5", ""), ContainsSubstring("45nm, 7nm"));
  CHECK_THROWS_WITH(presets.accelerator("mac_int8", "", "ddr4"), ContainsSubstring("hbm3e"));
}

TEST_CASE("int8 MAC over gather-add is 1.7 to 1.9 with registers and softmax weights") {
  // Bare logic and uniform operands give 3.0 (Horowitz) and 3.3 (Jouppi): what not to print.
  const Presets presets;
  for (const char* process : {"45nm", "7nm"}) {
    INFO(process);
    const Machine mac = presets.accelerator("mac_int8", process, "");
    const Machine adder = presets.accelerator("adder_value", process, "");
    CHECK(mac_to_add(mac, adder, &Estimate::value) > 1.7);
    CHECK(mac_to_add(mac, adder, &Estimate::value) < 1.9);
    CHECK(mac_to_add(mac, adder, &Estimate::low) > 1.65);
    CHECK(mac_to_add(mac, adder, &Estimate::high) < 1.9);
    const ProcessNode cells = node(process);
    const double bare = (cells.pj("int8_multiply").value + cells.pj("int32_add").value) /
                        cells.pj("int32_add").value;
    CHECK(bare == Approx(process == std::string("45nm") ? 3.0 : 3.33).epsilon(0.01));
  }
}

TEST_CASE("the two accelerators differ in the value stage only") {
  const Presets presets;
  const Machine mac = presets.accelerator("mac_int8", "7", "hbm3");
  const Machine adder = presets.accelerator("adder_value", "7", "hbm3");
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (static_cast<Phase>(p) == Phase::kValue) continue;
    for (std::size_t o = 0; o < kOps; ++o) {
      CHECK(mac.ops[o][p].pj.value == adder.ops[o][p].pj.value);
      CHECK(mac.ops[o][p].per_us.value == adder.ops[o][p].per_us.value);
    }
  }
  CHECK(adder.area_mm2.value < mac.area_mm2.value);
  // Eight weight bits are eight shifted adds, in energy, time and lane cycles.
  const OpCost& multiply = adder.op(Op::kMultiply, Phase::kValue);
  const OpCost& add = adder.op(Op::kAdd, Phase::kValue);
  CHECK(multiply.pj.value == Approx(8 * add.pj.value));
  CHECK(multiply.per_us.value == Approx(add.per_us.value / 8));
  CHECK(multiply.lane_cycles == 8);
  CHECK(multiply.unit == add.unit);
  // In a MAC lane both happen in one cycle.
  CHECK(mac.op(Op::kMultiply, Phase::kValue).per_us.value == 0);
  CHECK(mac.op(Op::kMultiply, Phase::kValue).lane_cycles == 0);
  CHECK(pj(mac, Op::kAdd, Phase::kValue) > pj(adder, Op::kAdd, Phase::kValue));
  CHECK(pj(mac, Op::kShift, Phase::kValue) == 0);
}

TEST_CASE("random words: a shift register is cheap, Philox multiplies") {
  const ProcessNode cells = node("7nm");
  CHECK(cells.pj("philox_word").value > 100 * cells.pj("lfsr_word").value);
  CHECK(pj(Presets().accelerator("adder_value", "7", ""), Op::kRandomWord, Phase::kSelect) ==
        cells.pj("lfsr_word").value);
}

TEST_CASE("45 nm carries Horowitz's table") {
  const ProcessNode cells = node("45nm");
  // (3.7 + 0.9) / 0.9: the SANTA paper's value-stage saving at as many samples as keys.
  const double multiply = cells.pj("fp32_multiply").value;
  const double add = cells.pj("fp32_add").value;
  CHECK((multiply + add) / add == Approx(5.1).epsilon(0.01));
  CHECK(cells.pj("int8_multiply").value == 0.2);
  CHECK(cells.pj("int32_multiply").value == 3.1);
  CHECK(64 * curve_at(cells.sram_read_pj_per_bit, 8).value == Approx(10).epsilon(0.01));
  CHECK(64 * curve_at(cells.sram_read_pj_per_bit, 1024).value == Approx(100).epsilon(0.01));
}

TEST_CASE("7 nm: Jouppi's table lies within what synthesis on ASAP7 gives") {
  struct Row {
    const char* unit;
    double no_glitches_fj;
    double all_glitches_fj;
  };
  // fJ per operation, uniform operands. int32 add and int8 multiply lie 4 and 11 % below.
  const std::vector<Row> rows{
      {"int8_add", 6.9, 8.4},     {"int32_add", 31, 40},        {"int8_multiply", 79, 171},
      {"bf16_multiply", 88, 241}, {"bf16_add", 108, 303},       {"fp16_multiply", 151, 436},
      {"fp16_add", 132, 467},     {"fp32_multiply", 726, 2503}, {"fp32_add", 257, 861}};
  const ProcessNode cells = node("7nm");
  int inside = 0;
  for (const Row& row : rows) {
    INFO(row.unit);
    const double fj = 1000 * cells.pj(row.unit).value;
    CHECK(fj > 0.88 * row.no_glitches_fj);
    CHECK(fj < row.all_glitches_fj);
    inside += fj >= row.no_glitches_fj;
  }
  CHECK(inside == 7);
}

TEST_CASE("7 nm costs less than 45 nm in every unit") {
  const ProcessNode old_node = node("45nm");
  const ProcessNode new_node = node("7nm");
  for (const auto& [unit, energy] : old_node.op_pj) {
    INFO(unit);
    CHECK(new_node.pj(unit).value <= energy.value);
    CHECK(new_node.um2(unit).value <= old_node.um2(unit).value);
  }
  CHECK(old_node.um2("int8_multiply").value / new_node.um2("int8_multiply").value ==
        Approx(14.5).epsilon(0.02));
}

TEST_CASE("adder lanes are 2.7 times smaller than MAC lanes at 45 nm") {
  const ProcessNode cells = node("45nm");
  const double registers = 32 * cells.flop_um2_per_bit.value;
  const double add = cells.um2("int24_add").value + registers;
  CHECK((add + cells.um2("int8_multiply").value) / add == Approx(2.7).epsilon(0.06));
}

TEST_CASE("curves run through their points, linear in the logarithm") {
  const PresetFile::Curve curve{{8, 32}, {{1, 1, 1, Source::kSpec}, {3, 2, 4, Source::kSpec}}};
  CHECK(curve_at(curve, 1).value == 1);
  CHECK(curve_at(curve, 8).value == 1);
  CHECK(curve_at(curve, 16).value == Approx(2));
  CHECK(curve_at(curve, 16).high == Approx(2.5));
  CHECK(curve_at(curve, 64).value == 3);
}

TEST_CASE("gather shares stay within the four-activation window of each memory") {
  // HBM3: 4 rows of 32 B per 15 ns of tFAW, of 25.6 GB/s per pseudo channel.
  const MemoryDevice hbm3 = load_memory_device(embedded("memories", "hbm3"));
  REQUIRE(hbm3.system.gather_row_bytes.front() == 32);
  CHECK(hbm3.system.gather_share.front().value == Approx(4 * 32 / 15.0 / 25.6).epsilon(0.03));
  for (const EmbeddedPreset& preset : embedded_presets()) {
    if (preset.kind != "memories") continue;
    INFO(preset.name);
    const MemorySystem memory = load_memory_device(embedded("memories", preset.name)).system;
    for (std::size_t i = 1; i < memory.gather_share.size(); ++i) {
      CHECK(memory.gather_share[i].value >= memory.gather_share[i - 1].value);
      CHECK(memory.gather_share[i].high <= 1);
    }
    CHECK(memory.gather_row_bytes.back() <= memory.row_bytes);
  }
}

/// A folder of presets that is gone when the test is.
class PresetFolder {
 public:
  explicit PresetFolder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / ("kvsim_" + name)) {
    std::filesystem::remove_all(path_);
  }
  ~PresetFolder() { std::filesystem::remove_all(path_); }
  PresetFolder(const PresetFolder&) = delete;
  PresetFolder& operator=(const PresetFolder&) = delete;

  void write(const std::string& kind, const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(path_ / kind);
    std::ofstream(path_ / kind / (name + ".toml")) << text;
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string edited(std::string_view kind, std::string_view name, const std::string& from,
                   const std::string& to) {
  for (const EmbeddedPreset& preset : embedded_presets()) {
    if (preset.kind != kind || preset.name != name) continue;
    std::string text(preset.toml);
    const std::size_t at = text.find(from);
    if (at == std::string::npos) break;
    return text.replace(at, from.size(), to);
  }
  throw RuntimeError("nothing to edit: " + from);
}

TEST_CASE("a user's accelerator: Philox and other lanes from a folder of presets") {
  const PresetFolder folder("own_accelerator");
  folder.write("accelerators", "mine",
               edited("accelerators", "adder_value", "rng = \"lfsr\"", "rng = \"philox\""));
  const Presets presets(folder.path());
  const Machine mine = presets.accelerator("mine", "45", "hbm2");
  CHECK(pj(mine, Op::kRandomWord, Phase::kSelect) == node("45nm").pj("philox_word").value);
  CHECK(mine.area_mm2.value > presets.accelerator("adder_value", "45", "hbm2").area_mm2.value);
}

TEST_CASE("bad accelerator presets are refused by file and key") {
  const PresetFolder folder("bad_accelerator");
  const auto refuse = [&folder](const std::string& from, const std::string& to,
                                const std::string& says) {
    folder.write("accelerators", "bad", edited("accelerators", "mac_int8", from, to));
    CHECK_THROWS_AS(Presets(folder.path()).accelerator("bad", "", ""), RuntimeError);
    CHECK_THROWS_WITH(Presets(folder.path()).accelerator("bad", "", ""), ContainsSubstring(says));
  };
  refuse("rng = \"lfsr\"", "rng = \"dice\"", "dice_word");
  refuse("add = \"int24_add\"", "add = \"int25_add\"", "int25_add");
  refuse("low = 0.7, high = 1.0", "low = 0.7, high = 1.1", "utilisation");
  refuse("[bits]\nk = { value = 8", "[bits]\nk = { value = 4", "bits.k");
  refuse("[sram]", "[sram]\ncolour = \"red\"", "colour");
  refuse("unit = \"MHz\", kind = \"assumed\", source = \"design\"", "unit = \"MHz\"", "core.clock");
}

}  // namespace
}  // namespace kvsim
