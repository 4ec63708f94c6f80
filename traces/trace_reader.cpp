#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/text_file.h"
#include "traces/finite.h"
#include "traces/trace_file.h"
#include "traces/trace_format.h"

namespace kvsim {
namespace trace_format {
namespace {

/// Attributes of one object with the root's as defaults. A problem is reported, remembered, and
/// answered with the fallback.
class Attributes {
 public:
  Attributes(const hdf5::File& file, std::string object, const Report& report)
      : file_(file), object_(std::move(object)), report_(report) {}

  bool good() const { return good_; }

  void problem(const std::string& text) {
    good_ = false;
    report_(fmt::format("{}: {}: {}", file_.path(), object_, text));
  }

  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = std::nullopt) {
    const auto value = get<std::int64_t>(name, &hdf5::File::int_attribute, fallback);
    if (!value) return low;
    if (*value < low || *value > high) {
      problem(fmt::format("attribute '{}' is {}, expected {} to {}", name, *value, low, high));
      return low;
    }
    return *value;
  }

  double number(const char* name, double low, double high,
                std::optional<double> fallback = std::nullopt) {
    const auto value = get<double>(name, &hdf5::File::double_attribute, fallback);
    if (value && *value >= low && *value <= high) return *value;
    if (value) {
      problem(fmt::format("attribute '{}' is {}, expected {} to {}", name, *value, low, high));
    }
    return 1;
  }

  std::string text(const char* name, const std::optional<std::string>& fallback = std::nullopt) {
    const std::string value =
        get<std::string>(name, &hdf5::File::string_attribute, fallback).value_or("");
    if (is_utf8(value)) return value;
    problem(fmt::format("attribute '{}' is not UTF-8", name));
    return "";
  }

 private:
  template <typename T>
  std::optional<T> get(const char* name,
                       T (hdf5::File::*read)(const std::string&, const std::string&) const,
                       const std::optional<T>& fallback) {
    try {
      const std::string owner = file_.has_attribute(object_, name) ? object_ : "/";
      if (file_.has_attribute(owner, name)) return (file_.*read)(owner, name);
    } catch (const RuntimeError& error) {
      good_ = false;
      report_(error.what());
      return std::nullopt;
    }
    if (!fallback) problem(fmt::format("attribute '{}' is missing", name));
    return fallback;
  }

