#include "sim/layer_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/error.h"
#include "core/parallel.h"
#include "kernels/cache_of_layer.h"
#include "sim/device_layer.h"

namespace kvsim {
namespace {

Selection select(const Method& method, const StepView& view, const Scores& exact, State* state) {
  if (method.scores_exactly()) return method.select(view, exact, state);
  return method.select(view, method.score(view, state), state);
}

}  // namespace

Range visible_rows(const LayerInfo& info, std::int64_t prompt_tokens, std::int64_t step) {
  const std::int64_t end = prompt_tokens + step + 1;
  return {info.window > 0 ? std::max<std::int64_t>(0, end - info.window) : 0, end};
}

std::int64_t visible_prompt(const LayerInfo& info, std::int64_t prompt_tokens) {
  return info.window > 0 ? std::min(info.window, prompt_tokens) : prompt_tokens;
}

void add_distinct(const std::string& note, std::vector<std::string>& notes) {
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
}

HeadShape head_shape(const LayerInfo& info) {
  return {info.q_heads, info.kv_heads, info.head_dim, info.v_head_dim,
          info.layout == KvLayout::kLatent};
}

struct LayerReplay::GroupStep {
  GroupStep(const LayerReplay& replay, std::int64_t step, int kv_head)
      : queries(replay.queries(step, kv_head)),
        view(replay.view(step, kv_head, queries)),
        truth(view, replay.where(step, kv_head)) {}
  GroupStep(const GroupStep&) = delete;
  GroupStep& operator=(const GroupStep&) = delete;

