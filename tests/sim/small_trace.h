#pragma once

#include <filesystem>
#include <string>

#include "traces/trace.h"

namespace kvsim::testing {

/// A folder of its own for a test, deleted with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A small trace with pseudo-random values: layers 1 and 3, the second with a window if asked.
struct SmallTrace {
  std::int64_t prompt_tokens = 300;
  std::int64_t decode_steps = 4;
  int q_heads = 4;
  int kv_heads = 2;
  int head_dim = 32;
  std::int64_t window_of_second = 0;
  double logit_cap = 0;
  bool sinks = false;
  std::int64_t probes = 0;         // last prompt queries of each head that the trace has
  bool learned_by_second = false;  // thresholds (docs/methods/eta.md)
  bool latent = false;
  ElementType type = ElementType::kBfloat16;
  unsigned seed = 1;

  TraceInfo info() const;
  TraceLayer layer(int index) const;
  void write(const std::string& path) const;
};

}  // namespace kvsim::testing
