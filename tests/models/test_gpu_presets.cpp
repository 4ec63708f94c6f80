#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "core/preset_file.h"
#include "models/presets.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::ContainsSubstring;

/// A folder of presets that goes when the test ends.
class PresetFolder {
 public:
  PresetFolder()
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("kvsim-presets-{}", static_cast<const void*>(this))) {
    std::filesystem::create_directories(path_ / "gpus");
  }
  PresetFolder(const PresetFolder&) = delete;
  PresetFolder& operator=(const PresetFolder&) = delete;
  ~PresetFolder() { std::filesystem::remove_all(path_); }

  void write(const std::string& name, const std::string& toml) const {
    std::ofstream(path_ / "gpus" / (name + ".toml")) << toml;
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string shipped(const std::string& name) {
  std::ifstream in(fmt::format("{}/models/presets/gpus/{}.toml", KVSIM_SOURCE_DIR, name));
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

void check_interval(const Estimate& e) {
  CHECK(e.low <= e.value);
  CHECK(e.value <= e.high);
  CHECK(e.low > 0);
}

TEST_CASE("every GPU preset loads, with positive and ordered constants") {
  const Presets presets;
  const auto names = presets.names("gpus");
  CHECK(names.size() >= 7);
  for (const char* name :
       {"a100_sxm_80gb", "b200", "h100_sxm", "h200_sxm", "l40s", "rtx5090_laptop", "rtx6000_ada"}) {
    CHECK(std::find(names.begin(), names.end(), name) != names.end());
  }
  for (const std::string& name : names) {
    INFO(name);
    const Machine machine = presets.gpu(name);
    CHECK(machine.name == name);
    CHECK(machine.title == presets.title("gpus", name));
    CHECK(machine.is_gpu);
    CHECK(machine.limits.sms > 0);
    CHECK(machine.limits.l2_bytes == static_cast<std::int64_t>(machine.cache_bytes));
    CHECK(machine.memory.stream.gb_per_s.high <= machine.memory.peak_gb_per_s);
    CHECK(machine.cache.gb_per_s.low > machine.memory.stream.gb_per_s.value);
    CHECK(machine.memory.capacity_bytes > 1e9);
    for (const Estimate& e : machine.boundary_us) check_interval(e);
    for (const Estimate& e :
         {machine.round_trip_us, machine.load_round_us.front(), machine.cache_trip_us,
          machine.memory.stream.ramp_us, machine.memory.gather_ramp_us, machine.memory.read_ramp_us,
          machine.memory.read_pj_per_bit, machine.memory.write_pj_per_bit,
          machine.memory.activate_pj, machine.cache.ramp_us, machine.cache_read_pj_per_bit,
          machine.static_w}) {
      check_interval(e);
    }
    for (std::size_t op = 0; op < kOps; ++op) {
      for (std::size_t phase = 0; phase < kPhases; ++phase) {
        const OpCost& cost = machine.ops[op][phase];
        check_interval(cost.pj);
        check_interval(cost.per_us);
        CHECK_FALSE(cost.what.empty());
        CHECK(cost.unit >= 0);
      }
    }
  }
}

TEST_CASE("the H200 preset becomes the machine that its numbers say") {
  const Machine h200 = Presets().gpu("h200_sxm");
  CHECK(h200.limits.sms == 132);
  CHECK(h200.limits.shared_bytes_per_sm == 228 * 1024);
  CHECK(h200.cache_bytes == 50.0 * 1024 * 1024);
  REQUIRE(h200.load_warps.at(4) == 32);
  CHECK(h200.load_round_us.at(4).value == 0.45);
  CHECK(h200.cache_trip_us.value == 0.18);
  const Machine a100 = Presets().gpu("a100_sxm_80gb");  // not measured: what stands for it
  CHECK(a100.load_round_us.front().value == a100.round_trip_us.value);
  CHECK(a100.cache_trip_us.value == std::min(a100.cache.ramp_us.value, a100.round_trip_us.value));
  CHECK(h200.memory.stream.gb_per_s.value == 4600);
  CHECK(h200.memory.stream.gb_per_s.source == Source::kMeasured);
  CHECK(h200.boundary(Boundary::kKernelLaunch).value == 0.6);
  // 66.9 TFLOP/s are 33.45 M fused multiply-adds, or adds alone, in a microsecond.
  CHECK(h200.op(Op::kAdd, Phase::kMerge).per_us.value == Approx(33.45e6));
  CHECK(h200.op(Op::kMultiply, Phase::kScore).per_us.value == Approx(989.5e6 * 0.5));
  CHECK(h200.op(Op::kExp, Phase::kSoftmax).per_us.value == Approx(16.0 * 132 * 1980));
  CHECK(h200.op(Op::kAdd, Phase::kScore).unit == h200.op(Op::kMultiply, Phase::kValue).unit);
  CHECK(h200.op(Op::kAdd, Phase::kScore).unit != h200.op(Op::kAdd, Phase::kSoftmax).unit);
  // The DRAM's own energy: with the L2's it is what the board draws for a DRAM read, 10 pJ/bit.
  CHECK(h200.memory.read_pj_per_bit.value + h200.cache_read_pj_per_bit.value == Approx(10.0));
}

TEST_CASE("rows that heads gather for themselves are summed by CUDA cores") {
  const Machine h200 = Presets().gpu("h200_sxm");
  Stage product;
  Stage gather;
  gather.heads_gather = true;
  const OpCount add{Op::kAdd, Phase::kValue, 1};
  const OpCount multiply{Op::kMultiply, Phase::kValue, 1};
  CHECK(h200.op(product, add).pj.value == 0.52);
  CHECK(h200.op(gather, add).pj.value == 4.7);
  CHECK(h200.op(gather, add).per_us.value == Approx(33.45e6));
  // A fused multiply-add takes what a multiplication alone does, and its adder's cycle.
  CHECK(h200.op(gather, add).pj.value + h200.op(gather, multiply).pj.value == Approx(5.4));
  CHECK(h200.op(gather, multiply).per_us.value == 0);
  const OpCount score{Op::kAdd, Phase::kScore, 1};
  CHECK(h200.op(gather, score).pj.value == 0.52);
  const Presets presets;
  for (const std::string& name : presets.names("gpus")) {
    INFO(name);
    const Machine machine = presets.gpu(name);
    CHECK(machine.op(gather, add).pj.value > 5 * machine.op(product, add).pj.value);
    const Estimate& fused = machine.op(gather, multiply).pj;
    CHECK((0 <= fused.low && fused.low <= fused.value && fused.value <= fused.high));
  }
}

TEST_CASE("fp32 rates agree with clock and cores") {
  const Presets presets;
  for (const std::string& name : presets.names("gpus")) {
    INFO(name);
    const Machine machine = presets.gpu(name);
    const double lanes = name == "a100_sxm_80gb" ? 64 : 128;
    // exp runs on 16 lanes of an SM, so it knows the clock.
    const double per_lane = machine.op(Op::kExp, Phase::kSoftmax).per_us.value / 16;
    CHECK(machine.op(Op::kAdd, Phase::kMerge).per_us.value ==
          Approx(lanes * per_lane).epsilon(0.08));
  }
}

TEST_CASE("a bad GPU preset is refused with file and key") {
  const PresetFolder folder;
  const auto error_of = [&folder](const std::string& toml) -> std::string {
    folder.write("bad", toml);
    try {
      Presets(folder.path()).gpu("bad");
    } catch (const RuntimeError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string good = shipped("h200_sxm");
  CHECK(error_of(good) == "no error");
  CHECK_THAT(error_of(replaced(good, "high = 4680", "high = 4900")),
             ContainsSubstring("memory.stream_rate: found 4900 GB/s, expected 1 to 4800 GB/s"));
  CHECK_THAT(error_of(replaced(good, "0.97, 1.0, 1.0, 1.0]", "0.97, 1.0, 1.0, 1.1]")),
             ContainsSubstring("memory.gather_share: found 1.1 ratio, expected 0.01 to 1 ratio"));
  CHECK_THAT(error_of(replaced(good, "[cache]", "[cache]\nways = 16")),
             ContainsSubstring("cache.ways: found an unknown key"));
  CHECK_THAT(error_of(replaced(good, "unit = \"MHz\"", "unit = \"GHz\"")),
             ContainsSubstring("device.clock.unit: found \"GHz\""));
  CHECK_THAT(error_of(replaced(good, "ticket = ", "tickets = ")),
             ContainsSubstring("boundary.ticket: found no such key"));
  CHECK_THAT(error_of("inherits = \"bad\""), ContainsSubstring("inherits: found a chain"));
  CHECK_THAT(error_of("inherits = \"bad\""), ContainsSubstring(folder.path() + "/gpus/bad.toml"));
}

TEST_CASE("absurd constants of a GPU are refused with file, key and range") {
  const PresetFolder folder;
  const std::string good = shipped("h200_sxm");
  struct Slip {
    const char* from;
    const char* to;
    const char* message;
  };
  for (const Slip& slip : std::vector<Slip>{
           {"sms = { value = 132", "sms = { value = 0", "device.sms: found 0 SM, expected 1 to"},
           {"sms = { value = 132", "sms = { value = 1e12", "device.sms: found 1000000000000 SM"},
           {"sector = { value = 32", "sector = { value = 0",
            "memory.sector: found 0 B, expected 1 to 4096 B"},
           {"clock = { value = 1980", "clock = { value = 1e12",
            "device.clock: found 1000000000000 MHz, expected 10 to 100000 MHz"},
           {"l2 = { value = 50, low = 50", "l2 = { value = 0, low = 0",
            "device.l2: found 0 MiB, expected 0.01 to"},
           {"shared = { value = 228", "shared = { value = 1e12",
            "device.shared: found 1000000000000 KiB"},
           {"x = [64,", "x = [0,", "memory.gather_share.x: found 0, expected x above 0"}}) {
    INFO(slip.to);
    folder.write("bad", replaced(good, slip.from, slip.to));
    CHECK_THROWS_WITH(Presets(folder.path()).gpu("bad"), ContainsSubstring(slip.message));
    CHECK_THROWS_WITH(Presets(folder.path()).gpu("bad"),
                      ContainsSubstring(folder.path() + "/gpus/bad.toml:"));
  }
}

TEST_CASE("a folder in place of a preset is refused by name") {
  const PresetFolder folder;
  std::filesystem::create_directories(folder.path() + "/gpus/odd.toml");
  CHECK_THROWS_WITH(Presets(folder.path()).gpu("odd"),
                    ContainsSubstring("/gpus/odd.toml: is a folder, expected a file"));
}

TEST_CASE("presets of a folder come first, and overlays inherit") {
  const PresetFolder folder;
  folder.write("mine", R"(
inherits = "h200_sxm"
[sources]
calibration = "kvsim calibrate"
[memory]
stream_rate = { value = 4444, unit = "GB/s", kind = "calibrated", source = "calibration" }
)");
  folder.write("second", "inherits = \"mine\"\ntitle = \"Second\"");
  folder.write("l40s", replaced(shipped("l40s"), "NVIDIA L40S", "My L40S"));
  const Presets presets(folder.path());
  const Machine mine = presets.gpu("mine");
  CHECK(mine.name == "mine");
  CHECK(mine.memory.stream.gb_per_s.value == 4444);
  CHECK(mine.memory.stream.gb_per_s.source == Source::kCalibrated);
  CHECK(mine.limits.sms == 132);
  CHECK(presets.gpu("second").memory.stream.gb_per_s.value == 4444);
  CHECK(presets.gpu("second").title == "Second");
  CHECK(presets.title("gpus", "mine") == "inherits h200_sxm");
  CHECK_THAT(presets.gpu("l40s").title, ContainsSubstring("My L40S"));
  const auto names = presets.names("gpus");
  CHECK(std::count(names.begin(), names.end(), "l40s") == 1);
  CHECK(std::count(names.begin(), names.end(), "second") == 1);
}

TEST_CASE("unknown names and folders are refused") {
  const Presets presets;
  CHECK_THROWS_AS(presets.gpu("h300"), UsageError);
  CHECK_THROWS_WITH(presets.gpu("h300"), ContainsSubstring("h200_sxm"));
  CHECK_THROWS_AS(presets.gpu("../gpus/h200_sxm"), UsageError);
  CHECK_THROWS_AS(presets.names("tpus"), UsageError);
  CHECK_THROWS_WITH(Presets("/nowhere/presets"), ContainsSubstring("/nowhere/presets"));
  CHECK_THROWS_AS(Presets("/nowhere/presets"), RuntimeError);
}

}  // namespace
}  // namespace kvsim