  std::vector<float> queries;  // [group, head_dim]
  StepView view;
  GroupTruth truth;
};

LayerReplay::LayerReplay(const LayerJob& job, const TraceLayer& layer, int threads,
                         const std::function<void(std::int64_t)>& done, GpuLayer* gpu,
                         ErrorSums* errors)
    : job_(job),
      layer_(layer),
      errors_(errors),
      repeats_(static_cast<std::size_t>(job.repeats)),
      kv_heads_(static_cast<std::size_t>(layer.info.kv_heads)),
      slots_(job.methods.size() * repeats_ * job.steps.size() * kv_heads_),
      state_bytes_(job.methods.size(), 0),
      thresholds_(job.methods.size()),
      notes_(kv_heads_ * job.methods.size() * repeats_) {
  for (const NamedMethod& method : job.methods) {
    any_scores_exactly_ = any_scores_exactly_ || method.method->scores_exactly();
  }
  try {
    if (gpu != nullptr) {
      replay_on_gpu(*gpu, threads, done);
    } else {
      replay_on_cpu(threads, done);
    }
  } catch (const RuntimeError& error) {
    // A method does not know whose layer it was given.
    const std::string what = error.what();
    if (what.starts_with(job.trace)) throw;
    fail<RuntimeError>("{}: layer {}: {}", job.trace, layer.info.layer, what);
  }
}

void LayerReplay::replay_on_cpu(int threads, const std::function<void(std::int64_t)>& done) {
  std::vector<States> states(kv_heads_);
  const int kv_heads = layer_.info.kv_heads;
  parallel_for(kv_heads, threads, [&](std::int64_t head) {
    states[static_cast<std::size_t>(head)] = prepare(static_cast<int>(head), repeats_);
  });
  const auto has_state = [](const std::unique_ptr<State>& state) { return state != nullptr; };
  if (std::any_of(states[0].begin(), states[0].end(), has_state)) {
    parallel_for(kv_heads, threads, [&](std::int64_t head) {
      replay_head_in_order(static_cast<int>(head),
                           std::move(states[static_cast<std::size_t>(head)]), done);
    });
    return;
  }
  // Steps of one KV head follow each other, so that its K and V stay in the cache.
  const std::size_t steps = job_.steps.size();
  parallel_for(static_cast<std::int64_t>(steps * kv_heads_), threads, [&](std::int64_t task) {
    const auto head = static_cast<std::size_t>(task) / steps;
    replay_group(static_cast<std::size_t>(task) % steps, static_cast<int>(head), states[head]);
    done(1);
  });
}

LayerReplay::States LayerReplay::prepare(int kv_head, std::size_t repeats) const {
  const CacheView prompt = cache_of_layer(layer_, kv_head, job_.prompt_tokens);
  States states;
  for (const NamedMethod& method : job_.methods) {
    for (std::size_t repeat = 0; repeat < repeats; ++repeat) {
      states.push_back(method.method->prepare(prompt));
    }
  }
  return states;
}

StepView LayerReplay::view(std::int64_t step, int kv_head,
                           std::span<const float> group_queries) const {
  const LayerInfo& info = layer_.info;
  const Range rows = visible_rows(info, job_.prompt_tokens, step);
  const auto first_head = static_cast<std::size_t>(kv_head * info.group());
  StepView result;
  result.k = layer_.keys(kv_head).slice(rows.begin, rows.end);
  result.v = layer_.values(kv_head).slice(rows.begin, rows.end);
  result.queries = group_queries;
  result.group = info.group();
  result.scale = static_cast<float>(info.scale);
  result.logit_cap = static_cast<float>(info.logit_cap);
  if (!layer_.sink_logits.empty()) {
    result.sink_logits = std::span<const float>(layer_.sink_logits)
                             .subspan(first_head, static_cast<std::size_t>(info.group()));
  }
  result.layer_queries = layer_.queries(step);
  if (!layer_.learned.empty()) result.learned = &layer_.learned;
  result.prompt_tokens = visible_prompt(info, job_.prompt_tokens);
  result.random.layer = static_cast<std::uint32_t>(info.layer);
  result.random.step = static_cast<std::uint32_t>(step);
  result.random.sequence = job_.sequence;
  result.random.head = static_cast<std::uint32_t>(first_head);
  return result;
}

std::vector<float> LayerReplay::queries(std::int64_t step, int kv_head) const {
  const int group = layer_.info.group();
  const std::int64_t first = static_cast<std::int64_t>(kv_head) * group;
  std::vector<float> result(static_cast<std::size_t>(group * layer_.info.head_dim));
  load_rows(layer_.queries(step), first, first + group, layer_.info.head_dim, result.data());
  return result;
}

std::string LayerReplay::where(std::int64_t step, int kv_head) const {
  return fmt::format("{}: layer {}, step {}, KV head {}", job_.trace, layer_.info.layer, step,
                     kv_head);
}

void LayerReplay::keep(const GroupStep& group, Selection selection, std::span<const float> outputs,
                       const Place& place) {
  const auto kv_head = static_cast<std::size_t>(place.kv_head);
  GroupFigures& figures = slots_[slot_index(place.method, place.repeat, place.step) + kv_head];
  for (int g = 0; g < group.view.group; ++g) {
    figures.heads.push_back(
        group.truth.compare(g, selection.heads[static_cast<std::size_t>(g)], outputs));
    if (errors_ == nullptr) continue;
    const auto head = static_cast<std::size_t>(place.kv_head * group.view.group + g);
    group.truth.add_error(g, outputs, errors_->at(place.method, place.step, head));
  }
  figures.k_rows = std::move(selection.k_rows);
  figures.k_features = std::move(selection.k_features);
  figures.v_rows = std::move(selection.v_rows);
  figures.statistics = selection.statistics;
}

void LayerReplay::keep_divergence(const GroupStep& group, const Scores& exact, const State* state,
                                  const Place& place) {
  const Method& method = *job_.methods[place.method].method;
  if (!method.scores_exactly()) return;
  const auto kv_head = static_cast<std::size_t>(place.kv_head);
  GroupFigures& figures = slots_[slot_index(place.method, place.repeat, place.step) + kv_head];
  for (int g = 0; g < group.view.group; ++g) {
    const auto proposal = method.log_proposal(group.view, g, exact, state);
    if (proposal.empty()) continue;
    figures.heads[static_cast<std::size_t>(g)].routing_kl = group.truth.divergence(g, proposal);
  }
}

void LayerReplay::replay_group(std::size_t step, int kv_head, States& states) {
  const GroupStep group(*this, job_.steps[step], kv_head);
  StepView view = group.view;
  const Scores exact = any_scores_exactly_ ? exact_scores(view) : Scores{};
  for (std::size_t i = 0; i < states.size(); ++i) {
    const Method& method = *job_.methods[i / repeats_].method;
    view.random.seed = job_.seed + i % repeats_;
    Selection selection = select(method, view, exact, states[i].get());
    const std::vector<float> outputs = method.attend(view, selection);
    const Place place{i / repeats_, i % repeats_, step, kv_head};
    keep(group, std::move(selection), outputs, place);
    if (place.repeat == 0) keep_divergence(group, exact, states[i].get(), place);
  }
}

/// The CPU's own records bound the blocks: a kernel's own bounds would come too late.
void LayerReplay::find_thresholds(std::vector<States>& states, int threads) {
  std::int64_t rows = job_.prompt_tokens;
  for (const std::int64_t step : job_.steps) {
    std::vector<StepThresholds> own(kv_heads_, StepThresholds(job_.methods.size()));  // [group]
    parallel_for(static_cast<std::int64_t>(kv_heads_), threads, [&](std::int64_t head) {
      const auto kv_head = static_cast<int>(head);
      const auto h = static_cast<std::size_t>(head);
      for (std::int64_t seen = rows + 1; seen <= job_.prompt_tokens + step + 1; ++seen) {
        append(states[h], cache_of_layer(layer_, kv_head, seen));
      }
      const std::vector<float> group_queries = queries(step, kv_head);
      const StepView group = view(step, kv_head, group_queries);
      for (std::size_t m = 0; m < own[h].size(); ++m) {
        own[h][m] = job_.methods[m].method->block_thresholds(group, states[h][m].get(), {});
      }
    });
    for (const StepThresholds& group : own) {
      for (std::size_t m = 0; m < group.size(); ++m) {
        thresholds_[m].insert(thresholds_[m].end(), group[m].begin(), group[m].end());
      }
    }
    rows = job_.prompt_tokens + step + 1;
  }
}

GpuLaunch LayerReplay::launch(std::size_t method, std::size_t repeat, std::size_t step) const {
  GpuLaunch result = device_launch(job_, layer_.info, method, job_.seed + repeat, job_.steps[step]);
  const auto heads = static_cast<std::size_t>(layer_.info.q_heads);
  if (!thresholds_[method].empty()) {
    result.thresholds = std::span(thresholds_[method]).subspan(step * heads, heads);
  }
  return result;
}

void LayerReplay::keep_on_gpu(GpuLayer& gpu, const std::vector<States>& states) const {
  for (std::size_t m = 0; m < job_.methods.size(); ++m) {
    std::vector<const State*> own;
    for (const States& head : states) own.push_back(head[m].get());
    if (own[0] != nullptr) gpu.keep_states(m, own);
  }
}

/// Those that gave thresholds have seen all steps.
void LayerReplay::grow_others(States& states, std::int64_t step, int kv_head) const {
  const CacheView grown = cache_of_layer(layer_, kv_head, job_.prompt_tokens + step + 1);
  for (std::size_t m = 0; m < states.size(); ++m) {
    if (states[m] && thresholds_[m].empty()) job_.methods[m].method->append(*states[m], grown);
  }
}

/// While one launch's selection is checked, the next one runs. Repeats share states, which no
/// kernel's selection changes.
void LayerReplay::replay_on_gpu(GpuLayer& gpu, int threads,
                                const std::function<void(std::int64_t)>& done) {
  const std::size_t runs = job_.methods.size() * repeats_;  // of a step
  const std::size_t launches = job_.steps.size() * runs;
  const auto launch_number = [&](std::size_t i) {
    return launch(i % runs / repeats_, i % repeats_, i / runs);
  };
  const auto for_heads = [&](const auto& body) {
    parallel_for(static_cast<std::int64_t>(kv_heads_), threads,
                 [&](std::int64_t head) { body(static_cast<int>(head)); });
  };
  std::vector<States> states(kv_heads_);
  for_heads([&](int head) { states[static_cast<std::size_t>(head)] = prepare(head, 1); });
  keep_on_gpu(gpu, states);
  find_thresholds(states, threads);
  std::vector<std::unique_ptr<GroupStep>> groups(kv_heads_);
  gpu.enqueue(launch_number(0));
  for (std::size_t i = 0; i < launches; ++i) {
    if (i + 1 < launches) gpu.enqueue(launch_number(i + 1));
    const std::int64_t step = job_.steps[i / runs];
    if (i % runs == 0) {
      for_heads([&](int head) {
        const auto h = static_cast<std::size_t>(head);
        groups[h] = std::make_unique<GroupStep>(*this, step, head);
        grow_others(states[h], step, head);
      });
    }
    const GpuOutput output = gpu.take();
    for_heads([&](int head) {
      const Place place{i % runs / repeats_, i % repeats_, i / runs, head};
      const auto h = static_cast<std::size_t>(head);
      keep_launch(*groups[h], output, place, states[h][place.method].get());
    });
    if (i % runs == runs - 1) done(static_cast<std::int64_t>(kv_heads_));
  }
  for_heads([&](int head) { keep_states(head, states[static_cast<std::size_t>(head)], 1); });
}

void LayerReplay::keep_launch(const GroupStep& group, const GpuOutput& output, const Place& place,
                              State* state) {
  StepView view = group.view;
  view.random.seed = job_.seed + place.repeat;
  const GpuLaunch own = launch(place.method, place.repeat, place.step);
  Selection selection = device_selection(job_.methods[place.method], view, {output, own.thresholds},
                                         state, where(job_.steps[place.step], place.kv_head));
  const auto outputs = static_cast<std::size_t>(view.group * layer_.info.v_head_dim);
  keep(group, std::move(selection),
       output.output.subspan(static_cast<std::size_t>(place.kv_head) * outputs, outputs), place);
}

void LayerReplay::append(const States& states, const CacheView& grown) const {
  const std::size_t repeats = states.size() / job_.methods.size();
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i]) job_.methods[i / repeats].method->append(*states[i], grown);
  }
}

