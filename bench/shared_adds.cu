// Rates of random accesses to shared memory (measured: docs/lab/attention-histogram.md): additions
// to bins, and loads of looked-up numbers, of four heads each.
//
//   nvcc -std=c++17 -O3 -arch=sm_90a -o shared_adds bench/shared_adds.cu && ./shared_adds
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

enum class Access { add32, add32_heads_together, add64, load32, load64, load128, none };

constexpr int kEntries = 4096, kThreads = 1024, kTurns = 512, kCodes = 8, kHeads = 4;

__device__ std::uint32_t drawn(std::uint32_t& state) {
  state ^= state << 13;
  state ^= state >> 17;
  return state ^= state << 5;
}

// `sums` keeps what was read, [block][thread]; `clocks` one number per block.
template <Access kAccess>
__global__ void measure(std::uint32_t* sums, long long* clocks) {
  extern __shared__ std::uint32_t numbers[];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  for (int i = thread; i < kEntries * kHeads; i += kThreads) numbers[i] = i;
  std::uint32_t state = (blockIdx.x * kThreads + thread) * 2654435761u + 12345u;
  std::uint32_t sum = 0;
  __syncthreads();
  const long long begin = clock64();
  for (int turn = 0; turn < kTurns; ++turn) {
    const std::uint32_t number = drawn(state);
#pragma unroll
    for (int i = 0; i < kCodes; ++i) {
      const std::uint32_t code = (number * (2 * i + 1) * 0x9E3779B1u) >> 20;
      if (kAccess == Access::add32) {
        for (int h = 0; h < kHeads; ++h) atomicAdd(&numbers[h * kEntries + code], number & 255);
      } else if (kAccess == Access::add32_heads_together) {  // 8 tokens at a time
        for (int quarter = 0; quarter < 4; ++quarter) {
          const std::uint32_t of_token = __shfl_sync(~0u, code, quarter * 8 + lane / kHeads);
          atomicAdd(&numbers[of_token * kHeads + lane % kHeads], number & 255);
        }
      } else if (kAccess == Access::add64) {
        auto* const pairs = reinterpret_cast<unsigned long long*>(numbers);
        for (int pair = 0; pair < kHeads / 2; ++pair) {
          atomicAdd(&pairs[pair * kEntries + code], (number & 255) * 0x100000001ull);
        }
      } else if (kAccess == Access::load32) {
        for (int h = 0; h < kHeads; ++h) sum += numbers[h * kEntries + code];
      } else if (kAccess == Access::load64) {
        const auto* const pairs = reinterpret_cast<const uint2*>(numbers);
        for (int pair = 0; pair < kHeads / 2; ++pair) {
          const uint2 two = pairs[pair * kEntries + code];
          sum += two.x ^ two.y;
        }
      } else if (kAccess == Access::load128) {
        const uint4 four = reinterpret_cast<const uint4*>(numbers)[code];
        sum += four.x ^ four.y ^ four.z ^ four.w;
      } else {
        sum += code;
      }
    }
  }
  __syncthreads();
  const long long end = clock64();
  for (int i = thread; i < kEntries * kHeads; i += kThreads) sum += numbers[i];
  sums[blockIdx.x * kThreads + thread] = sum;
  if (thread == 0) clocks[blockIdx.x] = end - begin;
}

bool fine(cudaError_t error) {
  if (error != cudaSuccess) std::fprintf(stderr, "shared_adds: %s\n", cudaGetErrorString(error));
  return error == cudaSuccess;
}

// Prints the median over the blocks of one launch, after another.
template <Access kAccess>
bool report(const char* name, int blocks) {
  const int bytes = kEntries * kHeads * 4;
  std::uint32_t* sums = nullptr;
  long long* clocks = nullptr;
  std::vector<long long> taken(blocks);
  bool ok = fine(cudaMalloc(&sums, sizeof(*sums) * blocks * kThreads)) &&
            fine(cudaMalloc(&clocks, sizeof(*clocks) * blocks)) &&
            fine(cudaFuncSetAttribute(measure<kAccess>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      bytes));
  for (int launch = 0; ok && launch < 2; ++launch) {
    measure<kAccess><<<blocks, kThreads, bytes>>>(sums, clocks);
    ok = fine(cudaGetLastError()) &&
         fine(cudaMemcpy(taken.data(), clocks, sizeof(*clocks) * blocks, cudaMemcpyDeviceToHost));
  }
  if (ok) {
    std::nth_element(taken.begin(), taken.begin() + blocks / 2, taken.end());
    const double warps = static_cast<double>(kThreads) / 32 * kTurns * kCodes * kHeads;
    std::printf("%-28s %5.2f clocks for 32 numbers\n", name,
                static_cast<double>(taken[blocks / 2]) / warps);
  }
  cudaFree(sums);
  cudaFree(clocks);
  return ok;
}

}  // namespace

int main() {
  int blocks = 0;
  if (!fine(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0))) return 1;
  const bool ok = report<Access::add32>("add u32, [head][entry]", blocks) &&
                  report<Access::add32_heads_together>("add u32, [entry][head]", blocks) &&
                  report<Access::add64>("add u64, [pair][entry]", blocks) &&
                  report<Access::load32>("load u32, [head][entry]", blocks) &&
                  report<Access::load64>("load u64, [pair][entry]", blocks) &&
                  report<Access::load128>("load u128, [entry]", blocks) &&
                  report<Access::none>("codes alone", blocks);
  return ok ? 0 : 1;
}
