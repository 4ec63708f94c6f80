#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace kvsim {

struct ImportOptions {
  bool force = false;
  bool compress = false;
  // Of a FlashInfer-Trace file; both may be left out where there is only one.
  std::optional<std::int64_t> workload;  // line of the file, from 0
  std::optional<std::int64_t> sequence;  // request of the batch, from 0
};

struct ImportResult {
  TraceInfo info;
  std::vector<std::string> notes;  // what was assumed or ignored
};

/// Makes a trace of a safetensors file: tensors `layers.<i>.k|v` [kv_heads, tokens, dim], `.q`
/// [decode_steps, q_heads, head_dim] and optionally `.q_probe` [n, q_heads, head_dim], `.o` and
/// `.parameters.<name>`, in F32, F16 or BF16. String metadata: num_attention_heads,
/// num_key_value_heads, head_dim, prompt_tokens, decode_steps and scale must be there; v_head_dim,
/// window, logit_cap, model, source, license, rope, rope_theta, rope_scaling and rotary_dim may.
/// Throws RuntimeError for anything missing, wrong or not finite.
ImportResult import_safetensors(const std::string& input, const std::string& output,
                                const ImportOptions& options = {});

/// Makes a trace with one decode step of one request of a FlashInfer-Trace workload (a line of a
/// .jsonl file): gqa_paged_decode, or mla_paged_decode as a latent trace. Pages are gathered. All
/// inputs must be contiguous tensors in safetensors files; inputs of type `random` hold no data and
/// are refused. Paths of inputs are tried against the file's folder and those above it.
ImportResult import_flashinfer(const std::string& input, const std::string& output,
                               const ImportOptions& options = {});

/// Chooses by the ending of the name: .safetensors, or .jsonl and .json.
ImportResult import_trace(const std::string& input, const std::string& output,
                          const ImportOptions& options = {});

}  // namespace kvsim
