// A prompt's cache team by team: K, V and what routes to teams are read once.

#include <algorithm>
#include <vector>

#include "kernels/device/buffer.cuh"
#include "kernels/device/enqueue.cuh"
#include "kernels/device/units.cuh"
#include "kernels/santapp/pack.cuh"
#include "kernels/santapp/table.h"

namespace kvsim::santapp {
namespace {

constexpr int kThreads = 256;
constexpr int kCtasPerGroup = 64;

struct PackArguments {
  DeviceStep step;
  PackedTeams table;
  const std::int32_t* leaders;  // [groups, teams]; null: means route, which are there
};

/// Row `row` of `tensor`, 16 bytes at a time.
__device__ uint4 chunk_of(const KvTensor& tensor, int row, int chunk) {
  const auto* source = device::row_pointer<std::uint16_t>(tensor, static_cast<int>(blockIdx.z),
                                                          static_cast<int>(blockIdx.y), row);
  return reinterpret_cast<const uint4*>(source)[chunk];
}

/// Grid: (any, KV heads, sequences).
__global__ void __launch_bounds__(kThreads) pack(const __grid_constant__ PackArguments a) {
  const std::int64_t number = std::int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  const int chunks = a.step.head_dim / 8;
  const PackedTeams::Header header = *a.table.header(number);
  const std::int32_t* members = a.table.members(number);
  auto* keys = a.table.keys<uint4>(number);
  auto* values = a.table.values<uint4>(number);
  auto* routes = a.table.routes<uint4>(number);
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = first; i < std::int64_t{header.rows} * chunks; i += step) {
    const int chunk = static_cast<int>(i % chunks);
    const std::int32_t row = members[i / chunks];
    keys[i] = chunk_of(a.step.k, row, chunk);
    values[i] = chunk_of(a.step.v, row, chunk);
  }
  if (a.leaders == nullptr) return;
  const std::int32_t* leaders = a.leaders + number * a.table.teams;
  for (std::int64_t i = first; i < a.table.teams * chunks; i += step) {
    const bool exists = i / chunks < header.teams;
    routes[i] = exists ? chunk_of(a.step.k, leaders[i / chunks], static_cast<int>(i % chunks))
                       : uint4{0, 0, 0, 0};
  }
}

/// All of a group but rows: its header, starts and members.
std::vector<std::byte> index_of(const PackedTeams& table, const Teams& teams) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(table.routes_at()));
  const PackedTeams host{bytes.data(), table.rows, table.teams, table.head_dim};
  const Partition& partition = teams.partition;
  const auto rows = static_cast<std::int32_t>(partition.members.size());
  *host.header(0) = {partition.parts(), rows, {}};
  std::fill_n(host.starts(0), table.teams + 1, rows);
  std::ranges::copy(partition.starts, host.starts(0));
  std::ranges::copy(partition.members, host.members(0));
  return bytes;
}

/// Means of teams in place of their leaders.
void upload_means(const DeviceStep& step, const TeamTable& teams, const PackedTeams& table,
                  std::int64_t number) {
  const auto count = static_cast<std::size_t>(table.teams * step.head_dim);
  std::vector<float> rows(count);
  for (std::int32_t t = 0; t < teams.teams(); ++t) {
    std::ranges::copy(teams.mean(t), rows.begin() + std::int64_t{t} * step.head_dim);
  }
  std::vector<std::byte> stored(2 * count);
  store_values(rows.data(), static_cast<std::int64_t>(count), step.type, stored.data());
  check_cuda(cudaMemcpy(table.routes<std::byte>(number), stored.data(), stored.size(),
                        cudaMemcpyHostToDevice),
             "uploading means");
}

}  // namespace

void upload_teams(const DeviceStep& step, std::span<const State* const> states,
                  const PackedTeams& table, cudaStream_t stream) {
  KVSIM_CHECK(states.size() == static_cast<std::size_t>(step.batch * step.kv_heads));
  std::vector<std::int32_t> leaders(states.size() * static_cast<std::size_t>(table.teams));
  bool means = false;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i);
    const auto& own = dynamic_cast<const TeamTable&>(*states[i]);
    const std::int64_t rows = prompt_rows(step, static_cast<int>(number / step.kv_heads));
    if (own.prompt() != rows || own.teams() > table.teams) {
      fail<RuntimeError>("santapp: {} teams of {} rows, expected up to {} of {}", own.teams(),
                         own.prompt(), table.teams, rows);
    }
    const std::vector<std::byte> index = index_of(table, own.grouped());
    check_cuda(cudaMemcpy(table.group(number), index.data(), index.size(), cudaMemcpyHostToDevice),
               "uploading teams");
    std::ranges::copy(own.grouped().leaders,
                      leaders.begin() + static_cast<std::ptrdiff_t>(number * table.teams));
    means = own.routes_by_mean();
    if (means) upload_means(step, own, table, number);
  }
  DeviceBuffer<std::int32_t> device_leaders(leaders.size());
  device_leaders.upload(leaders);
  check_cuda(cudaDeviceSynchronize(), "uploading teams");  // was on another stream
  const dim3 grid(kCtasPerGroup, static_cast<unsigned>(step.kv_heads),
                  static_cast<unsigned>(step.batch));
  const PackArguments arguments{step, table, means ? nullptr : device_leaders.data()};
  enqueue(pack, grid, dim3(kThreads), 0, stream, arguments);
  check_cuda(cudaStreamSynchronize(stream), "packing teams");
}

}  // namespace kvsim::santapp
