#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/method.h"
#include "sim/bias.h"

namespace kvsim {

/// What one query head of one step shows of a method.
struct HeadFigures {
  double relative_l2 = 0;  // |o - ô| / |o|, o dense in float64; 0 / 0 = 0, and 1 where only o is 0
  double cosine = 0;       // of o and ô; 0 where either is 0
  double mass_recall = 0;  // softmax mass of the rows whose V is read, over the mass of all rows
  double k_rows = 0;       // distinct rows read
  double k_features = 0;   // features of K read
  double v_rows = 0;
  double draws = 0;
  bool empty = false;                // selected nothing, so returned zeros
  std::optional<double> routing_kl;  // nats, of a method that draws by a proposal
};

/// The truth of a group at a step, prepared once for all methods.
class GroupTruth {
 public:
  /// Throws RuntimeError if the attention is not finite, which NaN or infinity in Q, K or V makes
  /// it.
  GroupTruth(const StepView& view, const std::string& where);

  /// `outputs` is what the method's attend gave, [group, v_head_dim].
  HeadFigures compare(int head, const HeadSelection& selection,
                      std::span<const float> outputs) const;
  /// KL(attention ‖ proposal) in nats over the first rows, those the proposal gives a chance.
  double divergence(int head, std::span<const double> log_proposal) const;
  /// Adds a head's error, for the mean over seeds.
  void add_error(int head, std::span<const float> outputs, ErrorSum& sum) const;

 private:
  Float64Attention attention_;
  std::size_t rows_;
  std::size_t dim_;
  std::vector<double> mass_;  // Σ of all weights, per head
};

}  // namespace kvsim