  const hdf5::File& file_;
  std::string object_;
  const Report& report_;
  bool good_ = true;
};

void check_words(Attributes& root, TraceInfo& info) {
  const std::string format = root.text("format");
  if (root.good() && format != kFormat) {
    root.problem(fmt::format("attribute 'format' is '{}', expected '{}'", format, kFormat));
  }
  const auto most = std::numeric_limits<std::int64_t>::max();
  const std::int64_t version = root.integer("version", 0, most);
  if (root.good() && version != kVersion) {
    root.problem(
        fmt::format("attribute 'version' is {}, this program reads version {}", version, kVersion));
  }
  info.rope = root.text("rope");
  if (root.good() && info.rope != "applied" && info.rope != "none") {
    root.problem(fmt::format("attribute 'rope' is '{}', expected 'applied' or 'none'", info.rope));
  }
}

bool read_root(const hdf5::File& file, TraceInfo& info, const Report& report) {
  Attributes root(file, "/", report);
  info.path = file.path();
  check_words(root, info);
  info.model = root.text("model");
  info.source = root.text("source", "");
  info.license = root.text("license", "");
  info.prompt_tokens = root.integer("prompt_tokens", 1, kMostTokens);
  info.decode_steps = root.integer("decode_steps", 1, kMostTokens);
  info.rope_theta = root.number("rope_theta", 0, kMostRopeTheta, 0.0);
  info.rope_scaling = root.text("rope_scaling", "none");
  info.rotary_dim = static_cast<int>(root.integer("rotary_dim", 0, kMostDim, 0));
  info.synthetic = root.integer("synthetic", 0, 1, 0) != 0;
  if (root.good() && info.tokens() > kMostTokens) {
    root.problem(fmt::format("prompt_tokens + decode_steps is {}, expected at most {}",
                             info.tokens(), kMostTokens));
  }
  return root.good();
}

void check_heads(Attributes& attributes, const LayerInfo& layer) {
  if (!attributes.good()) return;
  if (layer.q_heads % layer.kv_heads != 0) {
    attributes.problem(fmt::format("q_heads is {} and kv_heads {}, expected a whole multiple",
                                   layer.q_heads, layer.kv_heads));
  }
  if (layer.logit_cap > 0 && layer.logit_cap < kLeastLogitCap) {
    attributes.problem(fmt::format("attribute 'logit_cap' is {}, expected 0 (none) or at least {}",
                                   layer.logit_cap, kLeastLogitCap));
  }
  if (layer.layout == KvLayout::kHeads) return;
  if (layer.kv_heads != 1) {
    attributes.problem(
        fmt::format("kv_heads is {}, expected 1 with the latent layout", layer.kv_heads));
  }
  if (layer.v_head_dim > layer.head_dim) {
    attributes.problem(
        fmt::format("v_head_dim is {}, expected at most head_dim = {} with the latent layout",
                    layer.v_head_dim, layer.head_dim));
  }
}

bool read_layer_attributes(const hdf5::File& file, LayerInfo& layer, const Report& report) {
  Attributes attributes(file, layer_group(layer.layer), report);
  layer.q_heads = static_cast<int>(attributes.integer("q_heads", 1, kMostHeads));
  layer.kv_heads = static_cast<int>(attributes.integer("kv_heads", 1, kMostHeads));
  layer.head_dim = static_cast<int>(attributes.integer("head_dim", 1, kMostDim));
  layer.v_head_dim =
      static_cast<int>(attributes.integer("v_head_dim", 1, kMostDim, layer.head_dim));
  layer.scale = attributes.number("scale", kLeastScale, kMostScale);
  layer.window = attributes.integer("window", 0, std::numeric_limits<std::int64_t>::max(), 0);
  layer.logit_cap = attributes.number("logit_cap", 0, kMostLogitCap, 0.0);
  const std::string layout = attributes.text("layout", "heads");
  if (layout == "latent") {
    layer.layout = KvLayout::kLatent;
  } else if (attributes.good() && layout != "heads") {
    attributes.problem(
        fmt::format("attribute 'layout' is '{}', expected 'heads' or 'latent'", layout));
  }
  check_heads(attributes, layer);
  return attributes.good();
}

bool fits(const hdf5::Extent& found, const hdf5::Extent& expected) {
  return std::equal(found.begin(), found.end(), expected.begin(), expected.end(),
                    [](std::int64_t a, std::int64_t b) { return a == b || (b == -1 && a > 0); });
}

std::string describe(const TensorShape& shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape.extent) {
    sizes.push_back(size == -1 ? "n" : std::to_string(size));
  }
  return fmt::format("[{}] ({})", fmt::join(sizes, ", "), shape.dimensions);
}

void check_type(const hdf5::File& file, const hdf5::Dataset& dataset) {
  if (element_type(dataset.type())) return;
  fail<RuntimeError>("{}: {}: type is {}, expected little-endian float32, float16 or bfloat16",
                     file.path(), dataset.name(), dataset.type_text());
}

/// Type and shape of one dataset; `any_float` also takes float64, which is converted when read.
std::optional<hdf5::NumberType> check_dataset(const hdf5::File& file, const TraceInfo& trace,
                                              const std::string& group, const TensorShape& shape,
                                              bool any_float, const Report& report) {
  try {
    const hdf5::Dataset dataset = file.open_dataset(fmt::format("{}/{}", group, shape.name));
    if (!any_float || dataset.type() != hdf5::NumberType::kFloat64) check_type(file, dataset);
    if (!fits(dataset.extent(), shape.extent)) {
      fail<RuntimeError>("{}: {}: shape is {}, expected {}", file.path(), dataset.name(),
                         hdf5::to_string(dataset.extent()), describe(shape));
    }
    if (std::string_view(shape.name) == "probe" && dataset.extent()[0] > trace.prompt_tokens) {
      fail<RuntimeError>("{}: {}: holds {} queries, expected at most prompt_tokens = {}",
                         file.path(), dataset.name(), dataset.extent()[0], trace.prompt_tokens);
    }
    dataset.checked_bytes();
    return dataset.type();
  } catch (const RuntimeError& error) {
    report(error.what());
    return std::nullopt;
  }
}

/// Of what a model learned: any shape will do here, methods check those that they know.
bool check_parameter(const hdf5::File& file, const std::string& object, const Report& report) {
  try {
    if (!is_utf8(object)) fail<RuntimeError>("{}: {}: the name is not UTF-8", file.path(), object);
    const hdf5::Dataset dataset = file.open_dataset(object);
    check_type(file, dataset);
    const std::size_t rank = dataset.extent().size();
    if (rank < 1 || rank > 3 || hdf5::elements_of(dataset.extent()) == 0) {
      fail<RuntimeError>("{}: {}: shape is {}, expected 1 to 3 dimensions, none of them 0",
                         file.path(), object, hdf5::to_string(dataset.extent()));
    }
    dataset.checked_bytes();
    return true;
  } catch (const RuntimeError& error) {
    report(error.what());
    return false;
  }
}

bool check_parameters(const hdf5::File& file, const LayerInfo& layer, const Report& report) {
  const std::string group = parameters_group(layer.layer);
  if (!file.exists(group)) return true;
  bool good = true;
  for (const std::string& name : file.children(group)) {
    good = check_parameter(file, group + "/" + name, report) && good;
  }
  return good;
}

bool check_layer_datasets(const hdf5::File& file, const TraceInfo& trace, LayerInfo& layer,
                          const Report& report) {
  const std::string group = layer_group(layer.layer);
  const auto check = [&](const char* name, bool any_float) {
    return check_dataset(file, trace, group, tensor_shape(name, trace, layer), any_float, report);
  };
  const bool latent = layer.layout == KvLayout::kLatent;
  const auto keys = check(latent ? "kv" : "k", false);
  const auto values = latent ? keys : check("v", false);
  bool good = check("q", false).has_value() && keys && values;
  if (keys && values && *keys != *values) {
    report(fmt::format("{}: {}: k is {} and v {}, expected one type", file.path(), group,
                       to_string(*element_type(*keys)), to_string(*element_type(*values))));
    good = false;
  }
  for (const char* name : {"o", "probe", "attention_sum", "sink_logits"}) {
    if (!file.exists(fmt::format("{}/{}", group, name))) continue;
    const bool converted =
        std::string_view(name) == "attention_sum" || std::string_view(name) == "sink_logits";
    good = check(name, converted).has_value() && good;
  }
  good = check_parameters(file, layer, report) && good;
  good = check_prepared(file, layer, report) && good;
  if (good) layer.kv_type = *element_type(*keys);
  return good;
}

std::vector<int> layer_numbers(const hdf5::File& file, const Report& report) {
  std::vector<int> numbers;
  try {
    for (const std::string& name : file.children("/layers")) {
      int number = 0;
      const char* end = name.data() + name.size();
      const auto parsed = std::from_chars(name.data(), end, number);
      const bool plain = parsed.ec == std::errc() && parsed.ptr == end && number >= 0 &&
                         number <= kMostLayer && std::to_string(number) == name;
      if (!plain) {
        fail<RuntimeError>("{}: /layers/{}: expected a layer number from 0 to {}", file.path(),
                           name, kMostLayer);
      }
      numbers.push_back(number);
    }
    if (numbers.empty()) fail<RuntimeError>("{}: /layers: holds no layer", file.path());
  } catch (const RuntimeError& error) {
    report(error.what());
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

void check_tokens_dataset(const hdf5::File& file, const TraceInfo& info, const Report& report) {
  if (!file.exists("/tokens")) return;
  try {
    const hdf5::Dataset dataset = file.open_dataset("/tokens");
    if (dataset.type() != hdf5::NumberType::kInt32) {
      fail<RuntimeError>("{}: /tokens: type is {}, expected int32", file.path(),
                         dataset.type_text());
    }
    if (dataset.extent() != hdf5::Extent{info.tokens()}) {
      fail<RuntimeError>("{}: /tokens: shape is {}, expected [{}] (prompt_tokens + decode_steps)",
                         file.path(), hdf5::to_string(dataset.extent()), info.tokens());
    }
    dataset.checked_bytes();
  } catch (const RuntimeError& error) {
    report(error.what());
  }
}

void check_finite(const HostTensor& tensor, const std::string& file, const std::string& object,
                  const TensorShape& shape, const Report& report) {
  const auto found = first_unusable(tensor.data, tensor.type);
  if (!found) return;
  std::array<std::int64_t, 3> index{};
  std::int64_t rest = *found;
  for (std::size_t i = 3; i-- > 0;) {
    index[i] = rest % tensor.shape[i];
    rest /= tensor.shape[i];
  }
  const auto rank = static_cast<std::ptrdiff_t>(shape.extent.size());
  report(fmt::format("{}: {}: value at [{}] ({}) {}", file, object,
                     fmt::join(index.end() - rank, index.end(), ", "), shape.dimensions,
                     unusable_text(tensor.data, tensor.type, *found)));
}

/// Sums of probabilities cannot be negative.
void check_attention_sum(const HostTensor& sums, const std::string& file, const LayerInfo& layer,
                         const Report& report) {
  const std::int64_t tokens = sums.shape[2];
  std::vector<float> row(static_cast<std::size_t>(tokens));
  for (std::int64_t head = 0; head < sums.shape[1]; ++head) {
    load_rows(sums.rows(0), head, head + 1, static_cast<int>(tokens), row.data());
    const auto negative = std::find_if(row.begin(), row.end(), [](float sum) { return sum < 0; });
    if (negative == row.end()) continue;
    report(
        fmt::format("{}: {}/attention_sum: value at [{}, {}] (q_heads, prompt_tokens) is {}, "
                    "expected a sum of probabilities >= 0",
                    file, layer_group(layer.layer), head, negative - row.begin(), *negative));
    return;
  }
}

HostTensor read_stored(const hdf5::Dataset& dataset) {
  HostTensor tensor;
  tensor.type = *element_type(dataset.type());
  tensor.shape = {1, 1, 1};
  std::copy_backward(dataset.extent().begin(), dataset.extent().end(), tensor.shape.end());
  tensor.data.resize(static_cast<std::size_t>(dataset.checked_bytes()));
  dataset.read_raw(tensor.data);
  return tensor;
}

/// `name` as it is stored, or (float64, or where the type is fixed) converted to float32.
HostTensor read_tensor(const hdf5::File& file, const TraceInfo& trace, const LayerInfo& layer,
                       const std::string& name, const Report& report) {
  const TensorShape shape = tensor_shape(name, trace, layer);
  const hdf5::Dataset dataset =
      file.open_dataset(fmt::format("{}/{}", layer_group(layer.layer), name));
  HostTensor tensor;
  if (name == "attention_sum" || name == "sink_logits") {
    tensor.shape = {1, 1, 1};
    std::copy_backward(dataset.extent().begin(), dataset.extent().end(), tensor.shape.end());
    const std::vector<float> values = dataset.read<float>();
    const auto bytes = std::as_bytes(std::span(values));
    tensor.data.assign(bytes.begin(), bytes.end());
  } else {
    tensor = read_stored(dataset);
  }
  check_finite(tensor, file.path(), dataset.name(), shape, report);
  return tensor;
}

LearnedParameters read_parameters(const hdf5::File& file, const LayerInfo& layer,
                                  const Report& report) {
  LearnedParameters result;
  const std::string group = parameters_group(layer.layer);
  if (!file.exists(group)) return result;
  for (const std::string& name : file.children(group)) {
    const hdf5::Dataset dataset = file.open_dataset(fmt::format("{}/{}", group, name));
    HostTensor tensor = read_stored(dataset);
    const TensorShape shape{name.c_str(), dataset.extent(), "a learned parameter"};
    check_finite(tensor, file.path(), dataset.name(), shape, report);
    result.emplace(name, std::move(tensor));
  }
  return result;
}

}  // namespace

hdf5::File open_file(const std::string& path) {
  return hdf5::open_probed(path, [](const hdf5::File& file) {
    const Report ignore = [](const std::string&) {};
    read_tokens(file, read_info(file, ignore), ignore);
  });
}

TraceInfo read_info(const hdf5::File& file, const Report& report) {
  TraceInfo info;
  const bool root_good = read_root(file, info, report);
  if (root_good) check_tokens_dataset(file, info, report);
  for (const int number : layer_numbers(file, report)) {
    LayerInfo layer;
    layer.layer = number;
    try {
      // Shapes mean something only when all attributes do.
      const bool good = read_layer_attributes(file, layer, report) && root_good &&
                        check_layer_datasets(file, info, layer, report);
      if (good) info.layers.push_back(layer);
    } catch (const RuntimeError& error) {
      report(error.what());
    }
  }
  return info;
}

TraceLayer read_layer(const hdf5::File& file, const TraceInfo& trace, const LayerInfo& layer,
                      const Report& report) {
  const auto read = [&](const char* name) { return read_tensor(file, trace, layer, name, report); };
  const auto present = [&](const char* name) {
    return file.exists(fmt::format("{}/{}", layer_group(layer.layer), name));
  };
  TraceLayer result;
  result.info = layer;
  result.k = read(layer.layout == KvLayout::kLatent ? "kv" : "k");
  if (layer.layout == KvLayout::kHeads) result.v = read("v");
  result.q = read("q");
  if (present("o")) result.output = read("o");
  if (present("probe")) result.probe = read("probe");
  if (present("attention_sum")) {
    result.attention_sum = read("attention_sum");
    check_attention_sum(*result.attention_sum, file.path(), layer, report);
  }
  if (present("sink_logits")) {
    const HostTensor logits = read("sink_logits");
    result.sink_logits.resize(static_cast<std::size_t>(layer.q_heads));
    load_rows(logits.rows(0), 0, 1, layer.q_heads, result.sink_logits.data());
  }
  result.learned = read_parameters(file, layer, report);
  result.prepared = read_prepared(file, layer);
  return result;
}

std::vector<std::int32_t> read_tokens(const hdf5::File& file, const TraceInfo& trace,
                                      const Report& report) {
  if (!file.exists("/tokens")) return {};
  std::vector<std::int32_t> tokens = file.open_dataset("/tokens").read<std::int32_t>();
  const auto negative =
      std::find_if(tokens.begin(), tokens.end(), [](std::int32_t token) { return token < 0; });
  if (negative != tokens.end()) {
    report(fmt::format("{}: /tokens: token {} is {}, expected an id >= 0", trace.path,
                       negative - tokens.begin(), *negative));
  }
  return tokens;
}

}  // namespace trace_format

TraceReader::TraceReader(const std::string& path)
    : file_(trace_format::open_file(path)),
      info_(trace_format::read_info(file_, trace_format::throw_problems())) {}

TraceLayer TraceReader::read_layer(std::size_t index) const {
  KVSIM_CHECK(index < info_.layers.size());
  return trace_format::read_layer(file_, info_, info_.layers[index],
                                  trace_format::throw_problems());
}

std::vector<std::int32_t> TraceReader::read_tokens() const {
  return trace_format::read_tokens(file_, info_, trace_format::throw_problems());
}

}  // namespace kvsim
