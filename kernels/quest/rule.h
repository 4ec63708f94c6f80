#pragma once

#include <cstdint>

#include "core/host_device.h"

// Which pages Quest (arXiv 2406.10774) attends to, in integers: for reference and cost model, and
// for a kernel.

namespace kvsim::quest {

/// Released code has two rules: that of its CUDA kernels, and that of its evaluation in PyTorch.
enum class Mode { kKernels, kEvaluation };

struct PageRule {
  std::int64_t page = 16;     // tokens of a page
  std::int64_t tokens = 512;  // budget of a query head
  Mode mode = Mode::kKernels;
};

/// The evaluation takes so many pages whatever the budget.
inline constexpr std::int64_t kLeastPages = 3;

/// Bytes of a page's record: the largest and the smallest of its keys' elements, in 16 bits.
constexpr std::int64_t record_bytes(int head_dim) { return 2 * head_dim * 2; }

/// The first `scored` of the pages compete for `kept` places of each query head; all heads take the
/// others. The last page may be partial.
struct PagePlan {
  std::int64_t pages = 0;
  std::int64_t scored = 0;
  std::int64_t kept = 0;

  KVSIM_HD constexpr std::int64_t always() const { return pages - scored; }
  KVSIM_HD constexpr std::int64_t taken() const { return always() + kept; }
};

/// The kernels' budget has the last page in it, which does not compete. In the evaluation it does,
/// and the budget is no more than the context: with all its tokens in it, whole pages are counted,
/// so that one page is left out where the last is partial. Nothing is scored where all are taken.
KVSIM_HD constexpr PagePlan plan_pages(std::int64_t rows, const PageRule& rule) {
  const std::int64_t pages = (rows + rule.page - 1) / rule.page;
  if (rule.mode == Mode::kKernels) {
    const std::int64_t budget = rule.tokens / rule.page;
    return pages <= budget ? PagePlan{pages, 0, 0} : PagePlan{pages, pages - 1, budget - 1};
  }
  const std::int64_t whole = (rule.tokens < rows ? rule.tokens : rows) / rule.page;
  const std::int64_t budget = whole < kLeastPages ? kLeastPages : whole;
  return pages <= budget ? PagePlan{pages, 0, 0} : PagePlan{pages, pages, budget};
}

}  // namespace kvsim::quest
