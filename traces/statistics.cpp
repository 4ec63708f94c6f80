#include "traces/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "traces/row_products.h"

namespace kvsim {
namespace {

constexpr int kHeadsAtOnce = 8;  // bounds the logits in memory for groups of a hundred heads

std::vector<double> load_query(const TraceLayer& layer, std::int64_t step, int head) {
  const int dim = layer.info.head_dim;
  std::vector<float> query(static_cast<std::size_t>(dim));
  load_rows(layer.queries(step), head, head + 1, dim, query.data());
  return {query.begin(), query.end()};
}

/// Turns the dot products of a head into weights and their summary.
HeadAttention softmax(std::span<double> products, const TraceLayer& layer, int head) {
  const LayerInfo& info = layer.info;
  HeadAttention result;
  result.head = head;
  double most = -INFINITY;
  for (double& value : products) {
    value *= info.scale;
    if (info.logit_cap > 0) value = info.logit_cap * std::tanh(value / info.logit_cap);
    most = std::max(most, value);
    result.largest_logit = std::max(result.largest_logit, std::abs(value));
  }
  double sum = 0;
  double weighted = 0;
  for (double& value : products) {
    const double logit = value - most;
    value = std::exp(logit);
    sum += value;
    weighted += value * logit;
  }
  for (double& value : products) value /= sum;
  result.weights = products;
  result.entropy_nats = std::max(std::log(sum) - weighted / sum, 0.0);
  if (!layer.sink_logits.empty()) {
    // Not sink / (sink + sum): a sink far above all tokens would overflow.
    const double sink = layer.sink_logits[static_cast<std::size_t>(head)];
    result.sink_share = 1 / (1 + sum * std::exp(most - sink));
  }
  return result;
}

void visit_step(const TraceLayer& layer, std::int64_t context, int kv_head, const RowsView& keys,
                std::int64_t step, const AttentionVisitor& visit) {
  const LayerInfo& info = layer.info;
  const std::int64_t first = info.window > 0 ? std::max<std::int64_t>(context - info.window, 0) : 0;
  const RowsView rows = keys.slice(first, context);
  const auto visible = static_cast<std::size_t>(rows.rows);
  const int last_head = (kv_head + 1) * info.group();
  for (int begin = kv_head * info.group(); begin < last_head; begin += kHeadsAtOnce) {
    const int count = std::min(kHeadsAtOnce, last_head - begin);
    std::vector<double> queries;
    for (int head = begin; head < begin + count; ++head) {
      const std::vector<double> query = load_query(layer, step, head);
      queries.insert(queries.end(), query.begin(), query.end());
    }
    std::vector<double> products(visible * static_cast<std::size_t>(count));
    row_products(rows, queries, count, products);
    for (int i = 0; i < count; ++i) {
      const auto offset = static_cast<std::size_t>(i) * visible;
      HeadAttention attention =
          softmax(std::span(products).subspan(offset, visible), layer, begin + i);
      attention.step = step;
      attention.first_row = first;
      visit(attention);
    }
  }
}

std::vector<std::int64_t> spread_steps(std::int64_t steps, std::int64_t most) {
  const std::int64_t count = most > 0 ? std::min(most, steps) : steps;
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < count; ++i) {
    result.push_back(count == 1 ? steps - 1 : i * (steps - 1) / (count - 1));
  }
  return result;
}

/// Σ of the weights of rows [begin, end) of the sequence.
double mass(const HeadAttention& attention, std::int64_t begin, std::int64_t end) {
  const auto rows = static_cast<std::int64_t>(attention.weights.size());
  const std::int64_t from = std::clamp<std::int64_t>(begin - attention.first_row, 0, rows);
  const std::int64_t to = std::clamp<std::int64_t>(end - attention.first_row, from, rows);
  return std::accumulate(attention.weights.begin() + from, attention.weights.begin() + to, 0.0);
}

double overlap(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::min(a[i], b[i]);
  return sum;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  const double norms = std::sqrt(dot(a, a) * dot(b, b));
  return norms > 0 ? dot(a, b) / norms : 0;
}

std::optional<double> mean_of(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

HeadStatistics mean_of(std::span<const HeadStatistics> values) {
  HeadStatistics mean;
  for (const HeadStatistics& value : values) {
    mean.entropy_nats += value.entropy_nats;
    mean.top1_probability += value.top1_probability;
    mean.sink_mass += value.sink_mass;
    mean.window_mass += value.window_mass;
  }
  const auto count = static_cast<double>(values.size());
  return {mean.entropy_nats / count, mean.top1_probability / count, mean.sink_mass / count,
          mean.window_mass / count};
}

void measure_queries(const TraceLayer& layer, LayerStatistics& statistics) {
  const int group = layer.info.group();
  std::vector<double> drifts;
  std::vector<double> cosines;
  std::vector<std::vector<double>> before;
  for (std::int64_t step = 0; step < layer.q.shape[0]; ++step) {
    std::vector<std::vector<double>> queries;
    for (int head = 0; head < layer.info.q_heads; ++head) {
      queries.push_back(load_query(layer, step, head));
      const auto& query = queries.back();
      if (step > 0) drifts.push_back(1 - cosine(before[queries.size() - 1], query));
      for (int other = head - head % group; other < head; ++other) {
        cosines.push_back(cosine(queries[static_cast<std::size_t>(other)], query));
      }
    }
    before = std::move(queries);
  }
  statistics.drift = mean_of(drifts);
  statistics.group_cosine = mean_of(cosines);
}

}  // namespace

void visit_attention(const TraceLayer& layer, std::int64_t prompt_tokens, int kv_head,
                     const RowsView& keys, std::span<const std::int64_t> steps,
                     const AttentionVisitor& visit) {
#pragma omp parallel for schedule(dynamic)
  for (std::size_t i = 0; i < steps.size(); ++i) {
    visit_step(layer, prompt_tokens + steps[i] + 1, kv_head, keys, steps[i], visit);
  }
}

StatisticsCollector::StatisticsCollector(const LayerInfo& layer, std::int64_t prompt_tokens,
                                         std::int64_t decode_steps,
                                         const StatisticsOptions& options)
    : info_(layer),
      prompt_tokens_(prompt_tokens),
      options_(options),
      steps_(spread_steps(decode_steps, options.max_steps)),
      cells_(static_cast<std::size_t>(layer.q_heads) * steps_.size()),
      overlaps_(cells_.size(), -1.0),
      sink_shares_(cells_.size()),
      logits_(cells_.size()) {}

void StatisticsCollector::add(const TraceLayer& layer, int kv_head, const RowsView& keys) {
  std::vector<std::vector<double>> previous(steps_.size());  // weights of the head before, per step
  visit_attention(
      layer, prompt_tokens_, kv_head, keys, steps_, [&](const HeadAttention& attention) {
        const auto step = static_cast<std::size_t>(
            std::lower_bound(steps_.begin(), steps_.end(), attention.step) - steps_.begin());
        const std::size_t index = static_cast<std::size_t>(attention.head) * steps_.size() + step;
        const std::int64_t context = prompt_tokens_ + attention.step + 1;
        cells_[index] = {attention.entropy_nats,
                         *std::max_element(attention.weights.begin(), attention.weights.end()),
                         mass(attention, 0, options_.sink_tokens),
                         mass(attention, context - options_.window_tokens, context)};
        sink_shares_[index] = attention.sink_share;
        logits_[index] = attention.largest_logit;
        if (!previous[step].empty()) overlaps_[index] = overlap(previous[step], attention.weights);
        const bool has_next = (attention.head + 1) % info_.group() != 0;
        if (has_next) {
          previous[step].assign(attention.weights.begin(), attention.weights.end());
        } else {
          std::vector<double>().swap(previous[step]);
        }
      });
}

LayerStatistics StatisticsCollector::finish(const TraceLayer& layer) const {
  LayerStatistics result;
  result.measured_steps = static_cast<std::int64_t>(steps_.size());
  for (int head = 0; head < info_.q_heads; ++head) {
    const std::size_t first = static_cast<std::size_t>(head) * steps_.size();
    result.heads.push_back(mean_of(std::span(cells_).subspan(first, steps_.size())));
  }
  result.mean = mean_of(result.heads);
  result.sink_share = mean_of(sink_shares_).value_or(0);
  result.largest_logit = *std::max_element(logits_.begin(), logits_.end());
  std::vector<double> overlaps;
  std::copy_if(overlaps_.begin(), overlaps_.end(), std::back_inserter(overlaps),
               [](double value) { return value >= 0; });
  result.group_overlap = mean_of(overlaps);
  measure_queries(layer, result);
  return result;
}

LayerStatistics attention_statistics(const TraceLayer& layer, std::int64_t prompt_tokens,
                                     const StatisticsOptions& options) {
  StatisticsCollector collector(layer.info, prompt_tokens, layer.q.shape[0], options);
  for (int head = 0; head < layer.info.kv_heads; ++head) {
    collector.add(layer, head, layer.keys(head));
  }
  return collector.finish(layer);
}

}  // namespace kvsim
