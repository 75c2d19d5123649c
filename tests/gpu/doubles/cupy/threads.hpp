// What CUDA C has and C++ has not: threads and blocks.
#ifdef AT_ONCE
#include <barrier>
#include <thread>
#include <vector>
static barrier<>* _barrier;
#endif

struct uint3 { unsigned x, y, z; };
typedef uint3 dim3;
static thread_local uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
#define __global__
#define __device__ static
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __syncthreads() _barrier->arrive_and_wait()
#define __launch_bounds__(...)
template <typename T> static T atomicAdd(T* p, T x) {
  T old, sum;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do sum = old + x;
  while (!__atomic_compare_exchange(p, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

// dims: grid, block, bytes of shared memory. Blocks run one after another, as their shared memory
// is one; the threads of a block too, unless they wait for one another.
template <typename F> static void run_blocks(const long* dims, F body) {
  gridDim = {(unsigned)dims[0], (unsigned)dims[1], (unsigned)dims[2]};
  blockDim = {(unsigned)dims[3], (unsigned)dims[4], (unsigned)dims[5]};
  unsigned n = blockDim.x * blockDim.y * blockDim.z;
  for (unsigned b = 0; b < gridDim.x * gridDim.y * gridDim.z; b++) {
    auto run = [&](unsigned t) {
      blockIdx = {b % gridDim.x, b / gridDim.x % gridDim.y, b / gridDim.x / gridDim.y};
      threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
      body();
    };
#ifdef AT_ONCE
    barrier<> all(n);
    _barrier = &all;
    vector<thread> threads;
    for (unsigned t = 0; t < n; t++)
      threads.emplace_back([&run, t] { run(t); _barrier->arrive_and_drop(); });
    for (auto& one : threads) one.join();
#else
    for (unsigned t = 0; t < n; t++) run(t);
#endif
  }
}

