// What CUDA C has and C++ has not: threads and blocks.
struct uint3 { unsigned x, y, z; };
typedef uint3 dim3;
static thread_local uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

#ifdef AT_ONCE
// Threads that wait for one another take turns: each runs until it waits or ends.
#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>
struct Thread { jmp_buf place; ucontext_t start; bool is_started, is_over; uint3 index; char stack[1 << 16]; };
static Thread *_threads, *_now;
static jmp_buf _turn;
static void _wait() { if (!_setjmp(_now->place)) _longjmp(_turn, 1); }
static void _resume(Thread* thread) {
  _now = thread;
  threadIdx = thread->index;
  if (_setjmp(_turn)) return;
  if (thread->is_started) _longjmp(thread->place, 1);
  thread->is_started = true;
  setcontext(&thread->start);
}
template <typename F> struct Body {
  static F* body;
  static void run() { for (;;) { (*body)(); _now->is_over = true; _wait(); } }  // block after block
};
template <typename F> F* Body<F>::body;
#endif

#define __global__
#define __device__ static
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __syncthreads() _wait()
#define __launch_bounds__(...)
template <typename T> static T atomicAdd(T* p, T x) {
  T old, sum;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do sum = old + x;
  while (!__atomic_compare_exchange(p, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

template <typename T> static T atomicOr(T* p, T x) { return __atomic_fetch_or(p, x, __ATOMIC_RELAXED); }

// dims: grid, block, bytes of shared memory. Blocks run one after another, as their shared memory
// is one; the threads of a block too, unless they wait for one another.
template <typename F> static void run_blocks(const long* dims, F body) {
  gridDim = {(unsigned)dims[0], (unsigned)dims[1], (unsigned)dims[2]};
  blockDim = {(unsigned)dims[3], (unsigned)dims[4], (unsigned)dims[5]};
  unsigned n = blockDim.x * blockDim.y * blockDim.z;
  auto index = [](unsigned t) {
    return uint3{t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
  };
#ifdef AT_ONCE
  _threads = (Thread*)malloc(n * sizeof(Thread));
  Body<F>::body = &body;
  for (unsigned t = 0; t < n; t++) {
    Thread& thread = _threads[t];
    thread.is_started = false;
    thread.index = index(t);
    getcontext(&thread.start);
    thread.start.uc_stack.ss_sp = thread.stack;
    thread.start.uc_stack.ss_size = sizeof(thread.stack);
    makecontext(&thread.start, Body<F>::run, 0);
  }
#endif
  for (unsigned b = 0; b < gridDim.x * gridDim.y * gridDim.z; b++) {
    blockIdx = {b % gridDim.x, b / gridDim.x % gridDim.y, b / gridDim.x / gridDim.y};
#ifdef AT_ONCE
    for (unsigned t = 0; t < n; t++) _threads[t].is_over = false;
    for (unsigned left = n; left;) {
      for (unsigned t = 0; t < n; t++) {
        if (_threads[t].is_over) continue;
        _resume(&_threads[t]);
        left -= _threads[t].is_over;
      }
    }
#else
    for (unsigned t = 0; t < n; t++) { threadIdx = index(t); body(); }
#endif
  }
#ifdef AT_ONCE
  free(_threads);
#endif
}
