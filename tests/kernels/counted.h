#pragma once

#include <array>
#include <cmath>
#include <cstddef>

#include "kernels/work.h"

namespace kvsim::testing {

/// Operations done so far in this thread, by kind and phase.
struct OpTally {
  std::array<std::array<double, kPhaseNames.size()>, kOpNames.size()> count{};
  Phase phase = Phase::kScore;  // what the running code belongs to

  double& of(Op op, Phase p) {
    return count[static_cast<std::size_t>(op)][static_cast<std::size_t>(p)];
  }
  static OpTally& current() {
    static thread_local OpTally tally;
    return tally;
  }
  static void note(Op op, double n = 1) {
    OpTally& tally = current();
    tally.of(op, tally.phase) += n;
  }
};

/// A double that counts what is done with it, so an oracle written in it is its own instrument.
class Counted {
 public:
  Counted() = default;
  explicit Counted(double value) : value_(value) {}
  double value() const { return value_; }

  friend Counted operator+(Counted a, Counted b) {
    OpTally::note(Op::kAdd);
    return Counted(a.value_ + b.value_);
  }
  friend Counted operator-(Counted a, Counted b) {
    OpTally::note(Op::kAdd);
    return Counted(a.value_ - b.value_);
  }
  friend Counted operator*(Counted a, Counted b) {
    OpTally::note(Op::kMultiply);
    return Counted(a.value_ * b.value_);
  }
  friend bool operator<(Counted a, Counted b) {
    OpTally::note(Op::kCompare);
    return a.value_ < b.value_;
  }
  static Counted exp(Counted a) {
    OpTally::note(Op::kExp);
    return Counted(std::exp(a.value_));
  }
  /// Times a power of two.
  static Counted shift(Counted a, double power_of_two) {
    OpTally::note(Op::kShift);
    return Counted(a.value_ * power_of_two);
  }
  static Counted reciprocal(Counted a) {
    OpTally::note(Op::kMultiply);
    return Counted(1 / a.value_);
  }

 private:
  double value_ = 0;
};

}  // namespace kvsim::testing
