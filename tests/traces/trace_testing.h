#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/hdf5.h"
#include "traces/trace.h"

namespace kvsim::testing {

/// A folder of its own that vanishes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::size_t files() const;

 private:
  std::filesystem::path path_;
};

std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, const std::string& bytes);

/// The message of the RuntimeError (or UsageError) that `action` throws, "" if it throws none.
std::string error_of(const std::function<void()>& action);

/// Normal numbers of a seed, rounded to `type`.
HostTensor random_tensor(ElementType type, std::int64_t a, std::int64_t b, std::int64_t c,
                         std::uint64_t seed);
/// All values of a tensor as float32.
std::vector<float> values_of(const HostTensor& tensor);

struct SmallShape {
  std::int64_t prompt_tokens = 40;
  std::int64_t decode_steps = 3;
  int q_heads = 6;
  int kv_heads = 2;
  int head_dim = 16;
  int v_head_dim = 8;
  ElementType type = ElementType::kBfloat16;
  bool latent = false;
};
TraceInfo small_info(const SmallShape& shape);
/// A layer with everything: o, probe, attention_sum, sink_logits, learned parameters and what a
/// method prepared, too.
TraceLayer small_layer(const SmallShape& shape, int number);

/// A trace file made without TraceWriter, to be broken at will. Starts as a valid one with layers 0
/// and 7: 20 + 2 tokens, 4 and 2 heads of 8, float32.
struct RawTrace {
  using Value = std::variant<std::int64_t, double, std::string>;
  struct Data {
    hdf5::NumberType type = hdf5::NumberType::kFloat32;
    hdf5::Extent extent;
    std::vector<float> values;  // empty: normal numbers
  };
  std::map<std::string, std::map<std::string, Value>> attributes;  // by object
  std::map<std::string, Data> datasets;

  RawTrace();
  void write(const std::string& path) const;
};

}  // namespace kvsim::testing