void LayerReplay::pass_step(std::int64_t token_step, int kv_head, States& states) const {
  const std::vector<float> group_queries = queries(token_step, kv_head);
  StepView group = view(token_step, kv_head, group_queries);
  const Scores exact = exact_scores(group);
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!states[i]) continue;
    group.random.seed = job_.seed + i % repeats_;
    select(*job_.methods[i / repeats_].method, group, exact, states[i].get());
  }
}

void LayerReplay::replay_head_in_order(int kv_head, States states,
                                       const std::function<void(std::int64_t)>& done) {
  std::size_t next = 0;
  for (std::int64_t step = 0; next < job_.steps.size(); ++step) {
    append(states, cache_of_layer(layer_, kv_head, job_.prompt_tokens + step + 1));
    if (step < job_.steps[next]) {
      pass_step(step, kv_head, states);
    } else {
      replay_group(next++, kv_head, states);
      done(1);
    }
  }
  keep_states(kv_head, states, repeats_);
}

void LayerReplay::keep_states(int kv_head, const States& states, std::size_t repeats) {
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!states[i]) continue;
    const std::size_t method = i / repeats;
    notes_[(static_cast<std::size_t>(kv_head) * job_.methods.size() + method) * repeats_ +
           i % repeats] = states[i]->note();
    if (i % repeats != 0) continue;
    const std::int64_t bytes = states[i]->bytes();
#pragma omp atomic
    state_bytes_[method] += bytes;
  }
}

std::vector<std::string> LayerReplay::notes(std::size_t method) const {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < notes_.size(); ++i) {
    const bool own = i / repeats_ % job_.methods.size() == method;
    if (own && !notes_[i].empty()) add_distinct(notes_[i], result);
  }
  return result;
}

std::size_t LayerReplay::slot_index(std::size_t method, std::size_t repeat,
                                    std::size_t step) const {
  return ((method * repeats_ + repeat) * job_.steps.size() + step) * kv_heads_;
}

std::span<const GroupFigures> LayerReplay::groups(std::size_t method, std::size_t repeat,
                                                  std::size_t step) const {
  return {slots_.data() + slot_index(method, repeat, step), kv_heads_};
}

}  // namespace kvsim
