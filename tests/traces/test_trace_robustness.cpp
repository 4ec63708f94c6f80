#include <atomic>
#include <exception>
#include <random>

#include "core/error.h"
#include "tests/catch.h"
#include "tests/traces/trace_testing.h"
#include "traces/check.h"
#include "traces/trace_file.h"

namespace kvsim::testing {
namespace {

enum class Outcome { kRead, kRefused, kWrongException };

Outcome try_reading(const std::string& path) {
  try {
    const TraceReader reader(path);
    reader.read_tokens();
    for (std::size_t i = 0; i < reader.info().layers.size(); ++i) reader.read_layer(i);
    return Outcome::kRead;
  } catch (const RuntimeError&) {
    return Outcome::kRefused;
  } catch (const std::exception&) {
    return Outcome::kWrongException;
  }
}

std::string small_trace(const TemporaryFolder& folder, bool compress) {
  SmallShape shape;
  shape.prompt_tokens = compress ? 600 : 12;
  TraceWriter writer(folder.file("good.h5"), small_info(shape), {true, compress});
  writer.write_layer(small_layer(shape, 0));
  writer.write_layer(small_layer(shape, 1));
  writer.commit();
  return read_bytes(folder.file("good.h5"));
}

}  // namespace

TEST_CASE("a truncated trace is refused at every length") {
  const TemporaryFolder folder;
  const std::string good = small_trace(folder, GENERATE(false, true));
  REQUIRE(try_reading(folder.file("good.h5")) == Outcome::kRead);
  const std::string path = folder.file("cut.h5");
  for (std::size_t part = 0; part < 97; ++part) {
    const std::size_t length = part < 24 ? part * 8 : good.size() * part / 97;
    INFO("length " << length << " of " << good.size());
    write_bytes(path, good.substr(0, length));
    CHECK(try_reading(path) == Outcome::kRefused);
  }
  write_bytes(path, good.substr(0, good.size() - 1));
  CHECK(try_reading(path) == Outcome::kRefused);
}

TEST_CASE("a trace with flipped bytes is read or refused, and never crashes the reader") {
  const TemporaryFolder folder;
  const std::string good = small_trace(folder, GENERATE(false, true));
  const std::string path = folder.file("flipped.h5");
  std::mt19937 random(5);
  int refused = 0;
  for (int trial = 0; trial < 240; ++trial) {
    std::string bad = good;
    const int flips = trial % 2 == 0 ? 1 : 6;
    for (int flip = 0; flip < flips; ++flip) {
      // Metadata lies at the beginning and between the datasets.
      const std::size_t range =
          trial % 4 < 2 ? std::min<std::size_t>(good.size(), 4096) : good.size();
      bad[random() % range] = static_cast<char>(random());
    }
    write_bytes(path, bad);
    INFO("trial " << trial);
    const Outcome outcome = try_reading(path);
    CHECK(outcome != Outcome::kWrongException);
    refused += outcome == Outcome::kRefused ? 1 : 0;
  }
  CHECK(refused > 30);
}

TEST_CASE("a file on which the HDF5 library itself crashes is refused") {
  const TemporaryFolder folder;
  small_trace(folder, false);
  std::string bad = read_bytes(folder.file("good.h5"));
  // Lengths of strings in the global heap: HDF5 1.10 believes them.
  const std::size_t heap = bad.find("GCOL");
  REQUIRE(heap != std::string::npos);
  for (std::size_t i = 16; i < 512; i += 8) {
    if (bad[heap + i] == 11) bad[heap + i + 5] = 0x40;
  }
  write_bytes(folder.file("bad.h5"), bad);
  CHECK(try_reading(folder.file("bad.h5")) == Outcome::kRefused);
  const TraceCheck check = check_trace(folder.file("bad.h5"));
  CHECK_FALSE(check.good());
}

TEST_CASE("a probe survives a visitor that crashes, loops or takes all memory") {
  const TemporaryFolder folder;
  small_trace(folder, false);
  const auto probe = [&](const std::function<void(const hdf5::File&)>& visit) {
    return error_of([&] { hdf5::open_probed(folder.file("good.h5"), visit); });
  };
  CHECK_THAT(probe([](const hdf5::File&) { std::abort(); }),
             ContainsSubstring("good.h5: damaged: the HDF5 library crashes on it (signal 6)"));
  CHECK_THAT(probe([](const hdf5::File&) {
               std::vector<std::vector<char>> blocks;
               for (;;) blocks.emplace_back(std::size_t{1} << 28);
             }),
             ContainsSubstring("good.h5: damaged: the HDF5 library asks for more than"));
  CHECK_THAT(probe([](const hdf5::File&) {
               std::atomic<int> turns{0};
               for (;;) ++turns;
             }),
             ContainsSubstring("good.h5: damaged: the HDF5 library does not come to an end"));
  // Ordinary errors are left to whoever reads next.
  CHECK(probe([](const hdf5::File&) { throw RuntimeError("not mine"); }).empty());
}

}  // namespace kvsim::testing
